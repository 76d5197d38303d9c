"""SWIFT: the layers or sublayers to skip are searched while text is decoded: `swift`.

Xia et al., ICLR 2025, arXiv 2410.06916; the search is in `search`, the stop rule in `stopping`. A candidate is scored
by one pass over the last tokens that the target generated; the authors' code scores on the first ones of the text.
Beside the chain, they verify further top-k tokens at uncertain places of it; here a chain ends at the first such place,
and further candidates of it take what room is left.

Greedy requests share one search, as the authors' do, so that it goes on from one text to the next, and, saved as the
drafter's memory, from one process to the next. A request that samples searches for itself: its drafts are drawn from
the layers found so far, and its text must depend on its seed alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speculant.core.drafter import Persistent, Session, SessionRequest, Verified
from speculant.core.sublayers import Sublayers
from speculant.drafters.layers.drafter import LayerDrafter
from speculant.drafters.layers.search import KIND, LayerSearch, SearchSettings
from speculant.drafters.layers.session import LayerSession
from speculant.drafters.layers.stopping import ConfidenceChain
from speculant.drafters.layers.subsets import check_layers, every_other, without
from speculant.drafters.models.shapes import Shape
from speculant.drafters.models.tree_acceptance import LevelAcceptance
from speculant.memory.file import read_memory, write_memory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SWIFTSettings(SearchSettings):
    """Settings of `swift`.

    Attributes:
        sublayers: whether attention and MLP are skipped separately, as in the paper, where the model's layers can be
            split.
        skip_ratio: share of the layers or sublayers between the first and the last layer that is left out.
        window: generated tokens that a set is scored on.
        interval: rounds from one scored set to the next.
        bayes_interval: one set in so many is a promising one by the scores so far, the others are random.
        enough: score that ends the search.
        patience: sets without a better score that end it.
        steps: sets that end it.
        threshold: a draft ends after the token at which no token has this probability.
        longest: tokens of a chain at most.
        wide: whether that token has siblings, the more the less probable the most probable one is.
    """

    threshold: float = 0.8
    longest: int = 25
    wide: bool = True


class SWIFTDrafter(LayerDrafter, Persistent):
    """Chains drafted without what a search has found: `swift`. What is saved is the search.

    Attributes:
        search: of greedy requests.
    """

    def __init__(
        self, *, layers: int, tokenizer: str = "", whole_layers: str = "", settings: SWIFTSettings | None = None
    ) -> None:
        """Take the settings.

        Args:
            layers: decoder layers of the target; 0 where none can be left out.
            tokenizer: fingerprint that saved searches are tied to.
            whole_layers: why only whole layers can be left out; "" if attention and MLP can be separately.
            settings: None for the defaults.

        Raises:
            UnsupportedError: no layers of the target can be left out.
            UsageError: a setting is out of range.
        """
        self._settings, self._count = settings or SWIFTSettings(), check_layers(layers)
        s, acceptance = self._settings, LevelAcceptance()
        super().__init__(
            without(every_other(self._count), self._count),
            lambda: ConfidenceChain(acceptance, threshold=s.threshold, longest=s.longest, adaptive=False, wide=s.wide),
        )
        self._tokenizer = tokenizer
        self._split = s.sublayers and not whole_layers
        if s.sublayers and whole_layers:
            logger.warning(
                "attention and MLP of this model's layers cannot be skipped separately: %s. SWIFT searches whole "
                "layers.",
                whole_layers,
            )
        self.search = self._open_search()

    @property
    def memory_bytes(self) -> int:
        """Bytes that the search takes now."""
        return sum(array.nbytes for array in self.search.contents()[0].values())

    def save(self, path: Path) -> None:
        """Write the search.

        Raises:
            FileError: the file cannot be written; an older one is unchanged.
        """
        arrays, facts = self.search.contents()
        write_memory(path, kind=KIND, tokenizer=self._tokenizer, arrays=arrays, facts=facts)

    def load(self, path: Path) -> None:
        """Go on with the search of a file.

        Raises:
            FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
        """
        self.search.resume(*read_memory(path, kind=KIND, tokenizer=self._tokenizer))

    def open(self, start: SessionRequest) -> Session:
        self.try_layers(start)
        own = bool(start.sampling.temperature)
        search = self._open_search() if own else self.search
        return SWIFTSession(start, self._shape(), search, self._settings)

    def _open_search(self) -> LayerSearch:
        return LayerSearch(self._count, self._settings, split=self._split)


class SWIFTSession(LayerSession):
    """One request, whose rounds go on with the search."""

    def __init__(self, start: SessionRequest, shape: Shape, search: LayerSearch, settings: SearchSettings) -> None:
        super().__init__(start, search.layers, shape)
        self._search, self._settings = search, settings
        self._random = np.random.default_rng(start.seed)
        self._recent: list[int] = []  # generated tokens, the window's and one more

    def observe(self, verified: Verified) -> None:
        """Take what was generated, and score a set of layers on it."""
        super().observe(verified)
        window = self._settings.window
        self._recent = [*self._recent, *verified.tokens.tolist()][-window - 1 :]
        due = self._round % self._settings.interval == 0 and len(self._recent) > window and self._lent.depth
        if due and not self._search.over and self._lent.target.rereads:
            skipped = self._search.candidate(self._random)
            self._search.observe(skipped, self._score(skipped))
        self._lent.layers = self._search.layers

    def _score(self, skipped: Sublayers) -> float:
        """Return the share of the window's tokens that the target drafts rightly without these sublayers."""
        window = self._settings.window
        logits = self._lent.target.reread(window, self._search.without(skipped)).logits
        drafted: list[int] = logits.argmax(-1).tolist()
        return sum(a == b for a, b in zip(drafted, self._recent[1:], strict=True)) / window
