"""States of heads that read the newest target state once and then draft level by level.

A context is what one node passes on to its children: Medusa's never changes, Hydra's grows by an embedding per level,
an MLP speculator's is its recurrent state. Nothing of a draft outlives its round. Nodes of one depth run together, also
across texts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from speculant.drafters.heads.head import Head, HeadState
from speculant.drafters.heads.layers import join_tensors


class LevelState(HeadState):
    """State of one text.

    Subclasses define the root's context, how it changes along a path, and the logits that follow from it.
    """

    def __init__(self, first: int) -> None:
        """Start a text whose tokens before position `first` have no rows."""
        self._length = first
        self._contexts: list[Tensor] = []  # [C] each, of the root and then of the draft's rows
        self._depths: list[int] = []  # in the same order; 0 for the root

    @property
    def length(self) -> int:
        return self._length

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        extend_levels([self], [hidden], [following])

    def start(self) -> Tensor:
        [logits] = start_levels([self])
        return logits

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        [logits] = grow_levels([self], [tokens], [above])
        return logits

    @property
    def contexts(self) -> list[Tensor]:
        """Contexts [C] of the root and then of the draft's rows."""
        return self._contexts

    def take_context(self, count: int, context: Tensor) -> None:
        """Start a draft after `count` more committed tokens, with the root's context [C]."""
        self._length += count
        self._contexts, self._depths = [context], [0]

    def branch(self, above: Sequence[int]) -> list[int]:
        """Append rows that inherit the contexts of their parent rows, -1 for the root; return their depths."""
        depths = [self._depths[row + 1] + 1 for row in above]
        self._depths += depths
        self._contexts += [self._contexts[row + 1] for row in above]
        return depths

    def drop(self) -> None:
        del self._contexts[1:], self._depths[1:]

    def crop(self, length: int) -> None:
        self._length = min(self._length, length)
        self._contexts, self._depths = [], []

    @abstractmethod
    def read_contexts(
        self, states: Sequence[LevelState], hidden: Sequence[Tensor], following: Sequence[Tensor]
    ) -> Tensor:
        """Return the contexts [B, C] of the roots of B texts of the head; takes the arguments of `extend_all`."""

    @abstractmethod
    def follow_tokens(self, contexts: Tensor, tokens: Tensor, depth: int) -> Tensor:
        """Return the contexts [n, C'] of nodes Int64[n] at a depth of 1 or more, given their parents' [n, C]."""

    @abstractmethod
    def project_contexts(self, contexts: Tensor, depth: int) -> Tensor:
        """Return the logits [n, V'] after nodes at one depth (0: the root), given their contexts [n, C]."""


