"""Fixed sizing: the same maximum number of nodes in every pass, divided among its sequences."""

from __future__ import annotations

from collections.abc import Sequence

from speculant.core.drafter import SessionRequest
from speculant.core.tree import UNLIMITED, DraftTree
from speculant.core.verifier import Walk
from speculant.sizing.acceptance import AcceptanceModel
from speculant.sizing.contract import SizedSession
from speculant.sizing.division import cut_drafts, divide_nodes, gains_of
from speculant.sizing.state import SequenceSizing


class FixedSizing:
    """A sizing policy with the same maximum nodes and depth in every pass."""

    def __init__(self, nodes: int, *, depth: int = UNLIMITED) -> None:
        self._nodes, self._depth = nodes, depth

    def open(
        self,
        session: SizedSession | None = None,
        *,
        room: int = UNLIMITED,
        plain: bool = False,
        start: SessionRequest | None = None,
    ) -> SequenceSizing:
        return SequenceSizing(AcceptanceModel(), depth=self._depth, plain=plain)

    def nodes(self, states: Sequence[SequenceSizing]) -> list[int]:
        return [self._nodes for _ in states]

    def trim(self, states: Sequence[SequenceSizing], drafts: Sequence[DraftTree]) -> list[DraftTree]:
        if len(drafts) < 2:
            return list(drafts)
        gains = [gains_of(state, draft, None) for state, draft in zip(states, drafts, strict=True)]
        return cut_drafts(drafts, divide_nodes(gains, self._nodes))

    def observe(
        self,
        states: Sequence[SequenceSizing],
        drafts: Sequence[DraftTree],
        walks: Sequence[Walk],
        *,
        target_seconds: float,
        draft_seconds: float,
    ) -> None:
        if len(drafts) > 1:
            for state, draft, walk in zip(states, drafts, walks, strict=True):
                if len(draft):
                    state.acceptance.observe(draft, walk.path)

    def reason(self, state: SequenceSizing) -> str:
        return ""
