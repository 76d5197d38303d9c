"""SAM-Decoding combined with another drafter, which drafts wherever there is no long match to continue.

Hu et al.: "SAM Decoding: Speculative Decoding via Suffix Automaton", ACL 2025, arXiv 2411.10666, section 3.3: combined
with Token Recycling or EAGLE-2. A match counts as long from a threshold on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from speculant.core.drafter import Budget, Drafter, Persistent, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree, Float64, Int32
from speculant.drafters.suffix.sam import SamDrafter, SamSession


class SwitchingDrafter(Drafter, Persistent):
    """Continues long matches, and otherwise uses another drafter. Only the automata are saved.

    Attributes:
        matching: drafter that owns the automata.
        auxiliary: the other drafter.
    """

    def __init__(self, matching: SamDrafter, auxiliary: Drafter, threshold: int) -> None:
        """Combine both drafters; matches of at least `threshold` tokens are continued.

        Raises:
            UsageError: the threshold is below 1.
        """
        if threshold < 1:
            raise UsageError(f"threshold must be at least 1, not {threshold}.")
        self.matching, self.auxiliary, self._threshold = matching, auxiliary, threshold

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs that the other drafter needs."""
        return self.auxiliary.needs

    @property
    def memory_bytes(self) -> int:
        """Current size of both memories in bytes."""
        return self.matching.memory_bytes + int(getattr(self.auxiliary, "memory_bytes", 0))

    def open(self, start: SessionRequest) -> Session:
        return SwitchingSession(self.matching.session(start), self.auxiliary.open(start), self._threshold)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        """Return a draft per session; the other drafter drafts at once for all sessions without a long match."""
        drafts, rest = dict[int, DraftTree](), dict[int, Session]()
        for place, (session, budget) in enumerate(zip(sessions, budgets, strict=True)):
            assert isinstance(session, SwitchingSession)
            draft = session.continuation(budget)
            if len(draft):
                drafts[place] = draft
            else:
                rest[place] = session.auxiliary
        if rest:
            drafted = self.auxiliary.propose([*rest.values()], [budgets[place] for place in rest])
            drafts |= zip(rest, drafted, strict=True)
        return [drafts[place] for place in range(len(sessions))]

    def save(self, path: Path) -> None:
        """Write the documents of the automata; raises the same errors as `SamDrafter.save`."""
        self.matching.save(path)

    def load(self, path: Path) -> None:
        """Replace the documents of the automata; raises the same errors as `SamDrafter.load`."""
        self.matching.load(path)


class SwitchingSession(Session):
    """Session of one request.

    Attributes:
        auxiliary: session of the other drafter.
        continued: whether the last draft continued a match.
    """

    def __init__(self, matching: SamSession, auxiliary: Session, threshold: int) -> None:
        self._matching, self.auxiliary, self._threshold, self.continued = matching, auxiliary, threshold, False

    def continuation(self, budget: Budget) -> DraftTree:
        """Return the continuation of a long match; empty if there is none."""
        found = self._matching.propose(budget) if self._matching.match >= self._threshold else DraftTree.empty()
        self.continued = bool(len(found))
        return found

    def propose(self, budget: Budget) -> DraftTree:
        draft = self.continuation(budget)
        return draft if len(draft) else self.auxiliary.propose(budget)

    def forecast(self, nodes: int) -> Float64 | None:
        """Return the other drafter's forecast, or None for a continuation, whose size follows from its weights."""
        return None if self._matching.match >= self._threshold else self.auxiliary.forecast(nodes)

    def unread(self) -> int:
        return 0 if self._matching.match >= self._threshold else self.auxiliary.unread()

    def observe(self, verified: Verified) -> None:
        """Pass the result to both sessions."""
        self._matching.observe(verified)
        self.auxiliary.observe(verified)

    def follow(self, tokens: Int32) -> None:
        self._matching.follow(tokens)
        self.auxiliary.follow(tokens)

    def close(self) -> None:
        self._matching.close()
        self.auxiliary.close()
