"""The state of a head that drafts a whole block in one pass: one distribution per depth, independent of drafted tokens.

The tokens of such a draft are independent given the text, q(x_1 .. x_K) = prod q_k(x_k), so the ordinary acceptance
rules are exact for a chain, slot by slot, and a tree has the same children below all nodes of a level.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from speculant.drafters.heads.head import Head, HeadState


@dataclass(frozen=True, slots=True, eq=False)
class SlotRows:
    """Nodes of one text, and the slots of its block that predict what follows them.

    Attributes:
        logits: [n, V'], logits of the slots.
        depths: depths of the nodes, 0 for the root.
        tokens: tokens of the nodes; [] for the root.
        above: parent rows of the nodes in the draft, -1 for the root; [] for the root itself.
    """

    logits: Tensor
    depths: Sequence[int]
    tokens: Sequence[int]
    above: Sequence[int]


class BlockState(HeadState):
    """State of one text; the block is computed once per root, when it is first needed."""

    def __init__(self) -> None:
        self.block: Tensor | None = None  # logits [K, V'] after the root
        self._depths: list[int] = []  # of the draft's rows, 1 for children of the root

    @abstractmethod
    def run_blocks(self, states: Sequence[BlockState]) -> list[Tensor]:
        """Return the logits [K, V'] of the K tokens after the root of each of several texts of the head."""

    def condition(self, states: Sequence[BlockState], rows: Sequence[SlotRows]) -> list[Tensor]:
        """Return the logits [n, V'] after nodes of several texts; by default drafted tokens have no effect."""
        return [own.logits for own in rows]

    def start(self) -> Tensor:
        [logits] = start_blocks([self])
        return logits

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        [logits] = grow_blocks([self], [tokens], [above])
        return logits

    def add_nodes(self, above: Sequence[int]) -> list[int]:
        """Append draft rows below the given parent rows, -1 for the root; return their depths."""
        depths = [1 if row < 0 else self._depths[row] + 1 for row in above]
        self._depths += depths
        return depths

    def drop(self) -> None:
        self._depths = []

    def forget_block(self) -> None:
        """Drop the block because the root has changed."""
        self.block, self._depths = None, []


class BlockHead(Head, Protocol):
    """A head whose states are `BlockState`s, which run together."""

    def start_all(self, states: Sequence[HeadState]) -> list[Tensor]:
        return start_blocks([each for each in states if isinstance(each, BlockState)])

    def grow_all(
        self, states: Sequence[HeadState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        return grow_blocks([each for each in states if isinstance(each, BlockState)], tokens, above)


class UnconditionedBlockHead(BlockHead, Protocol):
    """A head in whose blocks drafted tokens have no effect."""

    parallel: bool = True

    def level_logits(self, states: Sequence[HeadState], levels: int) -> list[Tensor]:
        return [block[:levels] for block in read_blocks([each for each in states if isinstance(each, BlockState)])]


def read_blocks(states: Sequence[BlockState]) -> list[Tensor]:
    """Return the blocks [K, V'] after the roots of texts of one head."""
    lacking = [state for state in states if state.block is None]
    if lacking:
        for state, block in zip(lacking, states[0].run_blocks(lacking), strict=True):
            state.block = block
    return [state.block for state in states if state.block is not None]


def start_blocks(states: Sequence[BlockState]) -> list[Tensor]:
    """Start drafts on texts of one head; return the logits [1, V'] after each root."""
    rows = list[SlotRows]()
    for state, block in zip(states, read_blocks(states), strict=True):
        state.drop()
        rows.append(SlotRows(block[:1], [0], [], []))
    return states[0].condition(states, rows)


def grow_blocks(
    states: Sequence[BlockState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Append draft rows to texts of one head; takes the arguments of `grow` for each text."""
    rows = list[SlotRows]()
    for state, block, own, parents in zip(states, read_blocks(states), tokens, above, strict=True):
        depths = state.add_nodes(parents)
        rows.append(SlotRows(block[depths], depths, own, parents))
    return states[0].condition(states, rows)


class TextBlockState(BlockState):
    """State that stores the text's tokens, for heads that read them; see `head.TextHead`."""

    def __init__(self, tokens: Sequence[int]) -> None:
        """Start a text with its first token."""
        super().__init__()
        self.text = list(tokens[:1])

    @abstractmethod
    def run_block(self) -> Tensor:
        """Return the logits [K, V'] of the K tokens after the root."""

    def run_blocks(self, states: Sequence[BlockState]) -> list[Tensor]:
        return [state.run_block() for state in states if isinstance(state, TextBlockState)]

    @property
    def length(self) -> int:
        return len(self.text) - 1

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        self.text += following.tolist()
        self.forget_block()

    def crop(self, length: int) -> None:
        del self.text[length + 1 :]
        self.forget_block()
