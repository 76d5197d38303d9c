"""`mix` and a draft model combined in one tree; see `union`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Drafter, Persistent, Session, SessionRequest
from speculant.core.engine import RequestedOutputs
from speculant.drafters.mix.base import MixBase
from speculant.drafters.mix.drafter import MixDrafter
from speculant.drafters.models.draft_text import DraftText, OpenCache
from speculant.drafters.models.mixture import Mixture
from speculant.drafters.models.union import FIRST_WEIGHTS, UnionSession, UnionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class MixModelSettings(UnionSettings):
    """Settings of `mix-model`.

    Attributes:
        proposed: nodes of the tree that `mix` proposes.
        depth: passes of the draft model that extend it.
        top_k: nodes extended per pass, and candidates per extended node.
        min_probability: minimum joint probability of a node that is extended.
    """


class MixModelDrafter(Drafter, Persistent):
    """Drafter of the method `mix-model`. Only the memory of `mix` is saved."""

    def __init__(
        self,
        open_cache: OpenCache,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: MixModelSettings | None = None,
        bases: Sequence[MixBase] = (),
    ) -> None:
        """Set up the draft model, and build `mix`.

        Args:
            open_cache: returns an unread cache of the draft model for a prompt Int32[T].
            vocabulary: V of the target.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: maximum bytes for the memory of `mix`.
            settings: None for the defaults.
            bases: frozen bases of `mix`.
        """
        self._open_cache, self._vocabulary, self._settings = open_cache, vocabulary, settings or MixModelSettings()
        self.mix = MixDrafter(vocabulary=vocabulary, tokenizer=tokenizer, memory_limit=memory_limit, bases=bases)
        self._mixture = Mixture(FIRST_WEIGHTS)

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs that `mix` learns from."""
        return self.mix.needs

    @property
    def memory_bytes(self) -> int:
        """Current size of the memory of `mix` in bytes."""
        return self.mix.memory_bytes

    def open(self, start: SessionRequest) -> Session:
        text = DraftText.open(self._open_cache, start, self._vocabulary)
        return UnionSession(text, self.mix.open(start), self._mixture, self._settings)

    def save(self, path: Path) -> None:
        """Write the memory of `mix`; raises the same errors as `MixDrafter.save`."""
        self.mix.save(path)

    def load(self, path: Path) -> None:
        """Replace the memory of `mix`; raises the same errors as `MixDrafter.load`."""
        self.mix.load(path)
