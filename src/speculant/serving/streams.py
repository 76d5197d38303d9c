"""Responses whose client may disconnect: server-sent events, and complete answers.

A client that disconnects ends its decoding, which is closed in any case. A client that does not read is disconnected by
its connection, with the same effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from speculant.serving.errors import ApiError, api_error

T = TypeVar("T")
logger = logging.getLogger(__name__)
DONE = b"data: [DONE]\n\n"


def event(value: Any, *, name: str | None = None) -> bytes:
    """Return a server-sent event, with a name if the protocol uses names."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + to_json(value) + b"\n\n"


class Decoding(Protocol):
    """What a stream's events come from."""

    def close(self) -> None:
        """End it, if it has not ended."""


class EventStream(Response):
    """Sends server-sent events; an error in the middle becomes the last one."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        decoding: Decoding,
        *,
        failed: Callable[[ApiError], bytes],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Create the response.

        Args:
            events: events of the answer.
            decoding: closed at the end.
            failed: returns the final bytes of a stream that fails with an error.
            headers: additional headers of the response.
        """
        own = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=own | dict(headers or {}))
        del self.headers["content-length"]
        self._events, self._decoding, self._failed = events, decoding, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client disconnects."""
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._decoding.close()
            await _end(sending, leaving)
            if isinstance(self._events, AsyncGenerator):
                await self._events.aclose()  # now, so that what it notes at its end is in the log line

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for each in self._events:
                await _send(send, each)
        except Exception as error:
            if not isinstance(error, ApiError):
                logger.error("a stream failed", exc_info=error)
            await _send(send, self._failed(api_error(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def while_connected(request: Request, answer: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine, cancelling it if the client disconnects.

    Raises:
        ApiError: the client has disconnected; nobody reads this error.
    """
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ApiError(499, "the client closed the connection.", code="client_closed")
        return answering.result()
    finally:
        await _end(answering, leaving)


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    pending: list[Awaitable[Any]] = list(tasks)
    await asyncio.gather(*pending, return_exceptions=True)


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
