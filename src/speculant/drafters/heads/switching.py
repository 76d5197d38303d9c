"""SAM-Decoding combined with a trained head, which drafts if there is no long match; see `suffix.switching`."""

from __future__ import annotations

from dataclasses import dataclass

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Session, SessionRequest, Verified
from speculant.drafters.heads.drafter import HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.models.level_session import LevelSession
from speculant.drafters.suffix.sam import SamDrafter, SamSettings
from speculant.drafters.suffix.switching import SwitchingDrafter, SwitchingSession


@dataclass(frozen=True, slots=True, kw_only=True)
class SamHeadSettings(HeadSettings):
    """Settings of `sam-head`: those of the head, and of the automata.

    Attributes:
        threshold: minimum length of a match that is continued, in tokens; otherwise the head drafts.
        longest: maximum tokens for which a match is continued.
        bias: number of tokens by which a match in past text must be longer than one in the request.
    """

    threshold: int = 5
    longest: int = 40
    bias: int = 5


class SamHeadDrafter(SwitchingDrafter):
    """Drafter of the method `sam-head`."""

    def __init__(
        self,
        head: LoadedHead,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: SamHeadSettings | None = None,
    ) -> None:
        """Set up the head, and start with empty automata.

        Args:
            head: result of `load_head`.
            vocabulary: V of the target.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: maximum bytes for past text and its index.
            settings: None for the defaults.

        Raises:
            FileError, UsageError, UnsupportedError: a setting is out of range, or not supported by the head.
        """
        s = settings or SamHeadSettings()
        own = SamSettings(longest=s.longest, bias=s.bias)
        matching = SamDrafter(vocabulary=vocabulary, tokenizer=tokenizer, memory_limit=memory_limit, settings=own)
        self._head = HeadDrafter(head, settings=s)
        super().__init__(matching, self._head, s.threshold)
        self.head, self.states = self._head.head, self._head.states

    def open(self, start: SessionRequest) -> Session:
        return SamHeadSession(self.matching.session(start), self._head.open(start), self._threshold)


class SamHeadSession(SwitchingSession):
    """Session of one request."""

    def observe(self, verified: Verified) -> None:
        """Let both learn, but do not count the acceptance of a continuation as that of the head's drafts."""
        self._matching.observe(verified)
        if self.continued and isinstance(self.auxiliary, LevelSession):
            self.auxiliary.take(verified)
        else:
            self.auxiliary.observe(verified)
        self.continued = False
