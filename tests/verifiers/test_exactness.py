"""Lossless rules keep the target's distribution: exact enumeration on random models of three tokens."""

from __future__ import annotations

from typing import Any

import pytest

from distributions import KINDS, SHAPES, Rule, distribution_of_rule, model, own_distribution
from pairwise import in_turn, paired
from speculant.verifiers.block import BlockVerification
from speculant.verifiers.k_seq import KSeq
from speculant.verifiers.speculative_sampling import SpeculativeSampling
from speculant.verifiers.thresholds import Blockwise, Lenience, Nucleus, Rollback, TopBeta, TypicalAcceptance
from speculant.verifiers.traversal import TraversalVerification

SAMPLING, TRAVERSAL, BLOCK, K_SEQ = SpeculativeSampling(), TraversalVerification(), BlockVerification(), KSeq()
CHAINS = [name for name in SHAPES if name.startswith("chain")]
ZEROS = [(False, False), (True, False), (False, True), (True, True)]  # in p and in q
CASES = [
    *paired([SAMPLING.rule], [*SHAPES], KINDS, ZEROS),
    *paired([TRAVERSAL.rule], [*SHAPES], KINDS, ZEROS),
    *paired([BLOCK.rule], CHAINS, KINDS, ZEROS),
    *paired([K_SEQ.rule], [*SHAPES], ["iid"], ZEROS),
]


def name_of(value: Any) -> str:
    """Return the name of a rule's class, or the value."""
    return type(value.__self__).__name__ if callable(value) else str(value)


@pytest.mark.parametrize(("rule", "shape", "kind", "zeros_in_p", "zeros_in_q"), CASES, ids=name_of)
def test_texts_have_the_targets_distribution(
    rule: Rule, shape: str, kind: str, zeros_in_p: bool, zeros_in_q: bool
) -> None:
    """Guards losslessness for every rule, shape and kind of draft, tokens that p or q rule out included."""
    p, q = model(1, zeros=zeros_in_p), model(2, zeros=zeros_in_q)
    texts, _ = distribution_of_rule(rule, p, q, SHAPES[shape], kind)
    length = len(next(iter(texts)))
    assert sum(texts.values()) == pytest.approx(1, abs=1e-9)
    assert texts == pytest.approx(own_distribution(p, length), abs=1e-9)


@pytest.mark.parametrize("rule", [SAMPLING.rule, TRAVERSAL.rule, BLOCK.rule], ids=name_of)
def test_a_drafter_that_is_the_target_is_always_accepted(rule: Rule) -> None:
    """Guards 0 / 0: with q = p nothing is left of p, every node of a chain is accepted, and the text is exact."""
    p = model(5)
    texts, accepted = distribution_of_rule(rule, p, p, SHAPES["chain of 3"], "iid")
    assert accepted == pytest.approx(3, abs=1e-9)
    assert texts == pytest.approx(own_distribution(p, 4), abs=1e-9)


@pytest.mark.parametrize(
    ("seed", "shape", "kind"),
    in_turn(range(6), [("chain of 3", "iid"), ("chain of 3", "mixed"), ("2 x 2", "distinct")]),
)
def test_from_the_leaves_no_fewer_tokens_are_accepted(shape: str, kind: str, seed: int) -> None:
    """Guards block and traversal verification: on the same draft never behind a walk from the root."""
    p, q = model(seed), model(seed + 20)
    fewest = distribution_of_rule(SAMPLING.rule, p, q, SHAPES[shape], kind)[1]
    rules = [TRAVERSAL.rule, BLOCK.rule] if shape in CHAINS else [TRAVERSAL.rule]
    accepted = [distribution_of_rule(rule, p, q, SHAPES[shape], kind)[1] for rule in rules]
    assert min(accepted) >= fewest - 1e-9
    assert max(accepted) - min(accepted) < 1e-9  # on a chain they are one rule


@pytest.mark.parametrize("seed", range(4))
def test_several_candidates_are_accepted_more_often_than_one(seed: int) -> None:
    """Guards K-SEQ's scale: with one candidate it is speculative sampling, and every further one helps."""
    p, q = model(seed), model(seed + 20)
    one, two, three = (distribution_of_rule(K_SEQ.rule, p, q, [-1] * k, "iid")[1] for k in (1, 2, 3))
    assert one <= two <= three
    assert one == pytest.approx(distribution_of_rule(SAMPLING.rule, p, q, [-1], "iid")[1], abs=1e-9)


@pytest.mark.parametrize(
    "rule",
    [
        TypicalAcceptance().rule,
        TopBeta(beta=2).rule,
        Blockwise(k=2).rule,
        Blockwise(minimum=1).rule,
        Blockwise(distance=1).rule,
        Rollback(threshold=1.0).rule,
        Nucleus(top_p=0.6).rule,
        Lenience(lenience=0.4).rule,
    ],
    ids=name_of,
)
@pytest.mark.parametrize("shape", ["chain of 3", "2 x 2"])
def test_lossy_rules_are_lossy(rule: Rule, shape: str) -> None:
    """Guards the word: each of these changes the distribution, so none may be used unasked."""
    p, q = model(1), model(2)
    texts, _ = distribution_of_rule(rule, p, q, SHAPES[shape], "iid")
    own = own_distribution(p, len(next(iter(texts))))
    assert sum(texts.values()) == pytest.approx(1, abs=1e-9)
    assert max(abs(texts[text] - own[text]) for text in own) > 0.01


def test_lenience_of_one_is_lossless() -> None:
    """Guards the factor's direction: 1 is speculative sampling, less accepts more."""
    p, q = model(1), model(2)
    exact = distribution_of_rule(SAMPLING.rule, p, q, SHAPES["chain of 3"], "iid")
    assert distribution_of_rule(Lenience(lenience=1.0).rule, p, q, SHAPES["chain of 3"], "iid") == exact
    assert distribution_of_rule(Lenience(lenience=0.5).rule, p, q, SHAPES["chain of 3"], "iid")[1] > exact[1]
