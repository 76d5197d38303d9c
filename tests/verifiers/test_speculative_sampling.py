"""Speculative sampling: exact by enumeration of every draft and every draw, on random models of three tokens."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from samplers import Branches, EnumeratingSampler, Text, enumerate_outcomes, rows_of
from speculant.core.engine import Pass
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree, Proposal
from speculant.core.verifier import Walk
from speculant.verifiers.speculative_sampling import SpeculativeSampling, accepts, residual
from trees import make_tree

VOCABULARY, LENGTH = 3, 4
Float64 = npt.NDArray[np.float64]
Table = dict[Text, Float64]


def model(seed: int, make: Callable[[np.random.Generator], Float64]) -> Table:
    """Return a distribution after every text of at most LENGTH tokens."""
    return {
        text: make(np.random.default_rng([seed, length, *text]))
        for length in range(LENGTH + 1)
        for text in itertools.product(range(VOCABULARY), repeat=length)
    }


def dense(random: np.random.Generator) -> Float64:
    return random.dirichlet([0.7] * VOCABULARY)


def sparse(random: np.random.Generator) -> Float64:
    """Return a distribution with one or two zeros, as top-k and top-p make them."""
    law = random.dirichlet([0.7] * VOCABULARY) * (random.permutation(VOCABULARY) < random.integers(1, VOCABULARY))
    return np.asarray(law / law.sum(), np.float64)


def one_hot(random: np.random.Generator) -> Float64:
    return np.asarray(np.eye(VOCABULARY)[random.integers(VOCABULARY)])


def disjoint(p: Table) -> Table:
    """Return distributions that never propose what p allows; p must have zeros."""
    return {text: np.asarray((law == 0) / (law == 0).sum()) for text, law in p.items()}


def draft(q: Table, text: Text, length: int, branches: Branches, *, chosen: Callable[[int], bool]) -> DraftTree:
    """Return a chain: nodes that are chosen hold q's best token, others are drawn from q."""
    tokens: list[int] = []
    rows: list[Float64] = []
    for depth in range(length):
        law = q[text + tuple(tokens)]
        rows.append(law)
        tokens.append(int(law.argmax()) if chosen(depth) else branches.take(law.tolist()))
    tree = make_tree(tokens, range(-1, length - 1))
    marks = np.array([chosen(depth) for depth in range(length)], bool)
    if marks.all():
        return tree
    return DraftTree(tree.tokens, tree.parents, tree.weights, Proposal(np.stack(rows), chosen=marks))


def texts(
    p: Table, q: Table, length: int, *, chosen: Callable[[int], bool] = lambda _: False, end: int | None = None
) -> dict[Text, float]:
    """Return the exact distribution of texts of LENGTH tokens, or until `end`, over all drafts and draws."""

    def decode(branches: Branches) -> Text:
        sampler, verifier = EnumeratingSampler(p.__getitem__, branches, length=LENGTH, end=end), SpeculativeSampling()
        ended = False
        while not ended:
            before = len(sampler.tokens)
            tree = draft(q, tuple(sampler.tokens), min(length, sampler.room - 1), branches, chosen=chosen)
            prepared = verifier.prepare(tree, Pass(logits=rows_of(tree, tuple(sampler.tokens))), sampler)
            walk = verifier.walk(tree, prepared, sampler)
            assert sampler.tokens[before:] == walk.tokens
            assert len(walk.tokens) == len(walk.path) + 1
            ended = walk.ended
        return tuple(sampler.tokens)

    found: dict[Text, float] = defaultdict(float)
    for text, probability in enumerate_outcomes(decode):
        found[text] += probability
    return found


def check(found: dict[Text, float], p: Table) -> None:
    """Compare with the target's own probabilities of these texts."""
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    for text, probability in found.items():
        expected = math.prod(float(p[text[:i]][token]) for i, token in enumerate(text))
        assert probability == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "case", ["random", "zeros in q", "zeros in p", "zeros in both", "equal", "disjoint", "one-hot"]
)
def test_exact(case: str, seed: int, length: int) -> None:
    """Whatever q is, each text comes out with exactly the target's probability."""
    p = model(seed, sparse if case in ("zeros in p", "zeros in both", "disjoint") else dense)
    kinds = {"zeros in q": sparse, "zeros in both": sparse, "one-hot": one_hot}
    q = p if case == "equal" else disjoint(p) if case == "disjoint" else model(seed + 9, kinds.get(case, dense))
    check(texts(p, q, length), p)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("chosen", [lambda _: True, lambda depth: depth % 2 == 0, lambda depth: depth % 2 == 1])
