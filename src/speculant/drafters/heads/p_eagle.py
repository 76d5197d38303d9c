"""P-EAGLE: an EAGLE-3 head that drafts all depths in one pass, from mask tokens (vllm-project/speculators, peagle).

Depth d > 0 is a row at position i + d below the last committed row i: it reads the embedding of the mask token and a
trained state, `mask_hidden`, in place of the target's, and attends to all committed rows and to the mask rows above it.
No depth depends on a drafted token, so all nodes of a level have the same distribution.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from speculant.drafters.heads.eagle3 import Eagle3Head, Eagle3Shape
from speculant.drafters.heads.feature_state import FeatureState
from speculant.drafters.heads.head import Head, HeadState, TargetParts
from speculant.drafters.models.shapes import GrowthPlan


class PEagleHead(Eagle3Head):
    """The weights of EAGLE-3 and `mask_hidden`."""

    depth: int
    extend_all, grow_all = Head.extend_all, Head.grow_all  # drafts grow without steps

    def __init__(self, shape: Eagle3Shape, *, mask_token: int, depth: int, ids: Tensor | None = None) -> None:
        """Build a head with random weights.

        Args:
            shape: of the head.
            mask_token: what the rows below the last committed one read.
            depth: how many tokens it drafts.
            ids: Int64[V'], the target's tokens that it can draft; None for all.
        """
        super().__init__(shape, ids=ids)
        self.mask_token, self.depth = mask_token, depth
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, len(shape.taps) * shape.target_hidden))

    def open(self, first: int, target: TargetParts) -> HeadState:
        return PEagleState(self, target, first)


class PEagleState(FeatureState):
    """One text."""

    def __init__(self, head: PEagleHead, target: TargetParts, first: int) -> None:
        super().__init__(head, target, first)
        self._masked = head
        self._levels: Tensor | None = None  # [depth, V'], the logits of every depth
        self._depths: list[int] = []  # of the draft's nodes, 0 below the root

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        super().extend(hidden, following)
        self._levels, self._depths = None, []

    def start(self) -> Tensor:
        return self._of_depths([0])

    def grow_whole(self, plan: GrowthPlan, temperature: float) -> None:
        """Nothing grows level by level."""

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        depths = list[int]()
        for row in above:
            depths.append(1 if row < 0 else self._depths[row] + 1)
        self._depths += depths
        return self._of_depths(depths)

    def drop(self) -> None:
        super().drop()
        self._depths = []

    def crop(self, length: int) -> None:
        super().crop(length)
        self._levels, self._depths = None, []

    def _of_depths(self, depths: Sequence[int]) -> Tensor:
        """Return the logits [n, V'] after nodes of these depths, the root's being 0."""
        if self._levels is None:
            self._levels = self._run_masks()
        return self._levels[list(depths)]

    def _run_masks(self) -> Tensor:
        head, rows = self._masked, self._masked.depth - 1
        root = super().start()
        if not rows:
            return root
        features = head.fused(head.mask_hidden[0])
        new = self.branch(range(-1, rows - 1), features)
        embeddings = head.embed(torch.full((rows,), head.mask_token, device=root.device), self.target)
        [found] = self.run(embeddings, [new])
        self.cache.drop()
        return torch.cat([root, found])
