"""The method `swift`: the layers or sublayers to skip are searched for during decoding.

Xia et al., ICLR 2025, arXiv 2410.06916; the search is in `search`, the stop rule in `stopping`. A candidate is scored
by one pass over the last tokens that the target generated; the authors' code uses the first tokens of the text. In
addition to the chain, they verify further top-k tokens at its uncertain positions; here a chain ends at the first such
position, and further candidates for it take the remaining room.

Greedy requests share one search, as in the authors' code, so that it continues from one text to the next and, saved as
the drafter's memory, from one process to the next. A request that samples has a search of its own, since its drafts
depend on the layers found so far, and its text must depend on its seed alone.
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
        skip_ratio: share of the layers or sublayers between the first and the last layer that is skipped.
        window: number of generated tokens on which a set is scored.
        interval: number of rounds between scored sets.
        bayes_interval: every so many sets, one is chosen by the scores so far; the others are random.
        enough: score at which the search ends.
        patience: number of consecutive sets without a better score after which it ends, at most four for each possible
            set.
        steps: number of sets after which it ends.
        threshold: a draft ends after the first position at which no token has this probability.
        longest: maximum tokens per chain.
        wide: whether the last token has siblings, more of them the less probable the most probable one is.
    """

    threshold: float = 0.8
    longest: int = 25
    wide: bool = True


class SWIFTDrafter(LayerDrafter, Persistent):
    """Drafts chains without the sublayers that a search selects; the search is what is saved.

    Attributes:
        search: search of the greedy requests.
    """

    def __init__(
        self, *, layers: int, tokenizer: str = "", whole_layers: str = "", settings: SWIFTSettings | None = None
    ) -> None:
        """Create the drafter.

        Args:
            layers: number of decoder layers of the target; 0 if none can be left out.
            tokenizer: fingerprint that saved searches are tied to.
            whole_layers: the reason why only whole layers can be left out; "" if attention and MLP can be separately.
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
        """Current size of the search in bytes."""
        return sum(array.nbytes for array in self.search.contents()[0].values())

    def save(self, path: Path) -> None:
        """Write the search.

        Raises:
            FileError: the file cannot be written; an existing file is left unchanged.
        """
        arrays, facts = self.search.contents()
        write_memory(path, kind=KIND, tokenizer=self._tokenizer, arrays=arrays, facts=facts)

    def load(self, path: Path) -> None:
        """Continue the search of a file.

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
    """One request, whose rounds continue the search."""

    def __init__(self, start: SessionRequest, shape: Shape, search: LayerSearch, settings: SearchSettings) -> None:
        super().__init__(start, search.layers, shape)
        self._search, self._settings = search, settings
        self._random = np.random.default_rng(start.seed)
        self._recent: list[int] = []  # the last `window` + 1 generated tokens

    def observe(self, verified: Verified) -> None:
        """Append the committed tokens, and score a set of layers on them."""
        super().observe(verified)
        window = self._settings.window
        self._recent = [*self._recent, *verified.tokens.tolist()][-window - 1 :]
        due = self._round % self._settings.interval == 0 and len(self._recent) > window and self._lent.depth
        if due and not self._search.over and self._lent.target.rereads:
            skipped = self._search.candidate(self._random)
            self._search.observe(skipped, self._score(skipped))
        self._lent.layers = self._search.layers

    def _score(self, skipped: Sublayers) -> float:
        """Return the share of the window's tokens that the target drafts correctly without these sublayers."""
        window, following = np.array(self._recent[:-1], np.int32), self._recent[1:]
        logits = self._lent.target.reread(window, self._search.without(skipped)).logits
        drafted: list[int] = logits.argmax(-1).tolist()
        return sum(a == b for a, b in zip(drafted, following, strict=True)) / len(window)
