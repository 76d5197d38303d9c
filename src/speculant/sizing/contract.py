"""The interface of a sizing policy, as a round uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from speculant.core.drafter import Budget, SessionRequest
from speculant.core.tree import UNLIMITED, DraftTree, Float64
from speculant.core.verifier import Walk


class SizedSession(Protocol):
    """What a policy asks of a sequence's session; see `core.drafter.Session`."""

    @property
    def selective(self) -> bool: ...

    def forecast(self, nodes: int) -> Float64 | None: ...

    def unread(self) -> int: ...


class SizingState(Protocol):
    """A policy's state of one sequence, opaque to the round."""

    @property
    def rest(self) -> int:
        """Number of rounds without a draft that remain, including this one; 0 if this round asks for one."""

    def make_budget(self, *, nodes: int, depth: int, trees: bool, queries: int, branches: int) -> Budget:
        """Return the budget of this round's draft, with the policy's own maximum depth and prices.

        Args:
            nodes: number of nodes that `Sizing.nodes` asked for, as far as the sequence has room.
            depth: maximum depth for which the sequence has room.
            trees, queries, branches: see `Budget`.
        """

    def close(self) -> None:
        """Note that the text has ended: by itself, by a stop string, or since nobody waits for it."""


class Sizing(Protocol):
    """Decides how many nodes to draft per round for one or more sequences, whose states its `open` returned."""

    def open(
        self,
        session: SizedSession | None = None,
        *,
        room: int = UNLIMITED,
        plain: bool = False,
        start: SessionRequest | None = None,
    ) -> SizingState:
        """Return the state of a new sequence.

        Args:
            session: its session; None if nothing is to be asked of it.
            room: maximum number of tokens that the text may gain.
            plain: whether the sequence is decoded without drafts; nothing about drafts is then learned from it.
            start: inputs of its session; None if nothing is known about its prompt.
        """

    def nodes(self, states: Sequence[Any]) -> list[int]:
        """Return the maximum number of nodes to ask the drafter for, for each sequence; 0 for no draft.

        Also sets the maximum depth and the prices of this round, which `SizingState.make_budget` returns.
        """

    def trim(self, states: Sequence[Any], drafts: Sequence[DraftTree]) -> list[DraftTree]:
        """Return the parts of the drafts to verify in one pass; only chosen nodes are dropped, from the end."""

    def observe(
        self,
        states: Sequence[Any],
        drafts: Sequence[DraftTree],
        walks: Sequence[Walk],
        *,
        target_seconds: float,
        draft_seconds: float,
    ) -> None:
        """Learn from a round: its drafts, the committed tokens, and the seconds of the pass and of drafting."""

    def reason(self, state: Any) -> str:
        """Return a sentence that explains the sizes of a sequence's drafts; empty if there is nothing to explain."""
