"""PARD: a small causal model that drafts a block in one pass, from mask tokens after the text.

An et al.: "PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model Adaptation", 2025, arXiv 2504.18583.
The model reads the committed tokens that it has not read yet, followed by K - 1 masks; the logits of the last K rows
predict the next K tokens. The masks' rows are dropped, so its cache contains only committed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from speculant.core.engine import TargetCache
from speculant.core.errors import UsageError
from speculant.drafters.heads.block import TextBlockState, UnconditionedBlockHead
from speculant.drafters.heads.head import HeadState, TargetParts, TextHead
from speculant.drafters.models.draft_text import OpenCache


class PardHead(UnconditionedBlockHead, TextHead):
    """The model, represented by a function that opens its caches.

    Attributes:
        mask: its mask token.
        known: number of the target's tokens that it knows.
    """

    taps = ()

    def __init__(
        self, open_cache: OpenCache, mask: int, *, vocabulary: int, target_vocabulary: int, tokens: int = 8
    ) -> None:
        """Set up the model.

        Args:
            open_cache: returns an unread cache of the model for a prompt Int32[T].
            mask: token that it was trained to read in place of unknown ones.
            vocabulary: number of tokens it knows; the first of them are the target's.
            target_vocabulary: V.
            tokens: K, tokens per block.
        """
        if tokens < 1:
            raise UsageError(f"a block needs at least 1 token, not {tokens}.")
        self._open_cache, self.mask, self.depth = open_cache, mask, tokens
        self.known = min(vocabulary, target_vocabulary)
        self.ids = torch.arange(self.known) if self.known < target_vocabulary else None

    def open_text(self, tokens: Sequence[int], target: TargetParts, cache: TargetCache | None) -> HeadState:
        return PardState(self, self._open_cache, tokens)


class PardState(TextBlockState):
    """State of one text."""

    def __init__(self, head: PardHead, open_cache: OpenCache, tokens: Sequence[int]) -> None:
        super().__init__(tokens)
        self._head, self._open_cache = head, open_cache
        self._cache: TargetCache | None = None
        self._read = 0  # number of tokens of the text in the cache

    @property
    def room(self) -> int | None:
        """Maximum depth of a draft, since the model needs positions for the unread tokens and the masks."""
        cache = self._cache
        if cache is None:
            return None
        # A depth of 0 may also mean that the text is longer than the model's positions.
        return max(0, cache.depth + 2 - (len(self.text) - self._read)) if cache.depth else 0

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        super().extend(hidden, following)
        if self._cache is None:
            self._read = len(self.text) - 1
            self._cache = self._open_cache(np.array(self.text[:-1], np.int32))
            self._cache.prefill()

    def run_block(self) -> Tensor:
        cache, room = self._cache, self.room
        assert cache is not None
        assert room  # otherwise no draft is requested
        unread = [token if token < self._head.known else 0 for token in self.text[self._read :]]
        masks = min(self._head.depth, room) - 1
        tokens = np.array(unread + [self._head.mask] * masks, np.int32)
        try:
            result = cache.forward(tokens, np.arange(-1, len(tokens) - 1, dtype=np.int32))
            cache.keep(range(len(unread)))
        finally:
            cache.rollback()
        self._read = len(self.text)
        logits: Tensor = result.logits[len(unread) - 1 :]
        return logits[:, : self._head.known]

    def crop(self, length: int) -> None:
        super().crop(length)
        self._cache = None
