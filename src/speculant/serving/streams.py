"""Responses whose client may leave: server-sent events, and answers that are waited for.

A client that goes away, or does not read, ends its decoding: the exchange is closed whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from speculant.serving.errors import ApiError, api_error
from speculant.serving.exchange import Exchange

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """Return a server-sent event."""
    return b"data: " + to_json(value) + b"\n\n"


class EventStream(Response):
    """Sends chunks as server-sent events; an error in the middle becomes an event."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncIterator[dict[str, Any]], exchange: Exchange, *, stall_seconds: float) -> None:
        """Take what is to be sent.

        Args:
            chunks: of the answer.
            exchange: closed in the end.
            stall_seconds: that a part may wait for the client to read.
        """
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks, self._exchange, self._stall = chunks, exchange, stall_seconds
        self._offered: float | None = None  # when the part that waits for the client was offered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client leaves or does not read."""
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(disconnected(receive))
        try:
            # One timer for a stream: one for each of its parts would take longer than sending it does.
            while not (await _first_of(sending, leaving, seconds=self._patience())):
                if self._patience() <= 0:
                    _LOG.info("a client did not read its stream and was cut off")
                    break
        finally:
            self._exchange.close()
            await _end(sending, leaving)

    def _patience(self) -> float:
        """Return the seconds in which no part of the stream can have waited too long."""
        return self._stall if self._offered is None else self._offered + self._stall - time.monotonic()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._chunks:
                await self._send(send, event(chunk))
        except Exception as error:
            if not isinstance(error, ApiError):
                _LOG.error("a stream failed", exc_info=error)
            await self._send(send, event(api_error(error).body()))
        await self._send(send, DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        self._offered = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._offered = None


async def while_connected(request: Request, answer: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, ended when the client goes away.

    Raises:
        ApiError: the client has gone; nobody reads that.
    """
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await _first_of(answering, leaving)
        if not answering.done():
            raise ApiError(499, "the client closed the connection.", code="client_closed")
        return answering.result()
    finally:
        await _end(answering, leaving)


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first_of(*tasks: asyncio.Future[Any], seconds: float | None = None) -> bool:
    """Wait until one of the tasks is done, for so long at most; return whether one is."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    pending: list[Awaitable[Any]] = list(tasks)
    await asyncio.gather(*pending, return_exceptions=True)
