"""Drafts from a smaller model: shapes, stop rules, the draft model's cache, and losslessness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from distributions import Model, distribution_of_drafts, model, own_distribution
from models import perturbed, tiny_model
from pairwise import every_other, in_turn
from speculant import Speculator
from speculant.core.drafter import Budget, SessionRequest, Verified
from speculant.core.errors import UsageError
from speculant.core.sampler import Sampling
from speculant.core.tree import DraftTree, Proposal
from speculant.drafters.models.draft_text import DraftText
from speculant.drafters.models.drawn_trees import Sequences, Widths
from speculant.drafters.models.level_session import LevelSession
from speculant.drafters.models.sequoia import AdaptiveTrees, BestTree
from speculant.drafters.models.shapes import BestFirst, Chain, Level, Shape
from speculant.drafters.models.tree_acceptance import LevelAcceptance, LevelGains, SiblingAcceptance
from speculant.engines.hf.engine import HFEngine
from speculant.registry import METHODS as REGISTRY
from speculant.verifiers.speculative_sampling import SpeculativeSampling
from trees import leaves, make_tree

PROMPT = [5, 9, 14, 3, 8]
PROMPTS = [PROMPT, [7], [11] * 9]
TOKENS = 12
METHODS = [
    name for name, method in REGISTRY.items() if method.requires == "a draft model" and method.exactness == "lossless"
]
SHAPES: dict[str, Any] = {
    "chain": lambda: Chain(LevelAcceptance()),
    "iid": lambda: Widths([3, 2], SiblingAcceptance(), replacement=True),
    "distinct": lambda: Widths([3, 2, 1], SiblingAcceptance(), replacement=False),
    "sequences": lambda: Sequences(3, LevelAcceptance()),
    "best first": lambda: BestFirst(LevelGains(), depth=4, top_k=3, min_probability=0.0),
    "best tree": lambda: BestTree(AdaptiveTrees(SiblingAcceptance(), depth=4, siblings=3)),
}


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """A target and a draft model, whose distributions differ."""
    return tiny_model("llama"), perturbed(tiny_model("llama"), 0.2)


@pytest.fixture(scope="module")
def plain(pair: tuple[Any, Any]) -> list[list[int]]:
    """The target's own texts behind the prompts."""
    return [
        pair[0].generate(torch.tensor([each]), max_new_tokens=TOKENS, do_sample=False)[0, len(each) :].tolist()
        for each in PROMPTS
    ]


def opened(draft: Any, text: list[int], shape: Shape, temperature: float = 0.0) -> LevelSession:
    """Return a session after a text, whose last token is the root."""
    cache = HFEngine(draft).open(torch.tensor([text[:-1]]))
    start = SessionRequest(prompt=np.array(text[:-1], np.int32), sampling=Sampling(temperature=temperature))
    session = LevelSession(DraftText(cache, start.sampling, draft.config.vocab_size), start, shape)
    session.observe(verified(DraftTree.empty(), [], text[-1:]))
    return session


def verified(tree: DraftTree, path: list[int], tokens: list[int]) -> Verified:
    """Return a round's result."""
    return Verified(tree=tree, path=np.array(path, np.int32), tokens=np.array(tokens, np.int32))


@pytest.mark.parametrize(("method", "nodes"), in_turn(METHODS, [9, "auto"]))
def test_greedy_tokens_are_the_targets(
    pair: tuple[Any, Any], plain: list[list[int]], method: str, nodes: int | str
) -> None:
    """Guards every shape, alone and in a batch, up to the end of the text."""
    target, draft = pair
    speculator = Speculator.from_transformers(target, method=method, draft_model=draft, nodes=nodes)
    assert speculator.generate(PROMPT, max_new_tokens=TOKENS, temperature=0).ids == plain[0]
    results = speculator.generate_batch(PROMPTS, size=3, max_new_tokens=TOKENS, temperature=0)
    assert [each.ids for each in results] == plain
    assert nodes == "auto" or sum(each.stats.accepted for each in results) > 5


@pytest.mark.parametrize("method", every_other(METHODS, first=False))
def test_sampled_texts_follow_their_seed(pair: tuple[Any, Any], method: str) -> None:
    """Guards sampling in every shape: a seed gives a text again, and the rounds accept what was drawn."""
    target, draft = pair
    options: dict[str, Any] = {"max_new_tokens": 14, "temperature": 0.5, "seed": 1}
    settings = {"ahead": 3} if method == "pearl" else None  # by default as many as there is time for
    first, again = (
        Speculator.from_transformers(target, method=method, draft_model=draft, nodes=12, settings=settings).generate(
            PROMPT, **options
        )
        for _ in range(2)
    )
    assert again.ids == first.ids
    assert first.stats.accepted > 0


