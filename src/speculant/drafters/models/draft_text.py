"""A committed text on a draft model, and the rows of the draft that grows below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from speculant.core.drafter import SessionRequest, Verified
from speculant.core.engine import Array, TargetCache
from speculant.core.sampler import Sampling
from speculant.core.tree import ROOT, Int32
from speculant.drafters.models.warping import Warping

OpenCache = Callable[[Int32], TargetCache]


class DraftText:
    """Keeps a draft model's cache in step with the target's text.

    Rows are found again by the tokens on the way to them, so a draft may hold other nodes as well, in any order.
    """

    def __init__(self, cache: TargetCache, sampling: Sampling, vocabulary: int) -> None:
        """Take a cache whose prompt is read.

        Args:
            cache: of the draft model.
            sampling: how the target is warped; q is warped likewise.
            vocabulary: V of the target; logits beyond it are left out, missing ones count as -inf.
        """
        self._cache, self._warping, self._vocabulary = cache, Warping(sampling), vocabulary
        self._own = vocabulary  # tokens that the draft model knows
        self._unread: list[int] = []  # committed tokens that are not in the cache
        self._after: Array = None  # logits [1, V] after the last token of the cache's committed text
        self._rows: dict[tuple[int, int], int] = {}  # by the row above and the token
        self._count = 0

    @classmethod
    def open(cls, open_cache: OpenCache, start: SessionRequest, vocabulary: int) -> DraftText:
        """Return the text of a request, its prompt read.

        Args:
            open_cache: returns a cache of the draft model for a prompt Int32[T], which is not read yet.
            start: of the request.
            vocabulary: V of the target.
        """
        cache = open_cache(start.prompt)
        read = cache.prefill()
        text = cls(cache, start.sampling, vocabulary)
        if read is not None:
            text._own, text._after = min(vocabulary, read.logits.shape[-1]), read.logits[-1:]
        return text

    @property
    def depth(self) -> int:
        """How deep a draft may be: the draft model needs positions for all tokens but the last."""
        return self._cache.depth + 1 - len(self._unread)

    @property
    def trees(self) -> bool:
        """Whether the draft model can read a draft that branches."""
        return self._cache.trees

    @property
    def rows(self) -> int:
        """How many rows the draft has: the number of the next one."""
        return self._count

    def begin(self) -> Tensor:
        """Drop all rows of a draft, read what was committed; return q [1, V] after the root."""
        self._drop()
        if self._unread:
            read = self._known(self._unread)
            result = self._cache.forward(read, np.arange(-1, len(read) - 1, dtype=np.int32))
            self._cache.keep(range(len(read)))
            self._unread, self._after = [], result.logits[-1:]
        return self.distributions(self._after)

    def read(self, tokens: Sequence[int], above: Sequence[int]) -> tuple[list[int], Tensor]:
        """Run the draft model over nodes; return their rows and q [n, V] after them.

        Args:
            tokens: n of them.
            above: the row above each, -1 for the root.
        """
        result = self._cache.forward(self._known(tokens), np.array(above, np.int32))
        rows = list(range(self._count, self._count + len(tokens)))
        self._count += len(tokens)
        for row, parent, token in zip(rows, above, tokens, strict=True):
            self._rows.setdefault((parent, token), row)
        return rows, self.distributions(result.logits)

    def _known(self, tokens: Sequence[int]) -> Int32:
        """Return tokens [n] with 0 for those that only the target knows, which are padding of its vocabulary."""
        read = np.array(tokens, np.int32)
        return np.where(read < self._own, read, 0).astype(np.int32)

    def distributions(self, logits: Array) -> Tensor:
        """Return the distributions [n, V] of logits, over the target's vocabulary."""
        logits = logits[:, : self._vocabulary]
        if missing := self._vocabulary - logits.shape[1]:
            logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return self._warping(logits)

    def observe(self, verified: Verified) -> None:
        """Keep the rows of committed tokens; those without one are read when the next draft begins."""
        tokens, rows, row = verified.tokens.tolist(), list[int](), ROOT
        while len(rows) < len(tokens) and (row, tokens[len(rows)]) in self._rows:
            row = self._rows[row, tokens[len(rows)]]
            rows.append(row)
        if rows and len(rows) == len(tokens):
            rows.pop()  # the root's row: the logits after it are wanted again
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
