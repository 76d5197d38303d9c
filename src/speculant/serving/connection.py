"""A connection with limits that uvicorn's own lacks: of time, of number, and of what a request's head may be.

Without those of time whoever opens connections and sends nothing, or asks for much and reads nothing, holds sockets for
ever. Where too many are open, the one that has had no request for longest makes room. Heads that other HTTP parsers
may read in another way end the connection, as RFC 9112 asks for, since a proxy could take a part of one for a request.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_LOG = logging.getLogger(__name__)
SPARE = 32  # connections beyond the most, for health checks, and for the answer to others that there is no room
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_BARE_OR_FOLDED = re.compile(rb"(?<!\r)\n|\n[ \t]")
_LENGTHS = {b"content-length", b"transfer-encoding"}


class BoundedConnection(H11Protocol):
    """One client's connection.

    Attributes:
        idle_since: when it was opened, or its last answer ended, in seconds of the event loop's clock.
    """

    def __init__(self, *args: Any, head_seconds: float, stall_seconds: float, maximum: int, **options: Any) -> None:
        """Take uvicorn's arguments and the limits.

        Args:
            args, options: of uvicorn.
            head_seconds: from the connection's start, or a request's first byte, to the end of its headers. A body
                that nobody waits for, such as that of a refused request, has as long.
            stall_seconds: that data may wait without the client reading any of it.
            maximum: connections, beyond which one without a request is closed.
        """
        super().__init__(*args, **options)
        self._head_seconds, self._stall_seconds = head_seconds, stall_seconds
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes when the client was last looked at
        self._maximum, self.idle_since = maximum, 0.0

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin, with no buffer beyond the kernel's: whatever waits to be read is noticed."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        self.idle_since = self.loop.time()
        self._watch_head()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Take data of a request."""
        super().data_received(data)
        self._watch_head()

    def handle_events(self) -> None:
        """Answer requests, unless a head can be read in several ways."""
        if self.conn.their_state is h11.IDLE and not _unambiguous(self.conn.trailing_data[0]):
            self.send_400_response("Invalid HTTP request received.")
        else:
            super().handle_events()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, timers too."""
        for timer in (self._head, self._stall):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the client does not keep up."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Note that it has read everything."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        super().resume_writing()

    def _watch_head(self) -> None:
        """Start the timer where a request's head is awaited, and end it where one has arrived."""
        if self._head is not None and not self.idle:
            self._head.cancel()
            self._head = None
        elif self._head is None and self.idle and not self.transport.is_closing():
            self._head = self.loop.call_later(self._head_seconds, self._give_up)

    def _watch_reader(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(self._stall_seconds, self._check_reader)

    def _check_reader(self) -> None:
        """Cut off a client that has read nothing since; one that is slow but reads goes on."""
        if self.transport.get_write_buffer_size() < self._unread:
            self._watch_reader()
            return
        _LOG.info("a client did not read its answer and was cut off")
        self.transport.abort()  # `close` would wait for the client to read the rest

    def _give_up(self) -> None:
        self._head = None
        if self.idle:
            self.transport.abort()

    def _make_room(self) -> None:
        """Close the connection that has had no request for longest where there are too many; else this one, if none."""
        others = [each for each in self.connections if each is not self and not each.transport.is_closing()]
        if len(others) < self._maximum:
            return
        idle = [each for each in others if isinstance(each, BoundedConnection) and each.idle]
        if idle:
            min(idle, key=lambda each: each.idle_since).transport.close()
        elif len(others) >= self._maximum + SPARE:
            self.transport.close()


def _unambiguous(data: bytes) -> bool:
    """Return whether the head that data begins with has one reading: no bare line feeds, folds, or two lengths."""
    end = _END_OF_HEAD.search(data)
    head = data if end is None else data[: end.end()]
    names = {line.partition(b":")[0].strip().lower() for line in head.split(b"\r\n")[1:]}
    return not _BARE_OR_FOLDED.search(head) and not names >= _LENGTHS
