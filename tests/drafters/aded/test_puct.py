"""The published search, against its description read literally, and the facts known of the official drafter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import pytest

from rounds import budget, start
from speculant.core.drafter import EMPTY_PATH, SessionRequest, Verified
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.aded import puct
from speculant.drafters.aded.corpus import TrigramCounter
from speculant.drafters.aded.paper import FALLBACK, AdedPaperDrafter, AdedPaperSettings
from speculant.drafters.aded.table import TrigramTable
from tables import ids, row_of, table
from trees import paths_of

PAPER = AdedPaperSettings()
PAPER_RULE = PAPER.rule()


def stream(seed: int, length: int, vocabulary: int) -> np.ndarray:
    """Return random tokens without immediate repeats."""
    random = np.random.default_rng(seed)
    return (np.cumsum(random.integers(1, vocabulary, length)) % vocabulary).astype(np.int32)


def committed(*tokens: int) -> Verified:
    """Return a round that committed these tokens."""
    return Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=ids(tokens))


@dataclass
class Node:
    """A node of the search as the paper describes it."""

    state: tuple[int, int]
    prior: float = 0.0
    visits: int = 0
    score: float = 0.0
    children: list[Node] = field(default_factory=list)


def uniform_numbers(seed: int) -> Iterator[float]:
    """Yield what xorshift64* draws: whole numbers of 64 bits, of which the upper 53 make a number in [0, 1)."""
    x = seed
    while True:
        x ^= x >> 12
        x ^= x << 25 & (1 << 64) - 1
        x ^= x >> 27
        yield (x * 2685821657736338717 % (1 << 64) >> 11) / (1 << 53)


def rolled_out(held: TrigramTable, states: list[tuple[int, int]], random: Iterator[float], length: int) -> float:
    """Walk on at random to as many states and return the published value, its lookup of the wrong token included."""
    states = list(states)
    while len(states) < length and (row := row_of(held, *states[-1])):
        aim = next(random) * sum(weight for _, weight in row)
        sums = list(accumulate(weight for _, weight in row))
        chosen = next(i for i, below in enumerate(sums) if aim < below)
        states.append((states[-1][1], row[chosen][0]))
    return 1 + sum(dict(row_of(held, *here)).get(there[0], 0) / 1300 for here, there in pairwise(states))


def literal_search(held: TrigramTable, before: int, root: int, seed: int, settings: AdedPaperSettings) -> Node:
    """Run PUCT as described."""
    random = uniform_numbers(seed)
    top = Node((before, root))

    def promise(child: Node, above: int) -> float:
        if not child.visits:
            return math.inf
        bonus = (settings.c1 + math.log((above + settings.c2 + 1) / settings.c2)) * math.sqrt(above)
        return child.score / child.visits + bonus * child.prior / (1 + child.visits)

    for _ in range(settings.iterations):
        path = [top]
        while path[-1].children and len(path) < settings.depth + 1:
            above = path[-1].visits
            path.append(max(path[-1].children, key=lambda child, above=above: promise(child, above)))
        if len(path) < settings.depth + 1:
            a, b = path[-1].state
            path[-1].children = [Node((b, c), weight / 1300) for c, weight in row_of(held, a, b)]
            path += path[-1].children[-1:]
        value = rolled_out(held, [node.state for node in path], random, settings.depth + 1)
        for node in path:
            node.visits += 1
            node.score += value
    return top


def in_pre_order(node: Node, parent: int = -1) -> list[tuple[int, int, int]]:
    """Return token, parent's place and visits of every node."""
    listed: list[tuple[int, int, int]] = []

    def add(node: Node, parent: int) -> None:
        listed.append((node.state[1], parent, node.visits))
        place = len(listed) - 1
        for child in node.children:
            add(child, place)

    add(node, parent)
    return listed


@pytest.mark.parametrize(
    "settings",
    [PAPER, AdedPaperSettings(iterations=60, c1=1.814, c2=19.0, depth=5)],
    ids=["published", "other constants"],
)
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("repeats", [False, True], ids=["every value 1", "other values"])
def test_search_is_the_published_one(seed: int, repeats: bool, settings: AdedPaperSettings) -> None:
    """Node by node the visits are those of the algorithm as described: selection, expansion, roll-out, constants."""
    vocabulary = 3 + 4 * (seed % 4)
    held = table(PAPER_RULE)
    text = stream(seed, 40 + 200 * (seed % 3), vocabulary)
    if repeats:
        text = np.random.default_rng(seed).zipf(1.6, 800).astype(np.int32) % vocabulary
    held.learn(text)
    before, root = int(text[20]), int(text[21])
    levels = held.young, held.old, held.base
    found = puct.puct(*levels, before, root, PAPER_RULE, settings.search(), np.array([seed], np.uint64))
    expected = in_pre_order(literal_search(held, before, root, seed, settings))
    assert list(zip(*(column.tolist() for column in found), strict=True)) == expected
    assert found[2][0] == settings.iterations


