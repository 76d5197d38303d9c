"""Chains of a head's chain and a memory's tree: what is chosen and spliced, and what is learned."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from speculant.core.tree import DraftTree
from speculant.integrations.chain_union import AgreementHistory, ChainUnion


def tree(*paths: Sequence[int], p: float = 0.5) -> DraftTree:
    """Return a memory's tree whose tokens each have the probability p, given the one before."""
    prefixes = sorted({tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)}, key=len)
    return DraftTree.from_paths(prefixes, [p ** len(prefix) for prefix in prefixes])


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many of the first tokens are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def unite(
    union: ChainUnion, history: AgreementHistory, head: Sequence[int], memory: DraftTree, at: int = 0
) -> list[int]:
    """Return the tokens of the chain."""
    found = union.unite(history, at=at, head=head, memory=memory, maximum=5)
    assert len(found) <= 5
    assert (np.diff(found.weights) <= 0).all()
    assert found.parents.tolist() == list(range(-1, len(found) - 1))
    return found.tokens.tolist()


def test_one_of_them_alone() -> None:
    """A chain of the only one that drafts, and none of neither."""
    union = ChainUnion()
    assert unite(union, AgreementHistory(), [1, 2, 3], DraftTree.empty()) == [1, 2, 3]
    assert unite(union, AgreementHistory(), [], tree([4, 5], [6])) == [4, 5]
    assert unite(union, AgreementHistory(), [], DraftTree.empty()) == []


def test_splice() -> None:
    """The head's first tokens choose the memory's branch, which then goes on beyond what both know."""
    memory = tree([1, 2, 3, 4, 5], [7, 8, 9, 10, 11], p=0.7)
    assert unite(ChainUnion(), AgreementHistory(), [7, 8, 30], memory) == [7, 8, 9, 10, 11]


def test_a_sure_memory_and_an_unsure_one() -> None:
    """A memory that is sure is followed, one that guesses is not."""
    sure, guess = tree([1, 2, 3, 4, 5], p=0.97), tree([1, 2, 3, 4, 5], p=0.1)
    assert unite(ChainUnion(), AgreementHistory(), [6, 7, 8, 9, 10], sure) == [1, 2, 3, 4, 5]
    assert unite(ChainUnion(), AgreementHistory(), [6, 7, 8, 9, 10], guess) == [6, 7, 8, 9, 10]


def test_learning_who_is_right() -> None:
    """The weights learn from drafts that were not chosen as well, across requests."""
    for right in ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]):
        union, text = ChainUnion(), list[int]()
        for _ in range(300):
            history = AgreementHistory()
            unite(union, history, [6, 7, 8, 9, 10], tree([1, 2, 3, 4, 5], p=0.5))
            union.observe(history, right, ended=True)
            assert not history.waiting
            text += right
        assert unite(union, AgreementHistory(), [6, 7, 8, 9, 10], tree([1, 2, 3, 4, 5], p=0.5)) == right


def test_candidates_wait_for_the_text() -> None:
    """Nothing is learned before the text has passed the deepest candidate, and what is there at its end."""
    union, history = ChainUnion(), AgreementHistory()
    unite(union, history, [6, 7, 8], tree([1, 2]), at=2)
    union.observe(history, [9, 9, 6, 7])
    assert len(history.waiting) == 1
    union.observe(history, [9, 9, 6, 7, 8])
    assert not history.waiting
    assert history.head > 0.75
    assert history.memory < 0.6
    unite(union, history, [6, 7, 8], tree([1, 2]), at=5)
    union.observe(history, [9, 9, 6, 7, 8, 6], ended=True)
    assert not history.waiting


def test_share_of_the_perfect_choice() -> None:
    """Where the memory's probabilities are calibrated, most of what a choice with foresight would gain is kept."""
    random, union = np.random.default_rng(0), ChainUnion()
    sums = dict.fromkeys(("head", "memory", "both", "perfect"), 0)
    for number in range(1500):
        p = float(random.choice([0.1, 0.5, 0.95]))
        text = list(range(100, 105))
        memory = [token if random.random() < p else token + 50 for token in text]
        head = [token if random.random() < 0.7 else token + 80 for token in text]
        history = AgreementHistory()
        chain = unite(union, history, head, tree(memory, p=p))
        union.observe(history, text, ended=True)
        if number >= 300:
            drafts = {"head": head, "memory": memory, "both": chain}
            found = {name: common(draft, text) for name, draft in drafts.items()}
            found["perfect"] = max(found["head"], found["memory"])
            sums = {name: sums[name] + found[name] for name in sums}
    single = max(sums["head"], sums["memory"])
    assert sums["both"] - single > 0.5 * (sums["perfect"] - single)


def test_keeping_them_apart() -> None:
    """For recordings that tell only the head's right tokens, equal tokens are no sign of agreement."""
    union = ChainUnion()
    found = union.unite(
        AgreementHistory(), at=0, head=[1, 2], memory=tree([1, 2, 3], p=0.05), maximum=5, agreeing=False
    )
    assert found.tokens.tolist() == [1, 2]
    agreeing = union.unite(AgreementHistory(), at=0, head=[1, 2], memory=tree([1, 2, 3], p=0.05), maximum=5)
    assert float(agreeing.weights[0]) != float(found.weights[0])
