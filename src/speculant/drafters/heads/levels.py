"""States of heads that read the newest target state once and then draft level by level.

A context is what one node passes to those below it: Medusa's never changes, Hydra's grows by an embedding a level, an
MLP speculator's is its recurrent state. Nothing of a draft outlives its round.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from speculant.drafters.heads.head import HeadState


class LevelState(HeadState):
    """One text.

    Subclasses define what the root's context is, how it changes along a path, and the logits that follow.
    """

    def __init__(self, first: int) -> None:
        """Begin a text whose tokens before the position `first` have no rows."""
        self._length = first
        self._contexts: list[Tensor] = []  # [C], of the root and then of the draft's rows
        self._depths: list[int] = []  # likewise; 0 is the root's

    @property
    def length(self) -> int:
        return self._length

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        self._length += len(hidden)
        self._contexts, self._depths = [self.read_context(hidden, following)], [0]

    def start(self) -> Tensor:
        return self.project_contexts(self._contexts[0][None], 0)

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        ids = torch.tensor(tokens, device=self._contexts[0].device)
        first = len(self._contexts)
        self._depths += [self._depths[row + 1] + 1 for row in above]
        self._contexts += [self._contexts[row + 1] for row in above]
        found: list[Tensor] = [ids] * len(tokens)
        for depth in sorted(set(self._depths[first:])):
            nodes = [node for node in range(len(tokens)) if self._depths[first + node] == depth]
            contexts = torch.stack([self._contexts[first + node] for node in nodes])
            contexts = self.follow_tokens(contexts, ids[nodes], depth)
            logits = self.project_contexts(contexts, depth)
            for node, context, row in zip(nodes, contexts, logits, strict=True):
                self._contexts[first + node], found[node] = context, row
        return torch.stack(found)

    def drop(self) -> None:
        del self._contexts[1:], self._depths[1:]

    def crop(self, length: int) -> None:
        self._length = min(self._length, length)
        self._contexts, self._depths = [], []

    @abstractmethod
    def read_context(self, hidden: Tensor, following: Tensor) -> Tensor:
        """Return the root's context [C], given what `extend` takes."""

    @abstractmethod
    def follow_tokens(self, contexts: Tensor, tokens: Tensor, depth: int) -> Tensor:
        """Return the contexts [n, C'] of nodes Int64[n] of a depth from 1 on, given those of their parents [n, C]."""

    @abstractmethod
    def project_contexts(self, contexts: Tensor, depth: int) -> Tensor:
        """Return the logits [n, V'] after nodes of a depth, 0 for the root, given their contexts [n, C]."""


class ParallelState(LevelState):
    """One text of a head whose logits depend on the depth alone: they are computed once a depth, for all nodes."""

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self._logits: dict[int, Tensor] = {}  # [1, V'], by depth

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        self._logits = {}
        super().extend(hidden, following)

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        depths = [self._depths[row + 1] + 1 for row in above]
        self._depths += depths
        return torch.cat([self._of_depth(depth) for depth in depths])

    def start(self) -> Tensor:
        return self._of_depth(0)

    def follow_tokens(self, contexts: Tensor, tokens: Tensor, depth: int) -> Tensor:
        return contexts

    def _of_depth(self, depth: int) -> Tensor:
        if depth not in self._logits:
            self._logits[depth] = self.project_contexts(self._contexts[0][None], depth)
        return self._logits[depth]