def test_search_of_repeated_tokens() -> None:
    """Where a token follows itself the published value is more than 1, and the search still keeps its bounds."""
    held = table(PAPER_RULE)
    held.learn(np.random.default_rng(1).integers(0, 3, 300).astype(np.int32))
    levels = held.young, held.old, held.base
    tokens, parents, visits = puct.puct(*levels, 1, 1, PAPER_RULE, PAPER.search(), np.array([9], np.uint64))
    assert len(tokens) == 1 + 3 + 9 + 27
    assert visits[0] == 150
    for node in range(len(tokens)):
        assert parents[node] < node
        assert visits[parents == node].sum() <= visits[node]


def test_paths_of_the_published_draft() -> None:
    """The most visited prefixes, each with one greedy token more, without repeats and without the root's own."""
    tokens, parents, visits = (np.array(column) for column in ([9, 1, 2, 3], [-1, 0, 1, 0], [10, 6, 5, 3]))
    asked = []

    def greedy(a: int, b: int) -> int | None:
        asked.append((a, b))
        return {(9, 1): 2, (1, 2): 7}.get((a, b))

    assert puct.select_published_paths(tokens, parents, visits, greedy, top=24) == [[1, 2], [1, 2, 7], [3]]
    assert asked == [(9, 1), (1, 2), (9, 3)]


def test_budget_of_the_published_draft() -> None:
    """Distinct tokens are summed over all paths, and whole paths go, the longest and first of them first."""
    tokens, parents, visits = [0], [-1], [99]
    for branch in range(12):
        above = 0
        for depth in range(3):
            tokens.append(100 * branch + depth)
            parents.append(above)
            visits.append(30 - branch)
            above = len(tokens) - 1
    columns = (np.array(column) for column in (tokens, parents, visits))
    paths = puct.select_published_paths(*columns, lambda _, b: b + 50, top=24)
    # The 23 most visited are 7 branches of 3 and 2 more nodes, lengthened by one: 7 * (2 + 3 + 4) + 2 + 3 = 68.
    assert sum(map(len, paths)) == 64
    assert [len(path) for path in paths] == [2, 3, *[2, 3, 4] * 6, 2, 3]


def test_only_the_end_of_the_prompt_is_learned() -> None:
    """As the official drafter after one call with 40 distinct ids: nothing follows (105, 106), something (130, 131)."""
    drafter = AdedPaperDrafter(vocabulary=1000)
    drafter.open(start(range(100, 140))).propose(budget(64))
    assert row_of(drafter._table, 105, 106) == []
    assert row_of(drafter._table, 130, 131) == [(132, 52)]
    assert drafter._table.successors == 14


def test_the_update() -> None:
    """Each drafting step adds 0.04 to the last 14 tri-grams, up to 3.0, in units of 1/1300."""
    drafter = AdedPaperDrafter(vocabulary=1000)
    session, random = drafter.open(start(range(100, 140))), np.ones(1, np.uint64)
    for step in range(1, 79):
        drafter.step(ids(range(124, 140)), random)
        assert row_of(drafter._table, 137, 138) == [(139, min(52 * step, 3900))]
    assert 0.04 * puct.SCALE == 52
    session.observe(committed(7))
    session.propose(budget(64))
    assert row_of(drafter._table, 138, 139) == [(7, 52)]
    # The window has moved on by one token.
    assert row_of(drafter._table, 124, 125) == [(126, 3900)]
    assert row_of(drafter._table, 125, 126) == [(127, 3900)]


def test_a_round_drafts_once() -> None:
    """Asked again, the session neither learns nor draws random numbers again, so the draft stays the same."""
    drafter = AdedPaperDrafter(vocabulary=1000)
    session = drafter.open(start(range(100, 140)))
    first = session.propose(budget(64))
    assert session.propose(budget(64)).tokens.tolist() == first.tokens.tolist()
    assert row_of(drafter._table, 137, 138) == [(139, 52)]


def test_the_fallback_where_nothing_is_known() -> None:
    """After a pair never seen the published code drafts token 100, in small vocabularies one that exists."""
    for vocabulary in (1000, 60):
        session = AdedPaperDrafter(vocabulary=vocabulary).open(start(range(30)))
        tree = session.propose(budget(64))
        assert tree.tokens.tolist() == [FALLBACK % vocabulary]
    assert FALLBACK == 100


