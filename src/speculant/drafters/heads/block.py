"""The state of a head that drafts a whole block in one pass: a distribution for each depth, whatever was drafted above.

The tokens of such a draft are independent given the text, q(x_1 .. x_K) = prod q_k(x_k), so a chain is drafted exactly
with the ordinary acceptance rules, slot by slot, and a tree has the same children below all nodes of a level.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from speculant.drafters.heads.head import HeadState


class BlockState(HeadState):
    """One text; the block is computed once for each root, when it is first asked for."""

    def __init__(self) -> None:
        self._logits: Tensor | None = None  # [K, V'] after the root
        self._depths: list[int] = []  # of the draft's rows, 1 for those below the root

    @abstractmethod
    def run_block(self) -> Tensor:
        """Return the logits [K, V'] of the K tokens after the root."""

    def conditioned(self, logits: Tensor, depths: Sequence[int], tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        """Return the logits [n, V'] after n nodes; by default their tokens have no effect.

        Args:
            logits: [n, V'] of the block.
            depths: of the nodes.
            tokens: of the nodes; [] for the root.
            above: the rows of the draft above the nodes, -1 for the root; [] for the root itself.
        """
        return logits

    def start(self) -> Tensor:
        self._depths = []
        if self._logits is None:
            self._logits = self.run_block()
        return self.conditioned(self._logits[:1], [0], [], [])

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        assert self._logits is not None
        depths = [1 if row < 0 else self._depths[row] + 1 for row in above]
        self._depths += depths
        return self.conditioned(self._logits[depths], depths, tokens, above)

    def drop(self) -> None:
        self._depths = []

    def forget_block(self) -> None:
        """Drop the block, since the root has changed."""
        self._logits, self._depths = None, []


class TextBlockState(BlockState):
    """One text whose tokens are held, for heads that read it; see `head.TextHead`."""

    def __init__(self, tokens: Sequence[int]) -> None:
        """Begin with the first tokens of the text."""
        super().__init__()
        self.text = list(tokens[:1])

    @property
    def length(self) -> int:
        return len(self.text) - 1

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        self.text += following.tolist()
        self.forget_block()

    def crop(self, length: int) -> None:
        del self.text[length + 1 :]
        self.forget_block()
