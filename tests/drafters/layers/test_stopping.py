"""Chains that end where the drafter is unsure: the published update, losslessness by enumeration, and prices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from distributions import Model, distribution_of_drafts, model, own_distribution
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree, Proposal
from speculant.drafters.layers.stopping import ConfidenceChain, PayingChain
from speculant.drafters.models.shapes import Level
from speculant.drafters.models.tree_acceptance import LevelAcceptance, LevelGains
from speculant.verifiers.speculative_sampling import SpeculativeSampling
from trees import chain, make_tree


def chain_of(length: int) -> DraftTree:
    """Return a chain."""
    return make_tree([4] * length, range(-1, length - 1))


def test_the_threshold_follows_the_published_update() -> None:
    """Guards the constants: up by a hundredth where fewer than 0.9 match, down else, smoothed; kept at full length."""
    shape = ConfidenceChain(LevelAcceptance(), threshold=0.8, longest=4, adaptive=True)
    shape.learn(chain_of(2), [0])
    assert (shape._matched, shape._threshold) == (0.25, pytest.approx(0.801))
    for matched, threshold in ((0.625, 0.802), (0.8125, 0.803), (0.90625, 0.802)):
        shape.learn(chain_of(2), [0, 1])
        assert (shape._matched, shape._threshold) == (matched, pytest.approx(threshold))
    shape.learn(chain_of(4), [0, 1, 2, 3])
    assert shape._threshold == pytest.approx(0.802)


def test_without_adaption_the_threshold_stays() -> None:
    """Guards SWIFT's fixed threshold."""
    shape = ConfidenceChain(LevelAcceptance(), threshold=0.8, longest=4, adaptive=False)
    shape.learn(chain_of(2), [])
    assert shape._threshold == 0.8


def test_the_token_after_which_a_chain_ends_is_drafted() -> None:
    """Guards that no pass is paid for in vain: its distribution draws a token, and no further one."""
    shape, generator = ConfidenceChain(LevelAcceptance(), threshold=0.5, longest=4, adaptive=True), torch.Generator()
    for q, level in ((torch.tensor([[0.6, 0.4, 0.0]]), [0]), (torch.tensor([[0.4, 0.3, 0.3]]), [])):
        found = shape.expand(Level(1, q, [1.0], 4, 4, False, False, generator))
        assert [each.token for each in found] == [0]
        assert shape.select([1.0]) == level


def drafts_of(shape: ConfidenceChain, q: Model) -> list[tuple[DraftTree, float]]:
    """Return every chain that the shape draws, with its probability."""
    found, open_ = list[tuple[DraftTree, float]](), [((), 1.0)]
    while open_:
        text, probability = open_.pop()
        distribution = torch.tensor(q(text))[None]
        shape.expand(Level(len(text) + 1, distribution, [1.0], 8, 8, False, True, torch.Generator()))
        goes_on = bool(shape.select([1.0])) and len(text) + 1 < shape.passes
        for token, chance in enumerate(q(text).tolist()):
            longer = (*text, token)
            if goes_on:
                open_.append((longer, probability * chance))
                continue
            tree = make_tree(list(longer), range(-1, len(text)))
            rows = torch.tensor(np.stack([q(longer[:i]) for i in range(len(longer) + 1)]))
            proposal = Proposal(rows)
            found.append((DraftTree(tree.tokens, tree.parents, tree.weights, proposal), probability * chance))
    return found


def test_the_stop_rule_is_lossless() -> None:
    """Guards exactness: chains that end where q is flat leave the output distribution as it is."""
    p, q = model(1), model(3)
    listed = drafts_of(ConfidenceChain(LevelAcceptance(), threshold=0.6, longest=3, adaptive=True), q)
    assert len({len(tree) for tree, _ in listed}) > 1
    assert sum(probability for _, probability in listed) == pytest.approx(1)
    exact, _ = distribution_of_drafts(SpeculativeSampling().rule, p, listed)
    assert exact == pytest.approx(own_distribution(p, 4), abs=1e-9)


