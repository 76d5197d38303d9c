"""SAM-Decoding with another drafter: a long match is continued, and where there is none the other one drafts.

Hu et al.: "SAM Decoding: Speculative Decoding via Suffix Automaton", ACL 2025, arXiv 2411.10666, section 3.3: beside
Token Recycling or EAGLE-2. A match counts as long from a threshold on.
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
    """Continues long matches, and else drafts as another drafter does. What is saved are the automata.

    Attributes:
        matching: the automata.
        auxiliary: the other drafter.
    """

    def __init__(self, matching: SamDrafter, auxiliary: Drafter, threshold: int) -> None:
        """Take both drafters, and the tokens from which on a match is long.

        Raises:
            UsageError: that is below 1.
        """
        if threshold < 1:
            raise UsageError(f"threshold must be at least 1, not {threshold}.")
        self.matching, self.auxiliary, self._threshold = matching, auxiliary, threshold

    @property
    def needs(self) -> RequestedOutputs:
        """What the other drafter needs."""
        return self.auxiliary.needs

    @property
    def memory_bytes(self) -> int:
        """Bytes that both memories take now."""
        return self.matching.memory_bytes + int(getattr(self.auxiliary, "memory_bytes", 0))

    def open(self, start: SessionRequest) -> Session:
        return SwitchingSession(self.matching.session(start), self.auxiliary.open(start), self._threshold)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        """Return a draft for each of several sessions; the other drafter drafts for all that need it at once."""
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
        """Write the documents of the automata; raises as `SamDrafter.save`."""
        self.matching.save(path)

    def load(self, path: Path) -> None:
        """Replace the documents of the automata; raises as `SamDrafter.load`."""
        self.matching.load(path)


class SwitchingSession(Session):
    """One request.

    Attributes:
        auxiliary: the other drafter's session.
        continued: whether the last draft continued a match.
    """

    def __init__(self, matching: SamSession, auxiliary: Session, threshold: int) -> None:
        self._matching, self.auxiliary, self._threshold, self.continued = matching, auxiliary, threshold, False

    def continuation(self, budget: Budget) -> DraftTree:
        """Return the continuation of a long match; empty where there is none."""
        found = self._matching.propose(budget) if self._matching.match >= self._threshold else DraftTree.empty()
        self.continued = bool(len(found))
        return found

    def propose(self, budget: Budget) -> DraftTree:
        draft = self.continuation(budget)
        return draft if len(draft) else self.auxiliary.propose(budget)

    def forecast(self, nodes: int) -> Float64 | None:
        """A continuation is sized by its weights, other drafts as they say."""
        return None if self._matching.match >= self._threshold else self.auxiliary.forecast(nodes)

    def observe(self, verified: Verified) -> None:
        """Let both learn."""
        self._matching.observe(verified)
        self.auxiliary.observe(verified)

    def follow(self, tokens: Int32) -> None:
        self._matching.follow(tokens)
        self.auxiliary.follow(tokens)

    def close(self) -> None:
        self._matching.close()
        self.auxiliary.close()
