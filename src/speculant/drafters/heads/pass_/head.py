"""PaSS: learned look-ahead embeddings after the text, from which the target itself drafts.

Monea, Joulin, Grave: "PaSS: Parallel Speculative Sampling", 2023, arXiv 2311.13581. A pass of the target over the root
and L embeddings gives L + 1 distributions. The first is the target's own after the root, so the first drafted token is
certain, and a round yields at least two tokens for its two passes. Only the embeddings are trained; their rows are
dropped from the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from speculant.core.engine import TargetCache
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.block import TextBlockState, UnconditionedBlockHead
from speculant.drafters.heads.head import HeadState, TargetParts, TextHead


class PaSSHead(nn.Module, UnconditionedBlockHead, TextHead):
    """The embeddings."""

    taps = ()
    ids = None

    def __init__(self, count: int, size: int, *, vocabulary: int) -> None:
        """Build random embeddings.

        Args:
            count: L.
            size: D of the target.
            vocabulary: V of the target.
        """
        super().__init__()
        self.look_ahead = nn.Parameter(torch.randn(count, size) * 0.02)
        self.depth, self.vocabulary = count + 1, vocabulary

    def open_text(self, tokens: Sequence[int], target: TargetParts, cache: TargetCache | None) -> HeadState:
        if cache is None:
            raise UnsupportedError("look-ahead embeddings draft with the target itself, but were not given its cache.")
        return PaSSState(self, tokens, cache)


class PaSSState(TextBlockState):
    """State of one text, on the target's own cache, which already contains it."""

    def __init__(self, head: PaSSHead, tokens: Sequence[int], cache: TargetCache) -> None:
        super().__init__(tokens)
        self._head, self._cache = head, cache

    @property
    def room(self) -> int | None:
        """Maximum depth of a draft, since the embeddings need positions below the root."""
        return self._cache.depth + 1 if self._cache.depth else 0

    def run_block(self) -> Tensor:
        head, cache = self._head, self._cache
        count = min(len(head.look_ahead), cache.depth)
        ids = [self.text[-1], *range(head.vocabulary, head.vocabulary + count)]
        # Their rows go through the target's cache, where 0 times NaN from a masked row would still be NaN.
        embeddings = head.look_ahead[:count].nan_to_num(posinf=0.0, neginf=0.0)
        try:
            result = cache.forward(np.array(ids, np.int32), np.arange(-1, count, dtype=np.int32), embeddings=embeddings)
        finally:
            cache.rollback()
        logits: Tensor = result.logits
        return logits
