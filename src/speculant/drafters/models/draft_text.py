"""A committed text on a draft model, and the rows of the draft that grows below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from speculant.core.drafter import EncoderSource, SessionRequest, Verified
from speculant.core.engine import EngineArray, TargetCache
from speculant.core.sampler import Sampling
from speculant.core.tree import ROOT, Int32
from speculant.drafters.models.warping import Warping


class OpenCache(Protocol):
    """Returns an unread cache of a draft model."""

    def __call__(self, prompt: Int32, source: EncoderSource | None = None, /) -> TargetCache:
        """Return a cache for a prompt Int32[T], and what the target's encoder has read, if it has one."""


class DraftText:
    """Keeps a draft model's cache in step with the target's text.

    The prompt is read when the first draft begins, so that a text for which no draft pays costs nothing. Rows are
    identified by the tokens on the path to them, so a draft may contain other nodes as well, in any order.
    """

    def __init__(self, cache: TargetCache, sampling: Sampling, vocabulary: int) -> None:
        """Wrap a cache.

        Args:
            cache: cache of the draft model.
            sampling: sampling settings of the target, which also warp q.
            vocabulary: V of the target; logits beyond it are dropped, missing ones count as -inf.
        """
        self._cache, self._warping, self._vocabulary = cache, Warping(sampling), vocabulary
        self._own = vocabulary  # number of tokens that the draft model knows
        self._unread: list[int] = []  # committed tokens not yet in the cache
        self._after: EngineArray = None  # logits [1, V] after the last token of the cache's committed text
        self._rows: dict[tuple[int, int], int] = {}  # row of each node, by parent row and token
        self._count = 0

    @classmethod
    def open(cls, open_cache: OpenCache, start: SessionRequest, vocabulary: int) -> DraftText:
        """Return the text of a request.

        Args:
            open_cache: opens the draft model's cache.
            start: the request.
            vocabulary: V of the target.
        """
        cache = open_cache(start.prompt) if start.source is None else open_cache(start.prompt, start.source)
        return cls(cache, start.sampling, vocabulary)

    @property
    def depth(self) -> int:
        """Maximum depth of a draft: the draft model needs positions and rows for all tokens but the last."""
        return min(self._cache.depth, self._cache.room) + 1 - len(self._unread)

    @property
    def trees(self) -> bool:
        """Whether the draft model can read a draft with branches."""
        return self._cache.trees

    @property
    def rows(self) -> int:
        """Number of rows in the draft, which is the index of the next one."""
        return self._count

    @property
    def unread(self) -> int:
        """Number of committed tokens that the next draft reads first."""
        return self._cache.unread + len(self._unread)

    def begin(self) -> Tensor:
        """Drop all rows of the draft and read the prompt and committed tokens; return q [1, V] after the root."""
        self._drop()
        self.read_prompt()
        if self._unread:
            read = self._replace_unknown(self._unread)
            result = self._cache.forward(read, np.arange(-1, len(read) - 1, dtype=np.int32))
            self._cache.keep(range(len(read)))
            self._unread, self._after = [], result.logits[-1:]
        return self.distributions(self._after)

    def read(self, tokens: Sequence[int], above: Sequence[int]) -> tuple[list[int], Tensor]:
        """Run the draft model over nodes; return their rows and q [n, V] after them.

        Args:
            tokens: tokens of the n nodes.
            above: parent row of each, -1 for the root.
        """
        result = self._cache.forward(self._replace_unknown(tokens), np.array(above, np.int32))
        rows = list(range(self._count, self._count + len(tokens)))
        self._count += len(tokens)
        for row, parent, token in zip(rows, above, tokens, strict=True):
            self._rows.setdefault((parent, token), row)
        return rows, self.distributions(result.logits)

    def read_prompt(self) -> None:
        """Read the prompt, unless that was done."""
        if self._after is None:
            read = self._cache.prefill()
            assert read is not None  # all of it was asked for
            self._own, self._after = min(self._vocabulary, read.logits.shape[-1]), read.logits[-1:]

    def _replace_unknown(self, tokens: Sequence[int]) -> Int32:
        """Return tokens [n], with 0 for those that only the target knows, which are padding of its vocabulary."""
        read = np.array(tokens, np.int32)
        return np.where(read < self._own, read, 0).astype(np.int32)

    def distributions(self, logits: EngineArray) -> Tensor:
        """Return distributions [n, V] over the target's vocabulary for the draft model's logits."""
        logits = logits[:, : self._vocabulary]
        if missing := self._vocabulary - logits.shape[1]:
            logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return self._warping(logits)

    def observe(self, verified: Verified) -> None:
        """Keep the rows of committed tokens; tokens without a row are read when the next draft begins."""
        tokens, rows, row = verified.tokens.tolist(), list[int](), ROOT
        while len(rows) < len(tokens) and (row, tokens[len(rows)]) in self._rows:
            row = self._rows[row, tokens[len(rows)]]
            rows.append(row)
        if rows and len(rows) == len(tokens):
            rows.pop()  # the new root's row: the logits after it are needed again
        if self._count:
            self._cache.keep(rows)
        self._rows, self._count = {}, 0
        self._unread += tokens[len(rows) :]

    def release(self) -> None:
        """Free the cache."""
        self._cache.release()

    def _drop(self) -> None:
        self._cache.rollback()
        self._rows, self._count = {}, 0
