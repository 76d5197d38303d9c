"""SAM-Decoding: the continuation of the longest suffix that occurred before, in the request or in past text.

Hu, Wang, Zhang, Zhang, Li, Chen, Zhang: "SAM Decoding: Speculative Decoding via Suffix Automaton", ACL 2025, arXiv
2411.10666, section 3. One automaton over the request grows with it, one over past requests is followed token by
token; the draft is the chain of tokens that followed where the longer match ended last. As the authors' code is
commonly run: drafts of 40 tokens, and where the request matches at all, past text must match by more than 5 tokens
longer. The method alone drafts whatever the match's length; the paper's threshold says when another takes over.
Ours: past text is learned when a request is closed, and a node's weight follows from the rule of succession: a match
of L tokens goes on for i more with probability about L / (L + i).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np

from speculant.core.drafter import Session, Verified
from speculant.core.tree import DraftTree, Int32
from speculant.drafters.suffix.automaton import ROOT, SuffixAutomaton, advance
from speculant.drafters.suffix.history import History, HistoryDrafter

KIND = "suffix-automaton"
_REMATCHED = 256  # tokens by which a session finds its place in an automaton that it has not followed


@dataclass(frozen=True, slots=True, kw_only=True)
class SamSettings:
    """What can be tuned; the defaults are those the authors' code is commonly run with.

    Attributes:
        longest: tokens drafted at the most.
        bias: tokens by which a match in past text must be longer than one in the request.
    """

    longest: int = 40
    bias: int = 5


@dataclass(slots=True)
class Follower:
    """How far a session has followed one generation of past text: the match's state and length.

    A session that waits must not keep a generation in memory that was dropped.
    """

    generation: ref[SuffixAutomaton]
    state: int = ROOT
    length: int = 0

    def follow(self, automaton: SuffixAutomaton, text: Int32) -> None:
        """Go on by text Int32[T] in the generation's automaton."""
        self.state, self.length = advance(automaton.sam, self.state, self.length, text)


class SamDrafter(HistoryDrafter[SuffixAutomaton]):
    """The automaton over past requests, shared by all requests of a process behind one lock."""

    kind = KIND

    def __init__(self, *, settings: SamSettings | None = None, **options: Any) -> None:
        """Start with an empty automaton.

        Args:
            settings: None for the defaults.
            options: see `HistoryDrafter`.

        Raises:
            UnsupportedError: the vocabulary has more ids than the automaton can tell apart.
        """
        self.settings = settings or SamSettings()
        super().__init__(**options)
        SamSession(self, np.zeros(3, np.int32)).propose(1)  # the first request should not wait for the kernels

    def _empty(self, limit: int) -> History[SuffixAutomaton]:
        return History(lambda share: SuffixAutomaton(limit=share), limit=limit)

    def open(self, prompt: Int32, *, target: Any = None, seed: int = 0) -> Session:
        """Begin a request; its automaton begins with the prompt."""
        return SamSession(self, prompt)

    def follow(self, followers: list[Follower], text: Int32, fresh: int) -> list[Follower]:
        """Follow the last `fresh` tokens of a text in both generations; one that is new is entered with more."""
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

    def recall(self, followers: list[Follower], most: int) -> tuple[int, Int32]:
        """Return the length of the longest match in past text, and what followed it, at most `most` tokens."""
        with self._learning.lock:
            longest, tokens = 0, np.empty(0, np.int32)
            for follower in followers:
                automaton = follower.generation()
                if automaton is None:
                    continue
                follower.follow(automaton, np.empty(0, np.int32))
                if follower.length > longest:
                    longest, tokens = follower.length, automaton.continuation(follower.state, most)
            return longest, tokens


class SamSession:
    """One request: its own automaton, and its place in those over past text."""

    def __init__(self, drafter: SamDrafter, prompt: Int32) -> None:
        self._drafter = drafter
        self._automaton = SuffixAutomaton()
        self._automaton.extend(prompt)
        self._followers = drafter.follow([], prompt, len(prompt))
        self._closed = False

    def propose(self, max_nodes: int) -> DraftTree:
        """Return the continuation of the longest match, a chain."""
        settings = self._drafter.settings
        most = min(max_nodes, settings.longest)
        if most < 1:
            return DraftTree.empty()
        state, length = self._automaton.repeated
        past, tokens = self._drafter.recall(self._followers, most)
        if length and past <= length + settings.bias:
            past, tokens = length, self._automaton.continuation(state, most)
        if past == 0:
            return DraftTree.empty()
        n = len(tokens)
        weights = past / (past + np.arange(1, n + 1))
        return DraftTree(tokens, np.arange(-1, n - 1, dtype=np.int32), weights.astype(np.float32))

    def observe(self, verified: Verified) -> None:
        """Let the request's automaton grow by what was committed, and follow it in past text."""
        self._automaton.extend(verified.tokens)
        self._followers = self._drafter.follow(self._followers, self._automaton.text, len(verified.tokens))

    def close(self) -> None:
        """Teach prompt and output to the automaton over past text."""
        if not self._closed:
            self._closed = True
            self._drafter.learn(self._automaton.text)
