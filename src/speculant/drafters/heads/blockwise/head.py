"""Blockwise parallel decoding (Stern et al., NeurIPS 2018, arXiv 1811.03115).

One feed-forward layer reads the target's newest state f, after the final norm, and returns k states:
f + (B relu(A f + a) + b)_i, with A from D to k d and B from k d to k D, section 6. The target's own output projection
turns each into logits. The authors' p_1, which predicts the next token, is the target itself here, as in their setting
with a frozen base model, since the output must stay the target's: the k heads predict the tokens after the root. The
target's pass that verifies one block also yields the states from which the next is drafted, their merged step of
section 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from speculant.core.engine import LAST_LAYER
from speculant.drafters.heads.head import HeadState, TargetParts
from speculant.drafters.heads.levels import LevelState, ParallelHead, ParallelState, newest_states


class BlockwiseHead(nn.Module, ParallelHead):
    """The feed-forward layer of all k heads."""

    taps = (LAST_LAYER,)
    depth: int
    ids = None
    parallel = True

    def __init__(self, hidden: int, inner: int, heads: int) -> None:
        """Build a layer that starts as the identity: B and b are 0.

        Args:
            hidden: D.
            inner: d, inner size of each head.
            heads: k.
        """
        super().__init__()
        self.hidden, self.inner, self.depth = hidden, inner, heads
        self.up = nn.Linear(hidden, heads * inner)
        self.down = nn.Linear(heads * inner, heads * hidden)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def open(self, first: int, target: TargetParts) -> HeadState:
        return BlockwiseState(self, target, first)

    def states(self, features: Tensor, target: TargetParts) -> Tensor:
        """Return the states [..., k, D] of all heads, given the target's states [..., D] after the final norm."""
        x = features.to(self.up.weight.dtype)
        change = target.linear(self.down, nn.functional.relu(target.linear(self.up, x)))
        return torch.add(x.unsqueeze(-2), change.view(*change.shape[:-1], self.depth, self.hidden))


class BlockwiseState(ParallelState):
    """State of one text. Its context contains the states of all heads."""

    def __init__(self, head: BlockwiseHead, target: TargetParts, first: int) -> None:
        super().__init__(first)
        self._head, self._target = head, target

    def read_contexts(
        self, states: Sequence[LevelState], hidden: Sequence[Tensor], following: Sequence[Tensor]
    ) -> Tensor:
        return self._head.states(self._target.norm(newest_states(hidden)), self._target)

    def project_depths(self, contexts: Tensor, depths: range) -> Tensor:
        states = contexts[:, depths.start : depths.stop]
        return self._target.project(states.flatten(0, 1)).view(*states.shape[:2], -1)
