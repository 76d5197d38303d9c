"""Drafting with GLIDE: chains, trees, and chains widened where the head is not confident (CaPE)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree, Float64
from speculant.drafters.heads.drafter import HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.models.shapes import MAX_PASSES, Candidate, Level, Shape, draw_below, width_at
from speculant.drafters.models.tree_acceptance import LevelAcceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class GlideSettings(HeadSettings):
    """Settings of `glide`; see `HeadSettings`.

    Attributes:
        tree: "cape" for a chain with siblings where confidence is low, "chain" or "dynamic".
        depth: maximum levels of a draft; the authors train blocks of 5.
    """

    tree: str = "cape"
    depth: int = 5


class GlideDrafter(HeadDrafter):
    """Drafter of the method `glide`; see `GlideSettings`."""

    def __init__(self, head: LoadedHead, *, settings: GlideSettings | None = None, sampled: bool = False) -> None:
        """Set up the head; see `HeadDrafter`."""
        self._chosen = settings or GlideSettings()
        super().__init__(head, settings=self._chosen, sampled=sampled)

    def _shape(self) -> Shape:
        if self._chosen.tree == "cape":
            return ConfidenceWidths(self._acceptance, self._chosen.depth)
        return super()._shape()


class ConfidenceWidths(Shape):
    """CaPE: 7, 5, 3 or 1 candidates if the best one's probability is up to 0.3, 0.6, 0.8 or 1; the chain follows it."""

    drawn: Literal["iid", "distinct"] = "iid"
    choosing = True

    def __init__(self, acceptance: LevelAcceptance, depth: int) -> None:
        """Set the limits.

        Args:
            acceptance: acceptance statistics shared by all requests.
            depth: maximum number of levels.
        """
        if not 1 <= depth <= MAX_PASSES:
            raise UsageError(f"depth must be from 1 to {MAX_PASSES}, not {depth}.")
        self.passes, self._acceptance, self._grown = depth, acceptance, 0

    def expand(self, level: Level) -> list[Candidate]:
        level, self._grown = replace(level, sampled=False), level.depth
        confidence = float(level.q[0].max())
        return draw_below(level, 0, width_at(confidence), distinct=True)

    def select(self, weights: Sequence[float]) -> list[int]:
        return [0]

    def forecast(self, nodes: int) -> Float64:
        return self._acceptance.gains(self.passes)

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        self._acceptance.observe(self._grown, len(path))