def wide_drafts(shape: ConfidenceChain, q: Model) -> list[tuple[DraftTree, float]]:
    """Return every draft of a chain whose last token may have a sibling, with its probability."""
    found, open_ = list[tuple[DraftTree, float]](), [((), 1.0)]
    while open_:
        text, probability = open_.pop()
        distribution = q(text)
        level = Level(len(text) + 1, torch.tensor(distribution)[None], [1.0], 2, 8, True, True, torch.Generator())
        count = len(shape.expand(level))
        if shape.select([1.0]) and len(text) + 1 < shape.passes:
            assert count == 1
            open_ += [((*text, token), probability * chance) for token, chance in enumerate(distribution.tolist())]
            continue
        for one, first in enumerate(distribution.tolist()):
            for two, second in enumerate(distribution.tolist()) if count == 2 else [(-1, 1.0)]:
                if one == two:
                    continue
                tokens = [*text, one, two] if count == 2 else [*text, one]
                parents = [*range(-1, len(text)), *([len(text) - 1] if count == 2 else [])]
                tree = make_tree(tokens, parents)
                rows = torch.tensor(np.stack([q(text[:i]) for i in range(len(text) + 1)]))
                chance = probability * first * (second / (1 - first) if count == 2 else 1.0)
                proposal = Proposal(rows, shape.drawn)
                found.append((DraftTree(tree.tokens, tree.parents, tree.weights, proposal), chance))
    return found


def test_siblings_at_the_uncertain_end_are_lossless() -> None:
    """Guards SWIFT's widths: further candidates, drawn without replacement where the chain ends; exact enumeration."""
    p, q = model(1), model(3)
    shapes = [
        ConfidenceChain(LevelAcceptance(), threshold=0.6, longest=3, adaptive=False, wide=wide)
        for wide in (True, False)
    ]
    distributions = [distribution_of_drafts(SpeculativeSampling().rule, p, wide_drafts(shape, q)) for shape in shapes]
    for texts, _ in distributions:
        assert texts == pytest.approx(own_distribution(p, len(next(iter(texts)))), abs=1e-9)
    assert distributions[0][1] > distributions[1][1]


def test_a_wide_chain_counts_its_depth() -> None:
    """Guards what is learned: siblings are no further levels."""
    acceptance = LevelAcceptance()
    shape = ConfidenceChain(acceptance, threshold=0.6, longest=4, adaptive=False, wide=True)
    for _ in range(100):
        shape.learn(make_tree([1, 2, 3, 4], [-1, 0, 0, 0]), [0, 2])
    assert acceptance.gains(3)[1] > 1.9
    assert np.diff(acceptance.gains(3))[1] < 0.75


@pytest.mark.parametrize(("threshold", "longest"), [(1.1, 4), (-0.1, 4), (0.5, 0), (0.5, 65)])
def test_settings_out_of_range(threshold: float, longest: int) -> None:
    """Guards against chains that never end or never begin."""
    with pytest.raises(UsageError, match="must be from"):
        ConfidenceChain(LevelAcceptance(), threshold=threshold, longest=longest, adaptive=True)


def level_of(depth: int, joint: float, best: float, price: float = 0.0) -> Level:
    """Return a level below one node, given its joint probability and that of the best token."""
    q = torch.tensor([[best, 1 - best, 0.0]]) if best > 0.5 else torch.tensor([[best, *[(1 - best) / 9] * 9]])
    return Level(depth, q, [joint], 8, 8, False, False, torch.Generator(), price)


def paid_chain() -> PayingChain:
    return PayingChain(LevelGains(), threshold=0.3, longest=6)


def test_tokens_that_are_not_sure_are_left_out() -> None:
    """Guards the end of a chain: a token below the threshold is not drafted, the first one included."""
    assert paid_chain().expand(level_of(1, 1.0, 0.2)) == []
    [found] = paid_chain().expand(level_of(1, 1.0, 0.6))
    assert (found.token, found.probability) == (0, pytest.approx(0.6))


def test_tokens_have_to_pay_for_their_level() -> None:
    """Guards automatic sizes: a token is read if its joint probability, as corrected, is above the price of a level."""
    own, price = paid_chain(), 0.3
    assert own.expand(level_of(2, 0.9, 0.6, price))  # 0.54 of a token, of which 0.7 are believed at first
    assert not own.expand(level_of(2, 0.9, 0.45, price))
    for _ in range(40):
        own.learn(chain(0.9, 0.5), [0, 1])  # deeper tokens are better than they look
    assert own.expand(level_of(2, 0.9, 0.45, price))
    for _ in range(200):
        own.learn(chain(0.9, 0.5), [0])
    assert not own.expand(level_of(2, 0.9, 0.6, price))
