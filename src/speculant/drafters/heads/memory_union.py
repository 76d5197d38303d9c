"""A memory and a head combined in one tree; see `united_session`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Budget, Drafter, Persistent, Session, SessionRequest
from speculant.core.engine import MAX_NODES, RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.heads import calibration, union_kernels, whole_drafts
from speculant.drafters.heads.calibration import Calibration
from speculant.drafters.heads.drafter import LoadedHead, propose_together
from speculant.drafters.heads.head import head_needs
from speculant.drafters.heads.head_gain import HeadGain
from speculant.drafters.heads.kept import KeptStates
from speculant.drafters.heads.session import HeadSession
from speculant.drafters.heads.text import HeadText
from speculant.drafters.heads.united_session import FIRST_WEIGHTS, Reach, UnitedSession
from speculant.drafters.mix.base import MixBase
from speculant.drafters.mix.drafter import MixDrafter
from speculant.drafters.models.mixture import Mixture
from speculant.drafters.models.shapes import BestFirst
from speculant.drafters.models.tree_acceptance import LevelGains
from speculant.drafters.models.union import UnionSettings
from speculant.drafters.suffix.drafter import SuffixDrafter


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionHeadSettings(UnionSettings):
    """Settings of methods that combine a memory with a head.

    Attributes:
        proposed: nodes of the tree that the memory proposes; if that is fewer than are drafted, as many as are drafted
            when its drafts have been accepted nearly as far as the head's.
        depth: steps of the head.
        top_k: nodes extended per step, and candidates per extended node.
        wide: `top_k` if more than 16 nodes are drafted. In smaller drafts that many candidates cost acceptance, since
            the two estimates are then weighted on many improbable ones.
        min_probability: minimum joint probability of a node that is extended.
        vocabulary: file of token ids, most frequent first; the head drafts only these. "" for all tokens.
        vocabulary_size: number of tokens from the file that it drafts; 0 for all in the file.

    Raises:
        UsageError: a setting is out of range.
    """

    depth: int = 9
    wide: int = 10
    min_probability: float = 0.0
    vocabulary: str = ""
    vocabulary_size: int = 0

    def __post_init__(self) -> None:
        UnionSettings.__post_init__(self)
        if not 1 <= self.wide <= MAX_NODES:
            raise UsageError(f"wide must be from 1 to {MAX_NODES}, not {self.wide}.")


class MemoryDrafter(Drafter, Persistent, Protocol):
    """A drafter with a memory, whose node weights are probabilities."""

    @property
    def memory_bytes(self) -> int:
        """Current size of its memory in bytes."""


class UnionHeadDrafter(Drafter, Persistent):
    """Combines the tree of a memory with that of a head. Only the memory is saved.

    Attributes:
        head: the loaded head.
        memory: drafter that has the memory.
        states: states of the head's texts.
    """

    def __init__(self, head: LoadedHead, memory: MemoryDrafter, settings: UnionHeadSettings | None) -> None:
        """Combine both; `settings` None for the defaults. Raises the same errors as `HeadDrafter`."""
        self.memory, self._settings = memory, settings or UnionHeadSettings()
        self.head = head = head.with_vocabulary(self._settings.vocabulary, self._settings.vocabulary_size)
        self._mixture, self._reach, self._gains = Mixture(FIRST_WEIGHTS), Reach(), LevelGains()
        self._head_gain, self._calibration = HeadGain(), Calibration()
        union_kernels.warm_up()
        calibration.warm_up()
        whole_drafts.warm_up()
        self.states, own = KeptStates(head.head, head.target), head_needs(head.head)
        self._needs = replace(own, top_k=memory.needs.top_k, queries=memory.needs.queries, explores=False)

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs that the memory learns from, and the states that the head reads."""
        return self._needs

    @property
    def memory_bytes(self) -> int:
        """Current size of the memory in bytes."""
        return self.memory.memory_bytes

    def open(self, start: SessionRequest) -> Session:
        s = self._settings
        shape = BestFirst(self._gains, depth=s.depth, top_k=s.top_k, min_probability=s.min_probability, wide=s.wide)
        own = HeadSession(HeadText(self.states, start), start, shape, self._calibration)
        return UnitedSession(own, self.memory.open(start), self._mixture, self._reach, self._head_gain, s.proposed)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        return propose_together(sessions, budgets)

    def save(self, path: Path) -> None:
        """Write the memory; raises the same errors as the memory's own `save`."""
        self.memory.save(path)

    def load(self, path: Path) -> None:
        """Replace the memory; raises the same errors as the memory's own `load`."""
        self.memory.load(path)


class MixHeadDrafter(UnionHeadDrafter):
    """Drafter of the method `mix-head`."""

    def __init__(
        self,
        head: LoadedHead,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: UnionHeadSettings | None = None,
        bases: Sequence[MixBase] = (),
    ) -> None:
        """Set up the head, and build `mix`.

        Args:
            head: result of `load_head`.
            vocabulary: V of the target.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: maximum bytes for the memory of `mix`.
            settings: None for the defaults.
            bases: frozen bases of `mix`.
        """
        mix = MixDrafter(vocabulary=vocabulary, tokenizer=tokenizer, memory_limit=memory_limit, bases=bases)
        super().__init__(head, mix, settings)


class SuffixHeadDrafter(UnionHeadDrafter):
    """Drafter of the method `suffix-head`."""

    def __init__(
        self,
        head: LoadedHead,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: UnionHeadSettings | None = None,
    ) -> None:
        """Set up the head, and build `suffix`; takes the arguments of `MixHeadDrafter`, without bases."""
        suffix = SuffixDrafter(vocabulary=vocabulary, tokenizer=tokenizer, memory_limit=memory_limit)
        super().__init__(head, suffix, settings)
