"""P-EAGLE: an EAGLE-3 head that drafts all depths in one pass, from mask tokens (vllm-project/speculators, peagle).

Depth d > 0 is a row at position i + d below the last committed row i: it reads the embedding of the mask token and a
trained state, `mask_hidden`, instead of the target's, and attends to all committed rows and to the mask rows above it.
No depth depends on a drafted token, so all nodes of a level have the same distribution.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from speculant.drafters.heads.eagle3.head import Eagle3Head, Eagle3Shape
from speculant.drafters.heads.feature_rows import NewFeatureRows
from speculant.drafters.heads.feature_state import FeatureState
from speculant.drafters.heads.head import HeadState, TargetParts
from speculant.drafters.heads.step import GrownDraft
from speculant.drafters.models.shapes import GrowthPlan


class PEagleHead(Eagle3Head):
    """The weights of EAGLE-3, plus `mask_hidden`."""

    depth: int
    parallel = True

    def __init__(self, shape: Eagle3Shape, *, mask_token: int, depth: int, ids: Tensor | None = None) -> None:
        """Build a head with random weights.

        Args:
            shape: shape of the head.
            mask_token: token that the rows below the last committed one read.
            depth: number of tokens it drafts.
            ids: Int64[V'], target tokens that it can draft; None for all.
        """
        super().__init__(shape, ids=ids)
        self.mask_token, self.depth = mask_token, depth
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, len(shape.taps) * shape.target_hidden))

    def open(self, first: int, target: TargetParts) -> HeadState:
        return PEagleState(self, target, first)

    def start_all(self, states: Sequence[HeadState]) -> list[Tensor]:
        return logits_at(_select_own(states), [[0]] * len(states))

    def grow_all(
        self, states: Sequence[HeadState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        own = _select_own(states)
        return logits_at(own, [state.add_nodes(rows) for state, rows in zip(own, above, strict=True)])

    def grow_whole_all(
        self, states: Sequence[HeadState], plans: Sequence[GrowthPlan], temperatures: Sequence[float]
    ) -> list[GrownDraft | None]:
        return [None] * len(states)  # no draft grows in steps

    def level_logits(self, states: Sequence[HeadState], levels: int) -> list[Tensor]:
        return logits_at(_select_own(states), [range(levels)] * len(states))


class PEagleState(FeatureState):
    """State of one text.

    Attributes:
        levels: [depth, V'], logits of every depth; None until they are needed.
    """

    def __init__(self, head: PEagleHead, target: TargetParts, first: int) -> None:
        super().__init__(head, target, first)
        self._masked = head
        self.levels: Tensor | None = None
        self._depths: list[int] = []  # of the draft's nodes, 1 for children of the root

    def take_root(self, logits: Tensor) -> None:
        super().take_root(logits)
        self.levels, self._depths = None, []

    def start(self) -> Tensor:
        [logits] = logits_at([self], [[0]])
        return logits

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        [logits] = logits_at([self], [self.add_nodes(above)])
        return logits

    def add_nodes(self, above: Sequence[int]) -> list[int]:
        """Add nodes below the given parents, -1 for the root; return their depths, 1 for children of the root."""
        depths = list[int]()
        for row in above:
            depths.append(1 if row < 0 else self._depths[row] + 1)
        self._depths += depths
        return depths

    def drop(self) -> None:
        super().drop()
        self._depths = []

    def crop(self, length: int) -> None:
        super().crop(length)
        self.levels, self._depths = None, []

    def add_masks(self) -> NewFeatureRows:
        """Reserve the rows of the masks."""
        return self.branch(range(-1, self._masked.depth - 2), self._masked.fuse_states(self._masked.mask_hidden[0]))


def logits_at(states: Sequence[PEagleState], depths: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return, for each text of one head, the logits [n, V'] after nodes at the given depths, 0 for the root."""
    lacking = [state for state in states if state.levels is None]
    if lacking:
        head, first = lacking[0]._masked, lacking[0]
        roots, rows = [FeatureState.start(state) for state in lacking], head.depth - 1
        found = [root[:0] for root in roots]
        if rows:
            masks = torch.full((rows * len(lacking),), head.mask_token, device=roots[0].device)
            found = first.run(head.embed(masks, first.target), [state.add_masks() for state in lacking])
        for state, root, own in zip(lacking, roots, found, strict=True):
            state.cache.drop()
            state.levels = torch.cat([root, own])
    answers = list[Tensor]()
    for state, wanted in zip(states, depths, strict=True):
        assert state.levels is not None
        answers.append(state.levels[list(wanted)])
    return answers


def _select_own(states: Sequence[HeadState]) -> list[PEagleState]:
    return [state for state in states if isinstance(state, PEagleState)]
