"""A connection with time limits, which uvicorn's own lacks: for a request's head to arrive, and for a client to read.

Without them whoever opens connections and sends nothing, or asks for much and reads nothing, holds sockets for ever.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_LOG = logging.getLogger(__name__)


class TimedConnection(H11Protocol):
    """One client's connection."""

    def __init__(self, *args: Any, head_seconds: float, stall_seconds: float, **options: Any) -> None:
        """Take uvicorn's arguments and the limits.

        Args:
            args, options: of uvicorn.
            head_seconds: from the connection's start, or a request's first byte, to the end of its headers. A body
                that nobody waits for, such as that of a refused request, has as long.
            stall_seconds: that data may wait without the client reading any of it.
        """
        super().__init__(*args, **options)
        self._head_seconds, self._stall_seconds = head_seconds, stall_seconds
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes when the client was last looked at

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin, with no buffer beyond the kernel's: whatever waits to be read is noticed."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Take data of a request."""
        super().data_received(data)
        self._watch_head()

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
        awaited = self.cycle is None or self.cycle.response_complete
        if self._head is not None and not awaited:
            self._head.cancel()
            self._head = None
        elif self._head is None and awaited and not self.transport.is_closing():
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
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
