"""The contract of every method that drafts without a model: budgets, repeated proposals, memories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pairwise import few
from rounds import start
from speculant.core.drafter import EMPTY_PATH, Budget, Drafter, Persistent, Session, Verified
from speculant.core.tree import ROOT, DraftTree
from speculant.registry import METHODS, BuildContext, build_drafter
from trees import paths_of

VOCABULARY = 80
NAMES = tuple(
    name
    for name, each in METHODS.items()
    if not (each.takes_draft_model or each.takes_layers or each.takes_rows or each.heads)
)
LIMITS = ((0, 1, 5, 64), (0, 1, 3, 1000), (True, False), (0, 3, 1000))


def budgets(cases: Iterable[tuple[Any, ...]]) -> list[Budget]:
    """Return budgets of these limits."""
    return [Budget(nodes=nodes, depth=depth, trees=trees, queries=queries) for nodes, depth, trees, queries in cases]


def build(name: str) -> Drafter:
    """Return an empty drafter."""
    return build_drafter(name, BuildContext(vocabulary=VOCABULARY, tokenizer="t"))


def language(seed: int, length: int) -> np.ndarray:
    """Return a random text in which a few tokens follow each."""
    random = np.random.default_rng(seed)
    text = random.integers(0, VOCABULARY, length)
    for i in np.flatnonzero(random.random(length) < 0.8):
        text[i] = (text[i - 1] * 7 + random.integers(0, 2)) % VOCABULARY
    return text.astype(np.int32)


def verified(tree: DraftTree, truth: list[int], needed: int, random: np.random.Generator) -> Verified:
    """Return the greedy round in which the target continues with `truth`, with random runners-up at every row."""
    paths, path = list(paths_of(tree)), []
    while len(path) < len(truth) - 1 and tuple(truth[: len(path) + 1]) in paths:
        path.append(paths.index(tuple(truth[: len(path) + 1])))
    tokens = np.array(truth[: len(path) + 1], np.int32)
    if not needed:
        return Verified(tree=tree, path=np.array(path, np.int32), tokens=tokens)
    rows = len(tree) + 1 + len(tree.queries)
    ranked = random.permuted(np.tile(np.arange(VOCABULARY, dtype=np.int32), (rows, 1)), axis=1)
    for row, token in zip([0, *(node + 1 for node in path)], tokens, strict=True):
        ranked[row] = [token, *ranked[row][ranked[row] != token]]
    top_ids = np.ascontiguousarray(ranked[:, :needed])  # as engines return them
    top_logits = -np.sort(random.exponential(2, top_ids.shape), axis=1).astype(np.float32)
    return Verified(tree=tree, path=np.array(path, np.int32), tokens=tokens, top_ids=top_ids, top_logits=top_logits)


def rounds(held: Drafter, session: Session, text: np.ndarray, done: int) -> Iterator[None]:
    """Yield before each round of a request that continues with text[done:]; each drafts 16 nodes."""
    random = np.random.default_rng(done)
    while done < len(text):
        yield
        tree = session.propose(Budget(nodes=16, depth=1000, queries=1000))
        result = verified(tree, text[done : done + 20].tolist(), held.needs.top_k, random)
        session.observe(result)
        done += len(result.tokens)


def same(one: DraftTree, other: DraftTree) -> bool:
    """Return whether two drafts are equal in every array."""
    names = ("tokens", "parents", "weights", "queries.tokens", "queries.parents")
    return all(np.array_equal(attrgetter(name)(one), attrgetter(name)(other)) for name in names)


def check(tree: DraftTree, budget: Budget) -> None:
    """Check that a draft is valid and within its budget."""
    DraftTree(tree.tokens, tree.parents, tree.weights)  # the checked constructor
    assert (tree.tokens.dtype, tree.parents.dtype, tree.weights.dtype) == (np.int32, np.int32, np.float32)
    assert len(tree) <= budget.nodes
    assert not len(tree) or tree.depths().max() <= budget.depth
    assert budget.trees or tree.parents.tolist() == list(range(ROOT, len(tree) - 1))
    assert len(set(paths_of(tree))) == len(tree)
    assert not len(tree.queries) or (budget.nodes and tree.queries.depths().max() <= budget.queries)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(budgets(few(*LIMITS)), id="paired"),
        pytest.param(budgets(product(*LIMITS)), id="all", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_drafts_respect_their_budget_and_are_repeated(name: str, limits: list[Budget]) -> None:
    """Nodes, depth and chains are limited before a draft is returned; until `observe` the same budget returns the same.

    Asking in between with other budgets changes nothing either: a round that failed is drafted again with another.
    """
    held, asked, drafted = build(name), 0, 0
    for seed in range(2):
        text = language(seed, 160)
        session = held.open(start(text[:100]))
        for _ in rounds(held, session, text, 100):
            first = [session.propose(budget) for budget in limits]
            for tree, budget in zip(first, limits, strict=True):
                check(tree, budget)
                assert same(tree, session.propose(budget))
            asked += 1
            drafted += any(len(tree) for tree in first)
        session.close()
    assert (drafted > asked / 8) == (name != "none")


@pytest.mark.parametrize("name", NAMES)
def test_limits_waste_no_nodes(name: str) -> None:
    """A depth that a draft does not reach changes nothing, and a draft of one level is full of what is known."""
    held, text = build(name), language(3, 200)
    session = held.open(start(text[:100]))
    for _ in rounds(held, session, text, 100):
        free = session.propose(Budget(nodes=16, depth=1000))
        reached = int(free.depths().max()) if len(free) else 1
        assert same(free, session.propose(Budget(nodes=16, depth=reached)))
        shallow = session.propose(Budget(nodes=16, depth=1))
        assert len(shallow) >= len(free.children(ROOT))


@pytest.mark.parametrize("name", NAMES)
def test_the_batched_proposal_is_each_sessions_own(name: str) -> None:
    """Drafters without a batched pass propose for one session after the other."""
    held, texts = build(name), [language(seed, 60) for seed in range(3)]
    sessions = [held.open(start(text)) for text in texts]
    budgets = [Budget(nodes=nodes, depth=10) for nodes in (0, 3, 20)]
    for tree, session, budget in zip(held.propose(sessions, budgets), sessions, budgets, strict=True):
        assert same(tree, session.propose(budget))


@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_methods_with_a_memory_are_persistent(name: str, tmp_path: Path) -> None:
    """The others have no `save`, so that nobody believes that they saved something."""
    held = build(name)
    assert isinstance(held, Persistent) == (METHODS[name].memory is not None)
    assert hasattr(held, "save") == (METHODS[name].memory is not None)
    if isinstance(held, Persistent):
        held.save(tmp_path / "memory")
        build(name).load(tmp_path / "memory")


@pytest.mark.parametrize("name", [name for name in NAMES if name in ("mix", "lookup", "maxgram", "aded", "suffix")])
def test_drafts_ahead_leave_no_trace(name: str) -> None:
    """Guards cascades: drafts behind tokens that may follow change no later draft, and know those tokens."""
    held, text = build(name), language(5, 200)
    sessions = [held.open(start(text[:150])), build(name).open(start(text[:150]))]
    budget = Budget(nodes=8, depth=8)
    for at in range(150, 170, 2):
        for tokens in ([], [int(text[0])], text[at : at + 4].tolist()):
            check(sessions[0].propose_after(tokens, budget), budget)
        assert same(*(session.propose(budget) for session in sessions))
        assert same(sessions[0].propose_after([], budget), sessions[0].propose(budget))
        for session in sessions:
            session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=text[at : at + 2]))


@pytest.mark.parametrize("name", ["mix", "lookup"])
def test_a_draft_ahead_is_the_draft_once_committed(name: str) -> None:
    """Guards what a cascade asks for: a text that repeats is continued as once the tokens are committed."""
    text = np.tile(language(7, 20), 8)
    session = build(name).open(start(text[:100]))
    budget = Budget(nodes=6, depth=6)
    ahead = session.propose_after(text[100:103].tolist(), budget)
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=text[100:103]))
    assert ahead.tokens.tolist() == session.propose(budget).tokens.tolist()
