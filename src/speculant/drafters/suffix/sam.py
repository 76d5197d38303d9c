"""SAM-Decoding: draft the continuation of the longest suffix that occurred before, in the request or in past text.

Hu, Wang, Zhang, Zhang, Li, Chen, Zhang: "SAM Decoding: Speculative Decoding via Suffix Automaton", ACL 2025, arXiv
2411.10666, section 3. One automaton is built over the request as it grows, another over past requests is followed token
by token; the draft is the chain of tokens that followed the latest occurrence of the longer match. As the authors' code
is commonly run: drafts of 40 tokens, and if the request matches at all, the match in past text must be more than 5
tokens longer. Used alone, the method drafts from matches of any length; combined with another drafter (`switching`),
only from a threshold on. Our additions: past text is learned when a request is closed, and node weights follow the rule
of succession: a match of L tokens continues for i more with probability about L / (L + i).
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import ref

import numpy as np

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Budget, Session, SessionRequest, Verified
from speculant.core.tree import DraftTree, Int32
from speculant.drafters.suffix.automaton import ROOT, SuffixAutomaton, advance
from speculant.drafters.suffix.history import HistoryDrafter, PastTexts

KIND = "suffix-automaton"
_REMATCHED = 256  # number of last tokens that a session matches against an automaton it has not followed so far


@dataclass(frozen=True, slots=True, kw_only=True)
class SamSettings:
    """Settings of SAM-Decoding; the defaults are those the authors' code is commonly run with.

    Attributes:
        longest: maximum tokens drafted.
        bias: number of tokens by which a match in past text must be longer than one in the request.
        auxiliary: model-free method that drafts where no match is long, such as recycling; empty for none.
        threshold: minimum length of a match that is preferred to the auxiliary method, in tokens.
    """

    longest: int = 40
    bias: int = 5
    auxiliary: str = ""
    threshold: int = 5


@dataclass(slots=True)
class Follower:
    """A session's match in one generation of past text: its state and length.

    The reference is weak, so that an idle session does not keep a dropped generation in memory.
    """

    generation: ref[SuffixAutomaton]
    state: int = ROOT
    length: int = 0

    def follow(self, automaton: SuffixAutomaton, text: Int32) -> None:
        """Advance by a text, Int32[T], in the generation's automaton."""
        self.state, self.length = advance(automaton.sam, self.state, self.length, text)


class SamDrafter(HistoryDrafter[SuffixAutomaton]):
    """Drafter whose automaton over past requests is shared by all requests of a process behind one lock."""

    kind = KIND

    def __init__(
        self,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: SamSettings | None = None,
    ) -> None:
        """Start with an empty automaton.

        Args:
            vocabulary: V, the number of token ids.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: maximum bytes for past text and its index; a request's own index is extra.
            settings: None for the defaults.

        Raises:
            UnsupportedError: the vocabulary has more ids than the automaton can hold.
        """
        self.settings = settings or SamSettings()
        super().__init__(vocabulary=vocabulary, tokenizer=tokenizer, memory_limit=memory_limit)
        # The first request should not wait for compiled kernels to load.
        SamSession(self, np.zeros(3, np.int32)).propose(Budget(nodes=1, depth=1))

    def _empty(self, limit: int) -> PastTexts[SuffixAutomaton]:
        return PastTexts(lambda share: SuffixAutomaton(limit=share), limit=limit)

    def open(self, start: SessionRequest) -> Session:
        return self.session(start)

    def session(self, start: SessionRequest) -> SamSession:
        """Start a request; its automaton starts with the prompt."""
        return SamSession(self, start.prompt)

    def follow(self, followers: list[Follower], text: Int32, fresh: int) -> list[Follower]:
        """Follow the last `fresh` tokens of a text in both generations; in a new generation, the last 256 tokens."""
        with self._learning.lock:
            known = {id(follower.generation()): follower for follower in followers}
            followers = []
            for automaton in (self._history.young, self._history.old):
                follower = known.get(id(automaton))
                if follower is None:
                    follower = Follower(ref(automaton))
                    follower.follow(automaton, text[-_REMATCHED:])
                else:
                    follower.follow(automaton, text[len(text) - fresh :])
                followers.append(follower)
        return followers

    def recall(self, followers: list[Follower], maximum: int) -> tuple[int, Int32]:
        """Return the length of the longest match in past text, and up to `maximum` tokens that followed it."""
        with self._learning.lock:
            longest, tokens = 0, np.empty(0, np.int32)
            for follower in followers:
                automaton = follower.generation()
                if automaton is None:
                    continue
                follower.follow(automaton, np.empty(0, np.int32))
                if follower.length > longest:
                    longest, tokens = follower.length, automaton.continuation(follower.state, maximum)
            return longest, tokens


class SamSession(Session):
    """Session of one request: its own automaton, and its matches in the automata over past text."""

    def __init__(self, drafter: SamDrafter, prompt: Int32) -> None:
        self._drafter = drafter
        self._automaton = SuffixAutomaton()
        self._automaton.extend(prompt)
        self._followers = drafter.follow([], prompt, len(prompt))
        self._closed = False

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain, the continuation of the longest match."""
        maximum = min(budget.nodes, budget.depth, self._drafter.settings.longest)
        length, tokens = self._longest(maximum) if maximum > 0 else (0, np.empty(0, np.int32))
        if not length:
            return DraftTree.empty()
        n = len(tokens)
        weights = length / (length + np.arange(1, n + 1))
        return DraftTree.trusted(tokens, np.arange(-1, n - 1, dtype=np.int32), weights.astype(np.float32))

    @property
    def match(self) -> int:
        """Length of the match that would be continued, in tokens; 0 for none."""
        return self._longest(1)[0]

    def _longest(self, maximum: int) -> tuple[int, Int32]:
        """Return the length of the match to continue, and up to `maximum` tokens that followed it."""
        state, length = self._automaton.repeated
        past, tokens = self._drafter.recall(self._followers, maximum)
        if length and past <= length + self._drafter.settings.bias:
            return length, self._automaton.continuation(state, maximum)
        return past, tokens

    def observe(self, verified: Verified) -> None:
        """Add the committed tokens to the request's automaton, and follow them in past text."""
        self._automaton.extend(verified.tokens)
        self._followers = self._drafter.follow(self._followers, self._automaton.text, len(verified.tokens))

    def close(self) -> None:
        """Add prompt and output to the automaton over past text."""
        if not self._closed:
            self._closed = True
            self._drafter.learn(self._automaton.text)
