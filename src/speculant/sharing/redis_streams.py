"""A channel over a Redis or Valkey stream: XADD with a bounded length, and blocking XREAD.

One thread publishes, at most one message every `DELAY` seconds unless a message is full; the thread that polls reads.
While the server cannot be reached, both back off; one warning is logged, and decoding continues. A replica that lags
more than `WINDOW` seconds behind skips older messages; a new replica starts reading that far back.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any

from speculant.core.errors import UnsupportedError, UsageError
from speculant.sharing.address import Address
from speculant.sharing.channel import SharedTokens
from speculant.sharing.encoding import BadMessageError, decode, encode
from speculant.sharing.outbox import Outbox

logger = logging.getLogger(__name__)
DELAY = 0.2  # seconds that committed tokens wait for others to join their message
WINDOW = 600.0  # seconds behind the newest message beyond which older ones are skipped
EXPIRY = 86400  # seconds after the last message when the server deletes the stream
READ = 16  # messages per read
_FIELD = b"d"
_FIRST, _LONGEST = 0.1, 3.0  # seconds: first and longest pause while the server is unreachable
_TIMEOUT = 5.0
_CLOSING = 1.0


@dataclass(slots=True)
class Counts:
    """Counters of a channel.

    Attributes:
        messages, tokens: messages and tokens published.
        payload: bytes of published messages.
        dropped: tokens that could not be published.
        received: valid messages received from other replicas.
        refused: messages that could not be decoded.
        seconds: CPU time of the publishing thread.
    """

    messages: int = 0
    tokens: int = 0
    payload: int = 0
    dropped: int = 0
    received: int = 0
    refused: int = 0
    seconds: float = 0.0


class RedisChannel:
    """One replica's end of a stream.

    Attributes:
        counts: counters.
        replica: its random number, by which it recognises its own messages.
    """

    def __init__(self, address: Address, *, tokenizer: str, vocabulary: int) -> None:
        """Prepare the channel; it connects in the background, so the server need not be reachable yet.

        Args:
            address: address of the stream.
            tokenizer: fingerprint of the tokenizer; replicas with different ones use different streams.
            vocabulary: V; messages with ids outside of it are refused.

        Raises:
            UnsupportedError: redis-py is not installed.
            UsageError: redis-py does not accept the URL.
        """
        self._client = open_client(address)
        self._address, self._key, self._vocabulary = address, address.key(tokenizer), vocabulary
        self.counts, self.replica = Counts(), secrets.randbits(64)
        self._outbox, self._outage = Outbox(), _Outage(address.shown)
        self._last: tuple[int, int] | None = None
        self._fresh, self._reading = False, _Pause()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="speculant-publishing", daemon=True)
        self._thread.start()

    def publish(self, piece: SharedTokens) -> None:
        """Queue a piece."""
        self._outbox.add(piece)

    def poll(self, timeout: float) -> list[SharedTokens]:
        """Return what other replicas published; nothing while the server is unreachable."""
        try:
            if not self._fresh:
                self._begin()
            found = self._client.xread({self._key: _text(self._last)}, count=READ, block=max(1, int(timeout * 1000)))
            entries = found[0][1] if found else []
            if len(entries) == READ:
                self._catch_up()
            self._reading.reset()
            self._outage.over("reads")
        except Exception as error:  # from the socket, from redis-py, or due to an invalid reply of the server
            self._fresh = False
            if self._closed.is_set():
                return []
            self._outage.begin("reads", error)
            self._closed.wait(self._reading.next())
            return []
        return [piece for entry, fields in entries for piece in self._pieces(entry, fields)]

    def close(self) -> None:
        """Publish what is left, for at most a second, and stop the thread."""
        self._outbox.close()
        self._thread.join(_CLOSING)
        self._closed.set()
        self._client.close()
        self._thread.join(_CLOSING)

    def _pieces(self, entry: bytes, fields: Any) -> list[SharedTokens]:
        """Return the pieces of an entry; none if it is this replica's own or cannot be decoded."""
        self._last = max(self._last or (0, 0), _number(entry))
        try:
            pieces = decode(fields.get(_FIELD, b""), self._vocabulary)
        except (BadMessageError, AttributeError) as error:
            self.counts.refused += 1
            if self.counts.refused == 1:
                logger.warning(
                    "a message in the stream of %s could not be decoded and was skipped; further ones are only "
                    "counted: %s",
                    self._address.shown,
                    error,
                )
            return []
        if pieces and pieces[0].replica == self.replica:
            return []
        self.counts.received += 1
        return pieces

    def _begin(self) -> None:
        """Find where to read from: after the last message read or, for a new stream, from the window's start."""
        newest = self._newest()
        if self._last is None or newest < self._last:
            self._last = _before(newest)
        self._fresh = True

    def _catch_up(self) -> None:
        """Skip messages older than the window."""
        assert self._last is not None
        self._last = max(self._last, _before(self._newest()))

    def _newest(self) -> tuple[int, int]:
        found = self._client.xrevrange(self._key, count=1)
        return _number(found[0][0]) if found else (0, 0)

    def _send_all(self) -> None:
        pause = _Pause()
        while self._outbox.wait(DELAY) and not self._closed.is_set():
            pieces = self._outbox.take()
            while not self._closed.is_set():
                try:
                    self._send(pieces)
                    break
                except Exception as error:
                    if self._closed.is_set():
                        return
                    self._outage.begin("writes", error)
                    self._closed.wait(pause.next())
            pause.reset()
            self._outage.over("writes")
            self.counts.seconds = time.thread_time()

    def _send(self, pieces: list[SharedTokens]) -> None:
        message = encode(pieces, self.replica)
        pipe = self._client.pipeline(transaction=False)
        pipe.xadd(self._key, {_FIELD: message}, maxlen=self._address.entries, approximate=False)
        pipe.expire(self._key, EXPIRY)
        pipe.execute()
        self.counts.messages += 1
        self.counts.tokens += sum(len(piece.tokens) for piece in pieces)
        self.counts.payload += len(message)
        self.counts.dropped = self._outbox.dropped


