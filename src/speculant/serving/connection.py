"""A connection with limits that uvicorn lacks: timeouts, number of connections, and unambiguous request heads.

Without timeouts, clients that open connections and send nothing, or that request much and read nothing, would hold
sockets forever. If too many are open, the one that has been idle for longest is closed. Heads that other HTTP parsers
may interpret differently close the connection, as RFC 9112 requires, since a proxy could take part of one for a request
(request smuggling).
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)
SPARE = 32  # connections beyond the maximum, for health checks and for refusing further clients with a response
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_BARE_OR_FOLDED = re.compile(rb"(?<!\r)\n|\n[ \t]")
_LENGTHS = {b"content-length", b"transfer-encoding"}


class BoundedConnection(H11Protocol):
    """One client's connection.

    Attributes:
        idle_since: when it was opened, or its last answer ended, in seconds of the event loop's clock.
    """

    def __init__(self, *args: Any, head_seconds: float, stall_seconds: float, maximum: int, **options: Any) -> None:
        """Set uvicorn's arguments and the limits.

        Args:
            args, options: arguments of uvicorn's protocol.
            head_seconds: maximum time from the start of the connection, or a request's first byte, to the end of its
                headers; also for a body that nobody waits for, such as that of a refused request.
            stall_seconds: maximum time that the client may read none of the data waiting for it.
            maximum: number of connections beyond which an idle one is closed.
        """
        super().__init__(*args, **options)
        self._head_seconds, self._stall_seconds = head_seconds, stall_seconds
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._unread = 0  # unread bytes when the client was last checked
        self._maximum, self.idle_since = maximum, 0.0

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start without a buffer beyond the kernel's, so that all unread data is noticed."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        self.idle_since = self.loop.time()
        self._watch_head()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Receive data of a request."""
        super().data_received(data)
        self._watch_head()

    def handle_events(self) -> None:
        """Handle requests, unless a head is ambiguous."""
        if self.conn.their_state is h11.IDLE and not _unambiguous(self.conn.trailing_data[0]):
            self.send_400_response("Invalid HTTP request received.")
        else:
            super().handle_events()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the connection and cancel its timers."""
        for timer in (self._head, self._stall):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the client is not keeping up."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Note that it has read everything."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        super().resume_writing()

    def _watch_head(self) -> None:
        """Start the timer while a request's head is awaited, and cancel it once one has arrived."""
        if self._head is not None and not self.idle:
            self._head.cancel()
            self._head = None
        elif self._head is None and self.idle and not self.transport.is_closing():
            self._head = self.loop.call_later(self._head_seconds, self._give_up)

    def _watch_reader(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(self._stall_seconds, self._check_reader)

    def _check_reader(self) -> None:
        """Disconnect a client that has read nothing since the last check; slow readers are kept."""
        if self.transport.get_write_buffer_size() < self._unread:
            self._watch_reader()
            return
        logger.info("a client did not read its answer and was cut off")
        self.transport.abort()  # `close` would wait for the client to read the rest

    def _give_up(self) -> None:
        self._head = None
        if self.idle:
            self.transport.abort()

    def _make_room(self) -> None:
        """If there are too many connections, close the one that has been idle longest, or this one if none is idle."""
        others = [each for each in self.connections if each is not self and not each.transport.is_closing()]
        if len(others) < self._maximum:
            return
        idle = [each for each in others if isinstance(each, BoundedConnection) and each.idle]
        if idle:
            min(idle, key=lambda each: each.idle_since).transport.close()
        elif len(others) >= self._maximum + SPARE:
            self.transport.close()


def _unambiguous(data: bytes) -> bool:
    """Return whether the head that data begins with is unambiguous: no bare line feeds, folded lines or two lengths."""
    end = _END_OF_HEAD.search(data)
    head = data if end is None else data[: end.end()]
    names = {line.partition(b":")[0].strip().lower() for line in head.split(b"\r\n")[1:]}
    return not _BARE_OR_FOLDED.search(head) and not names >= _LENGTHS
