"""Medusa (Cai et al., ICML 2024, arXiv 2401.10774): heads in addition to the target's own, one for each depth.

Head i reads f, the target's newest state after the final norm, from which the root was drawn, and predicts the token
i + 1 positions after the root: n residual blocks, then its own output projection, one shared by all heads, or the
target's. Heads do not see each other's tokens, so all nodes of a level have the same candidates. Medusa-1 trains only
the heads, Medusa-2 also the target; they draft in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from speculant.core.engine import LAST_LAYER
from speculant.drafters.heads.head import HeadState, TargetParts
from speculant.drafters.heads.levels import LevelState, ParallelHead, ParallelState, newest_states
from speculant.drafters.heads.published_trees import find_published_tree
from speculant.drafters.heads.residual import repeat_block
from speculant.drafters.heads.static_tree import RankPath


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaShape:
    """The sizes of Medusa heads.

    Attributes:
        hidden: D.
        vocabulary: V', size of their output.
        heads: number of heads.
        blocks: residual blocks per head.
        shared: whether the blocks of a head are the same one, as in the authors' program.
        bias: whether blocks have biases.
        projection: "own" for one per head, "one" for one shared by all heads, "target" for the target's.
        scale: factor for the logits, vLLM's `logit_scale`.
    """

    hidden: int
    vocabulary: int
    heads: int
    blocks: int = 1
    shared: bool = True
    bias: bool = True
    projection: Literal["own", "one", "target"] = "own"
    scale: float = 1.0


class MedusaHead(nn.ModuleList, ParallelHead):
    """The weights, named as in the authors' checkpoints: `{head}.{block}.linear.weight`, `{head}.{blocks}.weight`."""

    taps = (LAST_LAYER,)
    depth: int
    paths: tuple[RankPath, ...]
    ids: Tensor | None

    def __init__(self, shape: MedusaShape, *, ids: Tensor | None = None) -> None:
        """Build heads that start as the identity, with random projections.

        Args:
            shape: shape of the heads.
            ids: Int64[V'], the target's token for each logit; None if the vocabularies are equal.
        """
        super().__init__()
        self.shape, self.depth, self.paths = shape, shape.heads, find_published_tree(depth=shape.heads)
        self.parallel = shape.projection != "own"  # projections of their own are read only for depths that are reached
        self.register_buffer("ids", ids, persistent=False)
        one = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        for _ in range(shape.heads):
            head = nn.ModuleList(repeat_block(shape.hidden, shape.blocks, shared=shape.shared, bias=shape.bias))
            if shape.projection == "one":
                head.append(one)
            elif shape.projection == "own":
                head.append(nn.Linear(shape.hidden, shape.vocabulary, bias=False))
            self.append(head)

    def open(self, first: int, target: TargetParts) -> HeadState:
        return MedusaState(self, target, first)

    def project(self, features: Tensor, index: int, target: TargetParts) -> Tensor:
        """Return the logits [..., V'] of one head, given the target's states [..., D] after the final norm."""
        blocks, projection = self._split(index)
        return self._project(self._run(blocks, features.to(self._dtype), target), projection, target)

    def project_all(self, features: Tensor, depths: range, target: TargetParts) -> Tensor:
        """Return the logits [n, len(depths), V'] of some heads, given the target's states [n, D]."""
        if self.shape.projection == "own":
            return torch.stack([self.project(features, index, target) for index in depths], 1)
        features, split = features.to(self._dtype), [self._split(index) for index in depths]
        states = torch.stack([self._run(blocks, features, target) for blocks, _ in split], 1)
        logits = self._project(states.flatten(0, 1), split[0][1], target)  # one projection reads its weights once
        return logits.view(*states.shape[:2], -1)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def _split(self, index: int) -> tuple[list[nn.Module], nn.Module | None]:
        """Return the blocks of a head, and its projection; None for the target's."""
        head = self[index]
        assert isinstance(head, nn.ModuleList)
        parts = [*head]
        return parts[: self.shape.blocks], parts[-1] if len(parts) > self.shape.blocks else None

    @staticmethod
    def _run(blocks: Sequence[nn.Module], x: Tensor, target: TargetParts) -> Tensor:
        for block in blocks:
            x = block(x, target.linear)
        return x

    def _project(self, x: Tensor, projection: nn.Module | None, target: TargetParts) -> Tensor:
        logits = target.project(x) if projection is None else target.linear(projection, x)
        return logits if self.shape.scale == 1 else torch.mul(logits, self.shape.scale)


class MedusaState(ParallelState):
    """State of one text."""

    def __init__(self, head: MedusaHead, target: TargetParts, first: int) -> None:
        super().__init__(first)
        self._head, self._target = head, target

    def read_contexts(
        self, states: Sequence[LevelState], hidden: Sequence[Tensor], following: Sequence[Tensor]
    ) -> Tensor:
        return self._target.norm(newest_states(hidden))

    def project_depths(self, contexts: Tensor, depths: range) -> Tensor:
        return self._head.project_all(contexts, depths, self._target)