@pytest.mark.parametrize(("name", "trees"), in_turn(SHAPES, [True, False]))
def test_the_cache_stays_in_step_with_the_text(pair: tuple[Any, Any], name: str, trees: bool) -> None:
    """Guards kept rows: after rounds that accept some, all or none of a draft, drafts are those of a fresh session."""
    _, draft = pair
    random, text = np.random.default_rng(2), list(PROMPT)
    session = opened(draft, text, SHAPES[name]())
    for turn in range(8):
        budget = Budget(nodes=9, depth=4, trees=trees)
        tree = session.propose(budget)
        fresh = opened(draft, text, SHAPES[name]()).propose(budget)
        assert np.array_equal(tree.tokens, fresh.tokens)
        assert np.array_equal(tree.parents, fresh.parents)
        np.testing.assert_allclose(tree.weights, fresh.weights, rtol=1e-4)
        assert 0 < len(tree) <= 9
        assert trees or len(leaves(tree)) == 1
        path = tree.path(int(random.integers(len(tree)))).tolist() if turn % 3 else []
        tokens = [*tree.tokens[path].tolist(), int(random.integers(3, 50))]
        session.observe(verified(tree, path, tokens))
        text += tokens


def test_proposing_again_draws_the_same(pair: tuple[Any, Any]) -> None:
    """Guards the contract of `propose`: a batch asks again when another sequence's drafter failed."""
    session = opened(pair[1], PROMPT, Widths([2, 2], SiblingAcceptance(), replacement=True), temperature=1.0)
    first, second = (session.propose(Budget(nodes=8, depth=3, trees=True)) for _ in range(2))
    assert np.array_equal(first.tokens, second.tokens)


@pytest.mark.parametrize("name", SHAPES)
def test_q_is_what_the_children_were_drawn_from(pair: tuple[Any, Any], name: str) -> None:
    """Guards rows of q: row i + 1 is the distribution after node i, as a pass of the draft model gives it."""
    _, draft = pair
    tree = opened(draft, PROMPT, SHAPES[name](), temperature=0.7).propose(Budget(nodes=9, depth=3, trees=True))
    assert (tree.proposal is None) == (name == "best first")
    if tree.proposal is None:
        return
    assert tree.proposal.drawn == ("distinct" if name in ("distinct", "best tree") else "iid")
    for parent in set(tree.parents.tolist()):
        text = [*PROMPT, *(tree.tokens[tree.path(parent)].tolist() if parent >= 0 else [])]
        with torch.no_grad():
            q = (draft(torch.tensor([text])).logits[0, -1] / 0.7).softmax(-1)
        torch.testing.assert_close(tree.proposal.q[parent + 1], q, atol=1e-5, rtol=1e-4)
        children = tree.tokens[tree.children(parent)].tolist()
        assert name not in ("distinct", "best tree") or len(set(children)) == len(children)


def test_sequences_share_their_beginning() -> None:
    """Guards SpecTr: equal first tokens are one place to go on from, with a child for each sequence."""
    shape = Sequences(4, LevelAcceptance())
    q = torch.tensor([[1.0, 0.0]])
    generator = torch.Generator().manual_seed(1)
    first = shape.expand(Level(1, q, [1.0], 20, 3, True, True, generator))
    assert [each.token for each in first] == [0, 0, 0, 0]
    second = shape.expand(Level(2, q.expand(4, 2), [1.0] * 4, 16, 2, True, True, generator))
    assert [each.parent for each in second] == [0, 0, 0, 0]


def test_the_schedule_follows_what_was_accepted() -> None:
    """Guards the heuristic: two more after a draft that was accepted whole, else one less, never below one."""
    chain = Chain(LevelAcceptance(), "heuristic", length=2)
    chain.learn(make_tree([1, 2], [-1, 0]), [0, 1])
    assert chain._length == 4
    for _ in range(9):
        chain.learn(make_tree([1, 2], [-1, 0]), [0])
    assert chain._length == 1


def test_joint_confidence_ends_a_chain() -> None:
    """Guards the product of the highest probabilities, of drawn tokens too, and that it starts anew with each draft."""
    chain, generator = Chain(LevelAcceptance(), "joint", threshold=0.3), torch.Generator().manual_seed(0)
    for _ in range(2):
        found = [
            len(chain.expand(Level(depth, torch.tensor([[0.6, 0.4]]), [0.1], 9, 9, True, sampled, generator)))
            for depth, sampled in ((1, True), (2, True), (3, False))
        ]
        assert found == [1, 1, 0]  # 0.6, 0.36, 0.216


def stopped_drafts(q: Model, *, peek: bool, joint: bool = False) -> list[tuple[DraftTree, float]]:
    """Return all chains of at most 3 nodes that end where q is flat, or has been since the root, if `joint`.

    With `peek`, they end before an unlikely token.
    """
    found, open_ = list[tuple[DraftTree, float]](), [((), 1.0)]
    while open_:
        text, probability = open_.pop()
        distribution = q(text)
        last = q(text[:-1])[text[-1]] if text else 1.0
        sure = np.prod([q(text[:i]).max() for i in range(len(text) + 1)]) >= 0.4 if joint else distribution.max() >= 0.6
        if len(text) == 3 or (text and (last < 0.5 if peek else not sure)):
            kept = text[:-1] if peek and len(text) < 3 else text  # transformers drops what it is not sure of
            tree = make_tree(list(kept), range(-1, len(kept) - 1))
            rows = torch.tensor(np.stack([q(kept[:i]) for i in range(len(kept) + 1)]))
            found.append((DraftTree(tree.tokens, tree.parents, tree.weights, Proposal(rows)), probability))
        else:
            open_ += [((*text, token), probability * chance) for token, chance in enumerate(distribution.tolist())]
    return found


