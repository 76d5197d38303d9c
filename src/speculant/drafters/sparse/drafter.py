"""The target drafts with a part of its own keys and values: `sparse-cache`.

On long texts a pass over one token spends much of its time on reading the cache, of which attention uses little. So the
target itself drafts on a cache of some hundred rows, and one pass on the whole cache verifies. The scheme is that of
TriForce (Sun et al., COLM 2024, arXiv 2404.11912), whose chunks are retrieved by the text's own queries and stay for
several rounds, and of MagicDec (Sadhukhan et al. 2024, arXiv 2408.11049), which drafts with the first and the last rows
alone, as StreamingLLM keeps them (Xiao et al. 2023, arXiv 2309.17453): for that, set `recent` to `budget` - `sinks`.

The rows are the first ones, the last ones, and pages that each head of keys chooses (`engines.hf.caches.row_retrieval`)
in a pass over the root which reads the whole cache. That pass begins a draft, whose first token is therefore the
target's own: it costs a plain pass and gains a token, as plain decoding would. Between two such passes the rows stay,
and committed ones join them.
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
        budget: rows of the text that a draft reads in each layer, sinks and recent ones included.
        sinks: the first rows of the text among these.
        recent: the last rows of the text among these.
        page: consecutive rows that are chosen together.
        refresh: committed tokens after which the rows are chosen anew.
        min_context: tokens of the text below which nothing is drafted.
        stop: what ends a chain before the budget of nodes does: none, fixed, heuristic, confidence or entropy.
        threshold: of "confidence" (default 0.4) and "entropy" (default 0.3).
        length: tokens of a fixed draft, and of the schedule's first one.
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
        """Return which rows are held.

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
    """Chains drafted on a part of the cache: `sparse-cache`."""

    def __init__(self, *, whole_cache: str = "", settings: SparseCacheSettings | None = None) -> None:
        """Take the settings.

        Args:
            whole_cache: why passes of the target read their whole cache; "" where they can read a part.
            settings: None for the defaults.

        Raises:
            UnsupportedError: they cannot.
            UsageError: a setting is out of range.
        """
        if whole_cache:
            raise UnsupportedError(whole_cache)
        self.settings = settings or SparseCacheSettings()
        self._budget, self._acceptance, self._tried = self.settings.row_budget(), LevelAcceptance(), False
        self._shape()  # its settings are checked before the first request

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        """Begin a request.

        Raises:
            UnsupportedError: the target cannot draft in this way after all.
        """
        target, s = start.target, self.settings
        assert target is not None  # lent by every path that decodes with a model
        if target.depth and not self._tried:  # once, so that what fails does before any draft
            cache = target.open_sparse(self._budget)
            cache.retrieve(int(start.prompt[-1]))
            cache.release()
            self._tried = True
        text = SparseText(start, self._budget, refresh=s.refresh, min_context=s.min_context)
        return LevelSession(text, start, self._shape())

    def _shape(self) -> Chain:
        s = self.settings
        return Chain(self._acceptance, s.stop, s.threshold, s.length)
