"""Chains of an early exit: which tokens are worth reading."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from speculant import Speculator
from speculant.api.heads import open_head
from speculant.api.loading import bundled_heads, load_model
from speculant.core.drafter import Budget
from speculant.core.tree import DraftTree
from speculant.drafters.heads.exit.drafter import ExitDrafter, PaidChain
from speculant.drafters.models.shapes import Level
from speculant.drafters.models.tree_acceptance import LevelGains
from trees import chain


def level(depth: int, joint: float, best: float, price: float = 0.0) -> Level:
    """Return a level below one node of a joint probability, whose best token has another one."""
    q = torch.tensor([[best, 1 - best, 0.0]]) if best > 0.5 else torch.tensor([[best, *[(1 - best) / 9] * 9]])
    return Level(depth, q, [joint], 8, 8, False, False, torch.Generator(), price)


def shape(threshold: float = 0.3) -> PaidChain:
    return PaidChain(LevelGains(), threshold=threshold, longest=6)


def test_tokens_that_are_not_sure_are_left_out() -> None:
    """Guards the end of a chain: a token below the threshold is not drafted, the first one included."""
    assert shape().expand(level(1, 1.0, 0.2)) == []
    [found] = shape().expand(level(1, 1.0, 0.6))
    assert (found.token, found.probability) == (0, pytest.approx(0.6))


def test_tokens_have_to_pay_for_their_level() -> None:
    """Guards automatic sizes: a token is read if its joint probability, as corrected, is above the price of a level."""
    own, price = shape(), 0.3
    assert own.expand(level(2, 0.9, 0.6, price))  # 0.54 of a token, of which 0.7 are believed at first
    assert not own.expand(level(2, 0.9, 0.45, price))
    for _ in range(40):
        own.learn(chain(0.9, 0.5), [0, 1])  # deeper tokens are better than they look
    assert own.expand(level(2, 0.9, 0.45, price))
    for _ in range(200):
        own.learn(chain(0.9, 0.5), [0])
    assert not own.expand(level(2, 0.9, 0.6, price))


def test_both_codes_leave_out_the_same() -> None:
    """Guards compiled drafts by a price: those of the shape, and empty ones, which took the time of a level."""
    model, tokenizer = load_model(None, dtype="float32", device="cpu")
    folder = next(each for each in bundled_heads() if each.name == "exit")
    for threshold, price in ((0.0, 0.0), (0.0, 0.4), (1.0, 0.0)):
        drafts = [draft_of((model, tokenizer), folder, fast, threshold, price) for fast in (True, False)]
        assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
        assert (len(drafts[0]) == 0) == (threshold == 1.0)
        assert len(drafts[0]) < 4 or not price
        assert len(drafts[0]) or [each.levels for each in drafts] == [1, 1]


def draft_of(pair: tuple[Any, Any], folder: Any, fast: bool, threshold: float, price: float) -> DraftTree:
    """Return the first draft below a prompt, with a price of levels."""
    found = list[DraftTree]()
    settings = {"threshold": threshold, "depth": 4}
    own = Speculator.from_transformers(
        *pair, method="kangaroo", head=open_head(folder, pair[0]), nodes=4, settings=settings, fast=fast
    )
    assert isinstance(own.drafter, ExitDrafter)
    propose = own.drafter.propose

    def priced(sessions: Any, budgets: list[Budget]) -> list[DraftTree]:
        nodes, depth = budgets[0].nodes, budgets[0].depth
        found.extend(propose(sessions, [Budget(nodes=nodes, depth=depth, level_price=price)]))
        return [DraftTree.empty() for _ in sessions]

    own.drafter.propose = priced  # type: ignore[method-assign]
    own.generate("Once upon a time there was a", max_new_tokens=7, temperature=0)
    return found[0]
