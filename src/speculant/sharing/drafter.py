"""A drafter that shares what it learns: it owns another one, publishes what is committed, and learns from others.

The round knows nothing of it. A session passes everything on to one of the inner drafter's and puts committed tokens
into a queue. A thread takes what other replicas published and has the inner drafter learn it, for at most a fifth of
one core's time, so a flooded channel costs little. The inner drafter must be safe to share between threads, as all are.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from speculant.core.drafter import Budget, Drafter, Persistent, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree, Float64, Int32
from speculant.sharing.channel import Channel, SharedTokens
from speculant.sharing.texts import ForeignTexts

MAX_PROMPT = 8192  # last tokens of a prompt that are published
SHARE = 0.2  # of a core's time, at most, for learning from others
_POLL = 0.5
_PAUSE = 0.01
_CLOSING = 2.0  # seconds; a connection attempt may take longer, and ends with the process


class SharingDrafter(Drafter, Persistent):
    """Drafts as the inner drafter does, whose memory learns from other replicas too.

    Attributes:
        inner: what drafts.
        channel: where tokens are exchanged.
    """

    def __init__(self, inner: Drafter, channel: Channel) -> None:
        """Take a drafter and a channel, which this one closes, and begin to learn.

        Args:
            inner: what drafts; it must learn from committed tokens alone.
            channel: where tokens are exchanged.

        Raises:
            UnsupportedError: the drafter keeps no memory.
        """
        if not isinstance(inner, Persistent):
            raise UnsupportedError(f"{type(inner).__name__} keeps no memory that could be shared; use 'mix'.")
        self.inner, self.channel = inner, channel
        self._requests = itertools.count()
        self._learner = SharedLearner(channel, ForeignTexts(inner))
        self._finish = weakref.finalize(self, self._learner.close)  # also before the interpreter ends

    @property
    def needs(self) -> RequestedOutputs:
        """What the inner drafter needs."""
        return self.inner.needs

    @property
    def memory_bytes(self) -> int | None:
        """Bytes that the inner drafter's memory takes now; None if it does not report them."""
        return getattr(self.inner, "memory_bytes", None)

    @property
    def learned(self) -> int:
        """Tokens learned from other replicas."""
        return self._learner.texts.learned

    @property
    def learning_seconds(self) -> float:
        """CPU seconds of the thread that learns, receiving included."""
        return self._learner.seconds

    def open(self, start: SessionRequest) -> Session:
        inner = self.inner.open(start)
        return SharingSession(self.channel, inner, next(self._requests), start.prompt)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        return self.inner.propose([s.inner for s in sessions if isinstance(s, SharingSession)], budgets)

    def save(self, path: Path) -> None:
        """Write the inner drafter's memory, with what it learned from others."""
        assert isinstance(self.inner, Persistent)
        self.inner.save(path)

    def load(self, path: Path) -> None:
        """Replace the inner drafter's memory by a file's."""
        assert isinstance(self.inner, Persistent)
        self.inner.load(path)

    def close(self) -> None:
        """Publish what is left and end the threads; drafts may still be asked for."""
        self._finish()


class SharingSession(Session):
    """One request."""

    def __init__(self, channel: Channel, inner: Session, request: int, prompt: Int32) -> None:
        self.inner, self._channel, self._request = inner, channel, request
        self._end, self._open = 0, True
        kept = prompt[-MAX_PROMPT:]
        self._publish(kept, prompt=len(kept))

    def propose(self, budget: Budget) -> DraftTree:
        return self.inner.propose(budget)

    def propose_after(self, tokens: Sequence[int], budget: Budget) -> DraftTree:
        return self.inner.propose_after(tokens, budget)

    def observe(self, verified: Verified) -> None:
        """Let the inner session learn, and publish the committed tokens."""
        self.inner.observe(verified)
        self._publish(verified.tokens)

    def follow(self, tokens: Int32) -> None:
        """The same for tokens of a pause."""
        self.inner.follow(tokens)
        self._publish(tokens)

    def forecast(self, nodes: int) -> Float64 | None:
        return self.inner.forecast(nodes)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._publish(np.empty(0, np.int32), ended=True)
        self.inner.close()

    def _publish(self, tokens: Int32, *, prompt: int = 0, ended: bool = False) -> None:
        self._channel.publish(
            SharedTokens(request=self._request, start=self._end, tokens=tokens, prompt=prompt, ended=ended)
        )
        self._end += len(tokens)


class SharedLearner:
    """The thread that learns from other replicas.

    Attributes:
        texts: what it learns into.
        seconds: CPU time that it took.
    """

    def __init__(self, channel: Channel, texts: ForeignTexts) -> None:
        self.texts, self.seconds = texts, 0.0
        self._channel, self._closed = channel, threading.Event()
        self._thread = threading.Thread(target=self._work, name="speculant-sharing", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the channel and the thread."""
        self._closed.set()
        self._channel.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING)

    def _work(self) -> None:
        paid = time.thread_time()
        while not self._closed.is_set():
            for piece in self._channel.poll(_POLL):
                self.texts.learn(piece)
                self.seconds = time.thread_time()
                pause = (self.seconds - paid) * (1 / SHARE - 1)
                if pause > _PAUSE:
                    self._closed.wait(pause)
                    paid = self.seconds
                if self._closed.is_set():
                    break
            self.seconds = paid = time.thread_time()
        self.texts.close()