def test_a_stop_rule_may_look_at_q_but_not_at_what_was_drawn() -> None:
    """Guards losslessness of drafts that end early: exact enumeration, and the bias of a rule that looks."""
    p, q = model(1), model(3)
    for joint in (False, True):
        exact, _ = distribution_of_drafts(SpeculativeSampling().rule, p, stopped_drafts(q, peek=False, joint=joint))
        assert exact == pytest.approx(own_distribution(p, 4), abs=1e-9)
    biased, _ = distribution_of_drafts(SpeculativeSampling().rule, p, stopped_drafts(q, peek=True))
    assert max(abs(biased[text] - probability) for text, probability in own_distribution(p, 4).items()) > 0.001


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("draft-model", {"stop": "never"}, "stop must be"),
        ("draft-model", {"stop": "fixed", "threshold": 0.5}, "no threshold"),
        ("draft-model", {"stop": "entropy", "threshold": 2}, "from 0 to 1"),
        ("draft-model", {"stop": "joint", "threshold": -1}, "from 0 to 1"),
        ("draft-model", {"length": 0}, "at least 1"),
        ("specinfer", {"widths": "8,8,8"}, "584 nodes"),
        ("mcsd", {"widths": "4,x"}, "as in 4,2,2"),
        ("mcsd", {"widths": "0"}, "at least 1"),
        ("spectr", {"sequences": 0}, "1 to 64"),
        ("opt-tree", {"min_probability": 1.0}, "below 1"),
    ],
)
def test_bad_settings_are_refused(pair: tuple[Any, Any], method: str, settings: dict[str, Any], reason: str) -> None:
    """Guards against drafts that never end, never begin, or do not fit a pass; found before the first request."""
    with pytest.raises(UsageError, match=reason):
        Speculator.from_transformers(pair[0], method=method, draft_model=pair[1], settings=settings)


@pytest.mark.parametrize(
    ("method", "verifier"),
    in_turn(["specinfer", "mcsd", "spectr", "sequoia", "opt-tree", "mix-model", "staged"], [None, "block"]),
)
def test_automatic_sizes_of_all_shapes(pair: tuple[Any, Any], method: str, verifier: str | None) -> None:
    """Guards forecasts narrower than what may be asked for, and shapes of trees where only chains are taken."""
    target, draft = pair
    small: dict[str, Any] = {"specinfer": {"widths": "2,1"}, "mcsd": {"widths": "1"}}
    speculator = Speculator.from_transformers(
        target, method=method, draft_model=draft, verifier=verifier, settings=small.get(method)
    )
    for temperature in (0.0, 0.7):
        assert speculator.generate(PROMPT, max_new_tokens=25, temperature=temperature, seed=1).ids


def test_a_chain_is_as_deep_as_a_tree_may_be(pair: tuple[Any, Any]) -> None:
    """Guards Sequoia on models and rules that take chains alone: it goes on below the first node."""
    session = opened(pair[1], PROMPT, BestTree(AdaptiveTrees(SiblingAcceptance(), depth=5, siblings=3)))
    assert len(session.propose(Budget(nodes=9, depth=9, trees=False))) == 5


def test_draft_models_that_read_chains_only_draft_chains() -> None:
    """Guards targets that verify trees, with a draft model that cannot read them."""
    target, draft = tiny_model("llama"), tiny_model("bloom")
    prompt = [5, 9, 14, 3, 8]
    plain = target.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, 5:].tolist()
    for method in ("specinfer", "opt-tree", "mix-model", "staged"):
        speculator = Speculator.from_transformers(target, method=method, draft_model=draft, nodes=8)
        assert speculator.generate(prompt, max_new_tokens=12, temperature=0).ids == plain


def test_tokens_that_the_draft_model_does_not_know(pair: tuple[Any, Any]) -> None:
    """Guards vocabularies padded differently: an id beyond the draft model's own ends neither the text nor drafting."""
    draft = tiny_model("llama", vocab_size=50)
    for method in ("draft-model", "mix-model", "staged"):
        speculator = Speculator.from_transformers(pair[0], method=method, draft_model=draft, nodes=6)
        prompt = [*PROMPT, 58, 60]
        plain = pair[0].generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, 7:].tolist()
        assert speculator.generate(prompt, max_new_tokens=20, temperature=0).ids == plain


def test_depth_near_the_end_of_the_draft_models_positions(pair: tuple[Any, Any]) -> None:
    """Guards `propose` asked twice where positions run out: the same draft."""
    draft = perturbed(tiny_model("llama", max_position_embeddings=12), 0.2)
    session = opened(draft, [*PROMPT, 7], Chain(LevelAcceptance()))
    first, second = (session.propose(Budget(nodes=20, depth=20)) for _ in range(2))
    assert len(first) == len(second) == 6
