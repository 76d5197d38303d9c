"""Drafts by an early exit: chains that end where the adapter is unsure, and trees.

Double early exiting (Liu et al. 2024, arXiv 2404.18911, section 3.3): drafting runs the target's first layers only, and
ends where the adapter gives no token the probability `threshold`. The authors still draft that token. Here it is left
out if tokens are chosen: verification continues from the rows of the first layers, and an unread token would need a
pass of its own through them, which takes longer than so improbable a token gains.
"""

from __future__ import annotations

from dataclasses import dataclass

from speculant.core.errors import UsageError
from speculant.drafters.heads.drafter import HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.layers.stopping import ConfidenceChain, PayingChain
from speculant.drafters.models.shapes import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitSettings(HeadSettings):
    """Settings of `kangaroo`; see `HeadSettings`.

    Attributes:
        tree: "sure" for a chain that ends where the adapter is unsure, "chain" or "dynamic".
        depth: maximum tokens of a chain, or levels of a tree; the authors draft 6.
        threshold: a chain ends where no token has this probability; 0.6 for the authors' models.
    """

    tree: str = "sure"
    depth: int = 6
    threshold: float = 0.2


class ExitDrafter(HeadDrafter):
    """See `ExitSettings`."""

    def __init__(self, head: LoadedHead, *, settings: ExitSettings | None = None, sampled: bool = False) -> None:
        """Create the drafter; see `HeadDrafter`."""
        self._chosen = settings or ExitSettings()
        super().__init__(head, settings=self._chosen, sampled=sampled)

    def _shape(self) -> Shape:
        s = self._chosen
        if s.tree == "static":
            raise UsageError("tree must be sure, chain or dynamic for an early exit, not 'static'.")
        if s.tree != "sure":
            return super()._shape()
        if self._sampled:
            return ConfidenceChain(self._acceptance, threshold=s.threshold, longest=s.depth, adaptive=False)
        return PayingChain(self._gains, threshold=s.threshold, longest=s.depth)
