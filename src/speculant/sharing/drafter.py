"""A drafter that shares what it learns: it wraps another one, publishes committed tokens, and learns from replicas.

The round is unaware of it. A session forwards every call to a session of the inner drafter and queues committed tokens.
A thread receives what other replicas published and lets the inner drafter learn it, for at most a fifth of one core's
time, so a flooded channel costs little. The inner drafter must be safe to share between threads, as all drafters are.
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
from speculant.core.tree import DraftTree, Int32
from speculant.core.wrapped_session import WrappedSession
from speculant.sharing.channel import Channel, SharedTokens
from speculant.sharing.texts import ForeignTexts

MAX_PROMPT = 8192  # number of last prompt tokens that are published
SHARE = 0.2  # maximum share of a core's time for learning from other replicas
_POLL = 0.5
_PAUSE = 0.01
_CLOSING = 2.0  # seconds; a connection attempt may take longer, and ends with the process


class SharingDrafter(Drafter, Persistent):
    """Drafts with an inner drafter, whose memory also learns from other replicas.

    Attributes:
        inner: the drafter that drafts.
        channel: the channel through which tokens are exchanged.
        learner: the thread that learns from other replicas.
    """

    def __init__(self, inner: Drafter, channel: Channel) -> None:
        """Wrap a drafter and start learning.

        Args:
            inner: the drafter that drafts; it must learn from committed tokens alone.
            channel: the channel through which tokens are exchanged; closed by this drafter.

        Raises:
            UnsupportedError: the drafter keeps no memory.
        """
        if not isinstance(inner, Persistent):
            raise UnsupportedError(f"{type(inner).__name__} has no memory to share; use 'mix'.")
        self.inner, self.channel = inner, channel
        self._requests = itertools.count()
        self.learner = SharedLearner(channel, ForeignTexts(inner))
        self._finish = weakref.finalize(self, self.learner.close)  # also runs before the interpreter exits

    @property
    def needs(self) -> RequestedOutputs:
        """The outputs that the inner drafter needs."""
        return self.inner.needs

    @property
    def memory_bytes(self) -> int | None:
        """Current size of the inner drafter's memory in bytes; None if it does not report it."""
        return getattr(self.inner, "memory_bytes", None)

    @property
    def learned(self) -> int:
        """Number of tokens learned from other replicas."""
        return self.learner.texts.learned

    def open(self, start: SessionRequest) -> Session:
        inner = self.inner.open(start)
        return SharingSession(self.channel, inner, next(self._requests), start.prompt)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        return self.inner.propose([s.inner for s in sessions if isinstance(s, SharingSession)], budgets)

    def save(self, path: Path) -> None:
        """Write the inner drafter's memory, including what it learned from other replicas."""
        assert isinstance(self.inner, Persistent)
        self.inner.save(path)

    def load(self, path: Path) -> None:
        """Replace the inner drafter's memory with a file's."""
        assert isinstance(self.inner, Persistent)
        self.inner.load(path)

    def close(self) -> None:
        """Publish what is left and stop the threads; drafts may still be asked for."""
        self._finish()


class SharingSession(WrappedSession):
    """The session of one request."""

    def __init__(self, channel: Channel, inner: Session, request: int, prompt: Int32) -> None:
        super().__init__(inner)
        self._channel, self._request = channel, request
        self._end, self._open = 0, True
        kept = prompt[-MAX_PROMPT:]
        self._publish(kept, prompt=len(kept))

    def observe(self, verified: Verified) -> None:
        """Let the inner session learn, and publish the committed tokens."""
        self.inner.observe(verified)
        self._publish(verified.tokens)

    def follow(self, tokens: Int32) -> None:
        """Let the inner session learn the tokens of a pause, and publish them."""
        self.inner.follow(tokens)
        self._publish(tokens)

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
        texts: learns the received texts.
        seconds: CPU time used, including that for receiving.
    """

    def __init__(self, channel: Channel, texts: ForeignTexts) -> None:
        self.texts, self.seconds = texts, 0.0
        self._channel, self._closed = channel, threading.Event()
        self._thread = threading.Thread(target=self._work, name="speculant-sharing", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the channel and stop the thread."""
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
