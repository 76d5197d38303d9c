"""Sample, then follow: walks, and losslessness by exact enumeration of everything that can be drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from samplers import Branches, EnumeratingSampler, ScriptedSampler, Text, enumerate_outcomes, rows_of
from speculant.core.engine import Pass
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree, Proposal
from speculant.core.verifier import Walk
from speculant.verifiers.sample_then_follow import SampleThenFollow
from trees import chain, make_tree, random_draft

VOCABULARY, LENGTH = 3, 4
Drafting = Callable[[Text], DraftTree]


def walk(tree: DraftTree, answers: list[int], end: int | None = None) -> tuple[Walk, list[int]]:
    """Follow the tree with scripted answers; return the rows asked for, too."""
    sampler = ScriptedSampler(answers, end=end)
    found = SampleThenFollow().walk(tree, None, sampler)
    assert sampler.tokens == found.tokens
    return found, sampler.rows


def test_follows_the_child_that_holds_the_token() -> None:
    """The walk goes from row to row along the target's tokens and ends where no child holds the next one."""
    tree = make_tree([1, 2, 1, 3, 2], [-1, -1, 1, 1, 3])
    assert walk(tree, [2, 3, 2, 7]) == (Walk([1, 3, 4], [2, 3, 2, 7], False), [0, 2, 4, 5])
    assert walk(tree, [2, 2]) == (Walk([1], [2, 2], False), [0, 2])
    assert walk(tree, [5]) == (Walk([], [5], False), [0])


def test_without_a_draft_one_token_is_drawn() -> None:
    """Plain decoding is the same walk over no nodes."""
    assert walk(DraftTree.empty(), [4]) == (Walk([], [4], False), [0])


def test_the_end_stops_the_walk_inside_the_draft() -> None:
    """Nothing is drawn after the end; the last token is the target's own even where the draft had it."""
    tree = make_tree([1, 9, 1], [-1, 0, 1])
    assert walk(tree, [1, 9], end=9) == (Walk([0], [1, 9], True), [0, 1])


def test_the_first_of_equal_siblings_is_followed() -> None:
    """A drafter that lists a token twice under a node still gets a deterministic path."""
    assert walk(make_tree([1, 1, 2], [-1, -1, 0]), [1, 2, 0])[0].path == [0, 2]


def test_tokens_drawn_on_the_device_reach_the_sampler() -> None:
    """What `prepare` asked the sampler to draw at once is handed back to it before the walk."""
    sampler = ScriptedSampler([3])
    SampleThenFollow().walk(chain(0.5), [3, 1], sampler)
    assert sampler.drawn == [3, 1]


def test_sampled_drafts_are_refused() -> None:
    """Following the target's own tokens through a sampled draft would waste its distributions."""
    tree = chain(0.5)
    tree = DraftTree(tree.tokens, tree.parents, tree.weights, Proposal(np.ones((1, 3)) / 3))
    with pytest.raises(UnsupportedError, match="sampled"):
        SampleThenFollow().prepare(tree, Pass(logits=None), ScriptedSampler([]))


def fixed(tokens: list[int], parents: list[int]) -> Drafting:
    """Draft the same tree in every round."""
    return lambda _: make_tree(tokens, parents)


def changing(text: Text) -> DraftTree:
    """Draft another tree after every text, as drafters that learn do."""
    return random_draft(np.random.default_rng([len(text), *text]), 6, VOCABULARY)


@pytest.mark.parametrize(
    "drafting",
    [
        fixed([], []),
        fixed([1], [-1]),
        fixed([0, 1, 2], [-1, -1, -1]),
        fixed([2, 0, 1, 1], [-1, 0, 1, 2]),
        fixed([0, 1, 0, 2, 1], [-1, -1, 0, 0, 1]),
        fixed([0, 0, 1], [-1, -1, 0]),
        fixed([0, 1, 2] * 4, [-1, -1, -1, 0, 0, 0, 1, 1, 1, 2, 2, 2]),
        changing,
    ],
    ids=["none", "one", "wide", "chain", "mixed", "twins", "all", "changing"],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_lossless(drafting: Drafting, seed: int) -> None:
    """Whatever is drafted, each text comes out with exactly the target's probability."""
    table: dict[Text, list[float]] = {}
    for length in range(LENGTH):
        for text in itertools.product(range(VOCABULARY), repeat=length):
            table[text] = np.random.default_rng([seed, length, *text]).dirichlet([0.7] * VOCABULARY).tolist()

    def decode(branches: Branches) -> Text:
        sampler, verifier = EnumeratingSampler(table.__getitem__, branches, length=LENGTH), SampleThenFollow()
        ended = False
        while not ended:
            tree, before = drafting(tuple(sampler.tokens)), len(sampler.tokens)
            rows = rows_of(tree, tuple(sampler.tokens))
            found = verifier.walk(tree, verifier.prepare(tree, Pass(logits=rows), sampler), sampler)
            assert found.tokens == sampler.tokens[before:]
            assert found.tokens[: len(found.path)] == tree.tokens[found.path].tolist()
            ended = found.ended
        return tuple(sampler.tokens)

    found = dict(enumerate_outcomes(decode))
    assert len(found) == VOCABULARY**LENGTH
    for text, probability in found.items():
        expected = math.prod(table[text[:i]][text[i]] for i in range(LENGTH))
        assert probability == pytest.approx(expected, abs=1e-12)