class _Pause:
    """Pauses that grow from 0.1 to 3 seconds, with jitter so that replicas do not reconnect all at once."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self._next = _FIRST

    def next(self) -> float:
        """Return the next pause in seconds."""
        found, self._next = self._next, min(_LONGEST, 2 * self._next)
        return found * random.uniform(0.75, 1.0)


class _Outage:
    """Logs once when the server becomes unreachable and once when it is back, however many threads notice."""

    def __init__(self, shown: str) -> None:
        self._shown, self._lock = shown, threading.Lock()
        self._away: set[str] = set()

    def begin(self, who: str, error: Exception) -> None:
        """Report that one side cannot reach the server."""
        with self._lock:
            first = not self._away
            self._away.add(who)
        if first:
            logger.warning(
                "sharing is paused because %s cannot be used; decoding continues, and sharing resumes as soon as it "
                "can. %s: %s",
                self._shown,
                type(error).__name__,
                error,
            )

    def over(self, who: str) -> None:
        """Report that one side has reached the server again."""
        with self._lock:
            last = self._away == {who}
            self._away.discard(who)
        if last:
            logger.info("sharing has resumed through %s", self._shown)


def open_client(address: Address) -> Any:
    """Return a redis-py client, which connects on first use.

    Raises:
        UnsupportedError: redis-py is not installed.
        UsageError: redis-py does not accept the URL's options.
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise UnsupportedError("sharing needs redis-py. Install it: pip install 'speculant[share]'.") from None
    try:
        client = redis.Redis.from_url(
            address.url,
            protocol=2,
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
            retry=Retry(NoBackoff(), 0),
        )
        client.connection_pool.make_connection()  # validates the options; it does not connect
    except (TypeError, ValueError, redis.RedisError) as error:
        raise UsageError(
            f"redis-py does not know the options of the sharing URL ({type(error).__name__}). Leave them out, or see "
            "redis.Redis.from_url."
        ) from None
    return client


def _number(entry: bytes) -> tuple[int, int]:
    """Parse an entry's id: milliseconds and a sequence number."""
    head, _, tail = entry.partition(b"-")
    return int(head), int(tail)


def _text(entry: tuple[int, int] | None) -> str:
    return "0-0" if entry is None else f"{entry[0]}-{entry[1]}"


def _before(newest: tuple[int, int]) -> tuple[int, int]:
    """Return the id that lies one window before the newest one."""
    return max(0, newest[0] - int(1000 * WINDOW)), 0