class LevelHead(Head, Protocol):
    """A head whose states are `LevelState`s."""

    def extend_all(self, states: Sequence[HeadState], hidden: Sequence[Tensor], following: Sequence[Tensor]) -> None:
        extend_levels(_levels(states), hidden, following)

    def start_all(self, states: Sequence[HeadState]) -> list[Tensor]:
        return start_levels(_levels(states))

    def grow_all(
        self, states: Sequence[HeadState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        return grow_levels(_levels(states), tokens, above)


class ParallelState(LevelState):
    """State of one text on a head whose logits depend only on the depth: computed once per depth, for all nodes."""

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self.logits: list[Tensor] = []  # [V'], by depth

    def take_context(self, count: int, context: Tensor) -> None:
        super().take_context(count, context)
        self.logits = []

    def start(self) -> Tensor:
        [logits] = logits_at([self], [[0]])
        return logits

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        [logits] = logits_at([self], [self.branch(above)])
        return logits

    def follow_tokens(self, contexts: Tensor, tokens: Tensor, depth: int) -> Tensor:
        return contexts

    def project_contexts(self, contexts: Tensor, depth: int) -> Tensor:
        return self.project_depths(contexts, range(depth, depth + 1))[:, 0]

    @abstractmethod
    def project_depths(self, contexts: Tensor, depths: range) -> Tensor:
        """Return the logits [n, len(depths), V'] at some depths (0: the root), given the roots' contexts [n, C]."""


class ParallelHead(LevelHead, Protocol):
    """A head whose states are `ParallelState`s."""

    def start_all(self, states: Sequence[HeadState]) -> list[Tensor]:
        return logits_at(_parallel(states), [[0]] * len(states))

    def grow_all(
        self, states: Sequence[HeadState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        own = _parallel(states)
        return logits_at(own, [state.branch(rows) for state, rows in zip(own, above, strict=True)])

    def level_logits(self, states: Sequence[HeadState], levels: int) -> list[Tensor]:
        return logits_at(_parallel(states), [range(levels)] * len(states))


def extend_levels(states: Sequence[LevelState], hidden: Sequence[Tensor], following: Sequence[Tensor]) -> None:
    """Append rows of committed tokens to texts of one head; takes the arguments of `extend` for each text."""
    contexts = states[0].read_contexts(states, hidden, following)
    for state, own, context in zip(states, hidden, contexts.unbind(), strict=True):
        state.take_context(len(own), context)


def start_levels(states: Sequence[LevelState]) -> list[Tensor]:
    """Return the logits [1, V'] after the root of each text of one head."""
    roots = torch.stack([state.contexts[0] for state in states])
    return [*torch.split(states[0].project_contexts(roots, 0), 1)]


def grow_levels(
    states: Sequence[LevelState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Append draft rows to texts of one head; takes the arguments of `grow` for each text."""
    first, sizes = states[0], [len(own) for own in tokens]
    firsts = [len(state.contexts) for state in states]
    depths = [depth for state, own in zip(states, above, strict=True) for depth in state.branch(own)]
    owners = [
        (state, begin + row) for state, begin, size in zip(states, firsts, sizes, strict=True) for row in range(size)
    ]
    ids = torch.tensor([token for own in tokens for token in own], device=first.contexts[0].device)
    found, order = list[Tensor](), list[int]()
    for depth in sorted(set(depths)):
        nodes = [node for node, own in enumerate(depths) if own == depth]
        contexts = torch.stack([state.contexts[row] for state, row in (owners[node] for node in nodes)])
        contexts = first.follow_tokens(contexts, ids if len(nodes) == len(ids) else ids[nodes], depth)
        for node, context in zip(nodes, contexts.unbind(), strict=True):
            state, row = owners[node]
            state.contexts[row] = context
        found.append(first.project_contexts(contexts, depth))
        order += nodes
    logits = join_tensors(found)
    if len(found) > 1:  # restore the order of the nodes
        logits = logits[sorted(range(len(order)), key=order.__getitem__)]
    return [*torch.split(logits, sizes)]


def logits_at(states: Sequence[ParallelState], depths: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return, for each text of one head, the logits [n, V'] after nodes at the given depths."""
    levels = 1 + max(depth for own in depths for depth in own)
    lacking = [state for state in states if len(state.logits) < levels]
    if lacking:
        first = min(len(state.logits) for state in lacking)
        roots = torch.stack([state.contexts[0] for state in lacking])
        rows = states[0].project_depths(roots, range(first, levels))
        for state, own in zip(lacking, rows.unbind(), strict=True):
            state.logits = [*state.logits[:first], *own.unbind()]
    return [torch.stack([state.logits[depth] for depth in own]) for state, own in zip(states, depths, strict=True)]


def _levels(states: Sequence[HeadState]) -> list[LevelState]:
    return [state for state in states if isinstance(state, LevelState)]


def _parallel(states: Sequence[HeadState]) -> list[ParallelState]:
    return [state for state in states if isinstance(state, ParallelState)]


def newest_states(hidden: Sequence[Tensor]) -> Tensor:
    """Return the last layer's output [B, D] at the newest token of each of B texts, given states [n, L', D]."""
    return torch.stack([own[-1, -1] for own in hidden])
