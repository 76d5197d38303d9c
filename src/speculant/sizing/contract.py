"""What a round asks of a policy of sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from speculant.core.tree import DraftTree, Float64
from speculant.core.verifier import Walk

Forecast = Callable[[int], Float64 | None]


class SizingState(Protocol):
    """What a policy keeps of one sequence: opaque to the round, but for what the round reads before it drafts.

    Attributes:
        depth: how deep the draft of this round may be.
        level_price, start_price, node_price: what a further level of this round's draft, drafting by levels at all, and
            a further node have to gain.
        rest: rounds that ask for no draft, this one included; 0 where it asks for one.
    """

    @property
    def depth(self) -> int: ...

    @property
    def level_price(self) -> float: ...

    @property
    def start_price(self) -> float: ...

    @property
    def node_price(self) -> float: ...

    @property
    def rest(self) -> int: ...


class Sizing(Protocol):
    """Decides how many nodes the rounds of one or many sequences draft. States are those that its `open` returned."""

    def open(self, forecast: Forecast | None = None, *, plain: bool = False) -> SizingState:
        """Return the state of a new sequence, whose drafting session may forecast what drafts gain.

        Those that are decoded plainly are never asked for a draft, and say nothing of drafts.
        """

    def nodes(self, states: Sequence[Any]) -> list[int]:
        """Return the most nodes to ask the drafter for, for each sequence; 0 where it need not draft.

        How deep drafts may be is then in `SizingState.depth`.
        """

    def trim(self, states: Sequence[Any], drafts: Sequence[DraftTree]) -> list[DraftTree]:
        """Return the parts of the drafts that one pass verifies; only chosen nodes are dropped, from the end."""

    def observe(
        self,
        states: Sequence[Any],
        drafts: Sequence[DraftTree],
        walks: Sequence[Walk],
        *,
        target_seconds: float,
        draft_seconds: float,
    ) -> None:
        """Learn from a round: its drafts, what was committed, and the seconds of the pass and of drafting."""

    def reason(self, state: Any) -> str:
        """Return one sentence on why a sequence's drafts had the sizes they had; empty if there is nothing to say."""