@pytest.mark.parametrize("length", [0, 1])
def test_too_short_a_prompt(length: int) -> None:
    """Where the official drafter kills the process, nothing is drafted, and the next token mends it."""
    session = AdedPaperDrafter(vocabulary=1000).open(start(ids([5] * length)))
    assert len(session.propose(budget(64))) == 0
    session.observe(committed(6, 7))
    assert session.propose(budget(64)).tokens.tolist() == [FALLBACK]


def test_bounds_of_the_draft() -> None:
    """Drafts are at most 4 deep and 64 wide, siblings differ, and a smaller budget is their beginning."""
    for vocabulary in (2, 3, 6, 20):
        text = np.random.default_rng(vocabulary).integers(0, vocabulary, 600).astype(np.int32)
        drafter = AdedPaperDrafter(vocabulary=vocabulary)
        drafter._table.learn(text)
        session, other = (drafter.open(start(text[:30])) for _ in range(2))
        depths = set()
        for token in text[30:80].tolist():
            tree = session.propose(budget(1000))
            assert 1 <= len(tree) <= 64
            assert len(paths_of(tree)) == len(tree)
            depths.add(int(tree.depths().max()))
            session.observe(committed(token))
        assert max(depths) == 4
        assert len(other.propose(budget(3))) == 3
        assert len(other.propose(budget(0))) == 0


def test_same_seed_same_draft() -> None:
    """The roll-outs are seeded, so engines with several ranks draft the same trees; the seed does matter."""
    text = np.random.default_rng(2).integers(0, 3, 400).astype(np.int32)

    def drafts(seed: int) -> list[list[int]]:
        drafter = AdedPaperDrafter(vocabulary=3)
        session = drafter.open(SessionRequest(prompt=text[:50], seed=np.random.SeedSequence(seed)))
        listed = []
        for token in text[50:120].tolist():
            tree = session.propose(budget(64))
            listed.append([*tree.tokens.tolist(), *tree.parents.tolist()])
            session.observe(committed(token))
        return listed

    assert drafts(1) == drafts(1)
    assert drafts(1) != drafts(2)


def test_rows_of_a_corpus_are_probabilities_of_the_twelve_best() -> None:
    """Guards the initial matrix: a row seen once weighs as much as one seen often, and a cut row less."""
    counter = TrigramCounter(40)
    for text in ([1, 2, 3], *[[1, 4, token] for token in range(20)], *[[1, 5, 6]] * 300):
        counter.add(text)
    held = table(PAPER_RULE, base=counter.table())
    assert row_of(held, 1, 2) == [(3, puct.SCALE)]
    assert row_of(held, 1, 5) == [(6, puct.SCALE)]
    cut = row_of(held, 1, 4)
    assert len(cut) == 12
    assert sum(weight for _, weight in cut) == pytest.approx(12 / 20 * puct.SCALE, rel=0.03)


def test_constants_are_settings() -> None:
    """For ablations: no adaptation, another window, step and cap, fewer successors, shorter and fewer paths."""
    still = AdedPaperDrafter(vocabulary=1000, settings=AdedPaperSettings(step=0))
    still.open(start(range(100, 140))).propose(budget(64))
    assert still._table.successors == 0
    other = AdedPaperDrafter(vocabulary=1000, settings=AdedPaperSettings(step=0.5, window=5, cap=0.8))
    session = other.open(start(range(100, 140)))
    session.propose(budget(64))
    assert other._table.successors == 3
    session.observe(committed(7))
    session.propose(budget(64))
    assert row_of(other._table, 136, 137) == [(138, round(0.8 * puct.SCALE))]
    text = np.random.default_rng(1).integers(0, 6, 600).astype(np.int32)
    narrow = AdedPaperDrafter(vocabulary=6, settings=AdedPaperSettings(depth=1, paths=3))
    narrow._table.learn(text)
    tree = narrow.open(start(text[:30])).propose(budget(64))
    assert len(tree) <= 4
    assert tree.depths().max() == 2


@pytest.mark.parametrize("wrong", [{"step": -0.1}, {"step": 1e-5}, {"cap": 7}, {"window": 2}, {"c2": 0}, {"paths": 1}])
def test_constants_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    """A weight that the table cannot hold, or a window without a tri-gram, is an error that names the setting."""
    with pytest.raises(UsageError, match=next(iter(wrong))):
        AdedPaperSettings(**wrong)
