"""The round loop: draft, verify, commit, learn.

    prefill
    while the text goes on:
        sizing says how many nodes may be worth drafting
        the session proposes a tree of at most as many, best first; sizing cuts off what does not pay
        the target runs one pass over the root and all nodes
        the verifier walks the tree along the target's own tokens
        the target keeps the cache rows of the accepted path
        the session learns what was committed, sizing what it took

Draft-then-verify is Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318); the
tree form SpecInfer (Miao et al. 2023, arXiv 2305.09781).
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from speculant.core.drafter import EMPTY_PATH, Drafter, Session, Verified
from speculant.core.engine import Choices, Logits, Sampler, Target
from speculant.core.errors import UsageError
from speculant.core.stats import Stats
from speculant.core.tree import DraftTree, Float32, Int32
from speculant.sizing.policy import Sizing
from speculant.verifiers.sample_then_follow import sample_then_follow


class Source(Enum):
    """Where a token came from."""

    PLAIN = "plain"
    ACCEPTED = "accepted"
    BONUS = "bonus"


@dataclass(frozen=True, slots=True)
class Round:
    """The tokens of one round and where each came from."""

    tokens: list[int]
    sources: list[Source]


class Decoding:
    """One request on its way, a step of a round at a time; so that one loop or many requests at once can drive it."""

    def __init__(
        self, target: Target, sampler: Sampler, drafter: Drafter, prompt: Int32, *, seed: int, stats: Stats
    ) -> None:
        """Prepare a request; nothing is computed yet.

        Args:
            target, sampler: of this request.
            drafter: shared; a session is opened on it.
            prompt: Int32[T].
            seed: for drafters that draw random numbers.
            stats: is filled.
        """
        self.target, self.sampler, self.stats = target, sampler, stats
        self.ended = False
        self.root = -1
        self._drafter, self._prompt, self._seed = drafter, prompt, seed
        self._session: Session | None = None
        self._best: Best = (None, None)
        self._claimed = False
        self._began = time.perf_counter()

    def claim(self) -> None:
        """Let one loop or batch have the request.

        Raises:
            UsageError: another has it, or had it.
        """
        if self._claimed:
            raise UsageError("this request was decoded before; prepare it again to decode it once more.")
        self._claimed = True

    def begin(self) -> Round:
        """Read the prompt and give the token that follows it; the session learns the prompt.

        Where this fails the cache is as it was given; if the prompt's pass itself did, it may be called again.
        """
        self._began = start = time.perf_counter()
        logits = self.target.prefill()
        try:
            nothing = DraftTree.empty()
            choices = self.look(logits, nothing)
            if choices is not None:
                self.sampler.receive(self.target.read([choices])[0])
            self.root, self.ended = self.sampler.draw(0)
            self.sampler.settle()
            self.stats.prefill_seconds = self.stats.seconds = time.perf_counter() - start
            mark = time.perf_counter()
            self._session = self._drafter.open(self._prompt, target=self.target, seed=self._seed)
            self._session.observe(_verified(nothing, [], [self.root], self._best))
            self.stats.draft_seconds += time.perf_counter() - mark
        except BaseException:
            self.target.restart()
            raise
        self.stats.tokens = 1
        return Round([self.root], [Source.PLAIN])

    def draft(self, budget: int) -> DraftTree:
        """Return a draft of at most `budget` nodes that the text has room for and the target can verify."""
        assert self._session is not None
        room = self.sampler.room
        tree = self._session.propose(budget) if budget and room > 1 else DraftTree.empty()
        if len(tree) >= room:
            tree = tree.within(room - 1)
        return self.target.shape(tree)

    def look(self, logits: Logits, tree: DraftTree) -> Choices | None:
        """Take Logits[N + 1, V] of a pass; return what the sampler must receive of it before it draws, or None."""
        top_k = self._drafter.needs.top_k
        self._best = self.target.top(logits, top_k) if top_k else (None, None)
        return self.sampler.look(logits, tree)

    def follow(self, tree: DraftTree) -> tuple[Round, list[int]]:
        """Walk the draft along the target's tokens and keep their cache rows; return the round and its path."""
        path, tokens, self.ended = sample_then_follow(tree, self.sampler.draw)
        self.sampler.settle()
        self.target.commit(path)
        self.stats.add_round(tree, path, tokens)
        self.root = tokens[-1]
        last = Source.BONUS if len(tree) else Source.PLAIN
        return Round(tokens, [Source.ACCEPTED] * len(path) + [last]), path

    def learn(self, tree: DraftTree, path: list[int], done: Round) -> None:
        """Let the session learn from a round, if it has not ended meanwhile."""
        if self._session is not None:
            self._session.observe(_verified(tree, path, done.tokens, self._best))
        self.stats.seconds = time.perf_counter() - self._began

    def close(self) -> None:
        """End the session, once; what it learned stays with the drafter."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def decode(decoding: Decoding, sizing: Sizing) -> Generator[Round]:
    """Decode one request, yielding its rounds as they happen; `sizing` says how many nodes its drafts may have."""
    decoding.claim()
    try:
        yield decoding.begin()
        while not decoding.ended:
            yield from _round(decoding, sizing)
    finally:
        decoding.close()
        decoding.stats.sizes = sizing.reason()


def _round(decoding: Decoding, sizing: Sizing) -> Generator[Round]:
    target, stats = decoding.target, decoding.stats
    began = time.perf_counter()
    tree = sizing.cut(decoding.draft(sizing.budget()))
    drafted = time.perf_counter()
    try:
        choices = decoding.look(target.verify(decoding.root, tree), tree)
        if choices is not None:
            decoding.sampler.receive(target.read([choices])[0])
        verified = time.perf_counter()
        done, path = decoding.follow(tree)
    except BaseException:
        target.rollback()
        raise
    try:
        committed = time.perf_counter()
        decoding.learn(tree, path, done)
        draft = drafted - began + time.perf_counter() - committed
        stats.draft_seconds += draft
        stats.target_seconds += verified - drafted
        sizing.learn(tree, path, done.tokens, target=verified - drafted, draft=draft)
    finally:
        yield done  # the cache has it, so the text must, even where learning fails


Best = tuple[Int32, Float32] | tuple[None, None]


def _verified(tree: DraftTree, path: list[int], tokens: list[int], best: Best) -> Verified:
    return Verified(
        tree=tree,
        path=np.array(path, np.int32) if path else EMPTY_PATH,
        tokens=np.array(tokens, np.int32),
        top_ids=best[0],
        top_logits=best[1],
    )
