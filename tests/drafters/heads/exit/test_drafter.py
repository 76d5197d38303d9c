"""Drafts of an early exit: compiled code and the shape agree on which tokens are worth reading."""

from __future__ import annotations

from typing import Any

from speculant import Speculator
from speculant.api.heads import open_head
from speculant.api.loading import bundled_heads, load_model
from speculant.core.drafter import Budget
from speculant.core.tree import DraftTree
from speculant.drafters.heads.exit.drafter import ExitDrafter


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