def test_chosen_nodes_are_exact(length: int, chosen: Callable[[int], bool]) -> None:
    """Drafts of chosen tokens, alone or among sampled ones, are accepted with p and leave p without them."""
    p, q = model(3, dense), model(4, dense)
    check(texts(p, q, length, chosen=chosen), p)


@pytest.mark.parametrize("chosen", [lambda _: False, lambda _: True])
def test_texts_that_end_inside_the_draft_are_exact(chosen: Callable[[int], bool]) -> None:
    """A stop token cuts the text, in a sampled node and in a chosen one, without changing how often it comes."""
    p, q = model(5, dense), model(6, dense)
    found = texts(p, q, 3, chosen=chosen, end=2)
    assert any(len(text) < LENGTH for text in found)
    check(found, p)


def test_one_hot_drafts_are_not_treated_as_sampled() -> None:
    """A chosen token is accepted with p, not with p / q of a distribution it was never drawn from."""
    p, q = model(3, dense), model(4, dense)
    tree = make_tree([int(q[()].argmax())], [-1])

    def accepted(branches: Branches) -> bool:
        sampler = EnumeratingSampler(p.__getitem__, branches, length=9)
        sampler.load(rows_of(tree, ()))
        marked = DraftTree(tree.tokens, tree.parents, tree.weights, Proposal(q[()][None], chosen=np.array([True])))
        return bool(SpeculativeSampling().walk(marked, None, sampler).path)

    rate = sum(probability for taken, probability in enumerate_outcomes(accepted) if taken)
    assert rate == pytest.approx(float(p[()][tree.tokens[0]]), abs=1e-12)


@pytest.mark.parametrize("chosen", [lambda _: False, lambda _: True])
def test_greedy_is_the_chain_of_the_argmax(chosen: Callable[[int], bool]) -> None:
    """Where p is one-hot there is one outcome: the target's best token after each prefix, whatever was drafted."""
    p, q = model(7, one_hot), model(8, dense)
    text: Text = ()
    while len(text) < LENGTH:
        text += (int(p[text].argmax()),)
    found = {text: probability for text, probability in texts(p, q, 3, chosen=chosen).items() if probability}
    assert found == {text: pytest.approx(1, abs=1e-12)}


def test_an_end_inside_the_draft_is_the_targets_own() -> None:
    """The last token of the text belongs to the target, so a round always commits one token more than it accepts."""
    law = np.eye(3)
    sampler = EnumeratingSampler(lambda text: law[1] if text else law[0], Branches([]), length=9, end=1)
    tree = make_tree([0, 1, 2], [-1, 0, 1])
    sampler.load(rows_of(tree, ()))
    assert SpeculativeSampling().walk(tree, None, sampler) == Walk([0], [0, 1], True)


def test_residual() -> None:
    """What p has above q; where rounding leaves nothing, p itself, so that a token can always be drawn."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.3, 0.1])
    assert residual(p, q) == pytest.approx([0, 0, 0.1])
    assert residual(p, p) is p
    assert residual(p, p + 1e-17) is p


def test_the_ratio_is_not_taken_in_bfloat16() -> None:
    """Guards p / q between bfloat16's steps: 1 / 257 apart there, equal after rounding, so never rejected."""
    p, q = torch.tensor(0.3).item(), torch.tensor(0.3008).item()
    assert torch.tensor(p).bfloat16() == torch.tensor(q).bfloat16()

    class Last:
        """Draws the largest number below 1 that a stream yields."""

        def uniform(self) -> float:
            return 1 - 2**-53

    assert not accepts(p, q, Last())  # type: ignore[arg-type]


def test_distributions_of_the_drafters_type_become_the_targets() -> None:
    """Guards q in bfloat16 or on another device: the walk compares it in p's type."""
    tokens = make_tree([0], [-1])
    q = torch.tensor([[0.25, 0.5, 0.25]], dtype=torch.bfloat16)
    tree = DraftTree(tokens.tokens, tokens.parents, tokens.weights, Proposal(q))
    p = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)

    class Sampler(EnumeratingSampler):
        def distribution(self, row: int) -> torch.Tensor:
            return p

        def sample(self, distribution: torch.Tensor) -> int:
            assert distribution.dtype == torch.float64
            return 1

    assert SpeculativeSampling().walk(tree, None, Sampler(lambda _: [1, 0, 0], Branches([]), length=9)).path == [0]


def test_branches_are_refused() -> None:
    """The rule is for chains; a tree is refused rather than walked as one."""
    with pytest.raises(UnsupportedError, match="branches"):
        SpeculativeSampling().prepare(
            make_tree([0, 1], [-1, -1]),
            Pass(logits=None),
            EnumeratingSampler(lambda _: [1, 0, 0], Branches([]), length=9),
        )
