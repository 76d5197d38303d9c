"""The target drafts with part of its own KV cache: `sparse-cache`.

On long texts, a pass over one token spends much of its time reading the KV cache, of which attention uses little. So
the target itself drafts on a cache of a few hundred rows, and one pass over the whole cache verifies. The scheme is
that of TriForce (Sun et al., COLM 2024, arXiv 2404.11912), whose chunks are retrieved by the text's own queries and
kept for several rounds, and of MagicDec (Sadhukhan et al. 2024, arXiv 2408.11049), which drafts with only the first and
the last rows, as in StreamingLLM (Xiao et al. 2023, arXiv 2309.17453): for that, set `recent` to `budget` - `sinks`.

The rows are the first ones, the last ones, and pages that each key head selects (`engines.hf.caches.row_retrieval`) in
a pass over the root that reads the whole cache. That pass starts a draft, whose first token is therefore the target's
own: it costs a plain pass and gains a token, as plain decoding would. Between two such passes the rows are kept, and
newly committed rows are added.
"""

from __future__ import annotations

from dataclasses import dataclass

from speculant.core.drafter import Drafter, Session, SessionRequest
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sparse_cache import RowBudget
from speculant.drafters.models.level_session import LevelSession
from speculant.drafters.models.shapes import Chain
from speculant.drafters.models.tree_acceptance import LevelAcceptance
from speculant.drafters.sparse.text import SparseText


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseCacheSettings:
    """Settings of `sparse-cache`.

    Attributes:
        budget: rows of the text that a draft reads in each layer, including sinks and recent rows.
        sinks: number of first rows of the text included.
        recent: number of last rows of the text included.
        page: number of consecutive rows that are selected together.
        refresh: committed tokens after which rows are selected again.
        min_context: minimum length of the text, in tokens, for drafting.
        stop: criterion that ends a chain before the node budget does: none, fixed, heuristic, confidence, joint or
            entropy.
        threshold: threshold of "confidence" (default 0.4), "joint" (0.1) or "entropy" (0.3).
        length: tokens of a fixed draft, and of the first draft under "heuristic".
    """

    budget: int = 512
    sinks: int = 16
    recent: int = 128
    page: int = 16
    refresh: int = 64
    min_context: int = 2048
    stop: str = "none"
    threshold: float | None = None
    length: int = 5

    def row_budget(self) -> RowBudget:
        """Return the budget of rows to keep.

        Raises:
            UsageError: a setting is out of range.
        """
        for name, minimum in (("refresh", 1), ("min_context", 0)):
            if getattr(self, name) < minimum:
                raise UsageError(f"{name} must be at least {minimum}, not {getattr(self, name)}.")
        if self.sinks + self.recent > self.budget:
            raise UsageError(
                f"sinks={self.sinks} and recent={self.recent} are more than budget={self.budget}, which includes them."
            )
        retrieved = self.budget - self.sinks - self.recent
        return RowBudget(sinks=self.sinks, recent=self.recent, retrieved=retrieved, page=self.page)


class SparseCacheDrafter(Drafter):
    """Drafter of chains on part of the KV cache: `sparse-cache`."""

    def __init__(self, *, whole_cache: str = "", settings: SparseCacheSettings | None = None) -> None:
        """Check the settings.

        Args:
            whole_cache: reason why passes of the target must read their whole cache; "" if they can read a part.
            settings: None for the defaults.

        Raises:
            UnsupportedError: passes must read the whole cache.
            UsageError: a setting is out of range.
        """
        if whole_cache:
            raise UnsupportedError(whole_cache)
        self.settings = settings or SparseCacheSettings()
        self._budget, self._acceptance, self._tried = self.settings.row_budget(), LevelAcceptance(), False
        self._shape()  # validates the settings before the first request

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        """Start a request.

        Raises:
            UnsupportedError: the target turns out not to support sparse caches.
        """
        target, s = start.target, self.settings
        assert target is not None  # provided by every path that decodes with a model
        if target.depth and not self._tried:  # try once, so that any failure comes before the first draft
            cache = target.open_sparse(self._budget)
            cache.retrieve(int(start.prompt[-1]))
            cache.release()
            self._tried = True
        text = SparseText(start, self._budget, refresh=s.refresh, min_context=s.min_context)
        return LevelSession(text, start, self._shape())

    def _shape(self) -> Chain:
        s = self.settings
        return Chain(self._acceptance, s.stop, s.threshold, s.length)
