"""Request bodies: read completely before the application sees them, within limits of size and time.

A server whose model takes media accepts large bodies, so their total size is bounded too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from speculant.serving.errors import SERVER, ApiError

MAX_HELD = 512 << 20  # bytes: maximum total size of all bodies at a time


class BodyLimit:
    """Refuses bodies that are too large, too slow or too many; bodies without a length are counted as they arrive."""

    def __init__(self, app: ASGIApp, maximum: int, seconds: float, held: int = MAX_HELD) -> None:
        """Set the limits: bytes per body, seconds in which it must arrive, and total bytes of all bodies at a time."""
        self._app, self._maximum, self._seconds, self._room = app, maximum, seconds, max(held, maximum)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, then pass the request on."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if size > self._room:
                message = "the server holds as many bodies as it may. Try again."
                raise ApiError(503, message, type=SERVER, code="busy", headers={"Retry-After": "1"})
            self._room -= size
            held += size

        try:
            await self._pass_on(scope, receive, send, hold)
        finally:
            self._room += held

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, hold: Callable[[int], None]) -> None:
        arriving = True

        async def receive_tracked() -> Message:
            nonlocal arriving
            message = await receive()
            arriving = message.get("more_body", False)
            return message

        try:
            self._check_length(scope)
            body = await asyncio.wait_for(self._read(receive_tracked, hold), self._seconds)
        except asyncio.TimeoutError:
            error = ApiError(
                408, "the body did not arrive in time.", code="body_timeout", headers={"Connection": "close"}
            )
            await error.response(scope["path"])(scope, receive, send)
            return
        except ApiError as error:
            await refuse(error, scope["path"], receive if arriving else None, send, seconds=self._seconds)
            return
        if body is None:  # the client has disconnected
            return
        first: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def receive_replayed() -> Message:
            nonlocal first
            if first is not None:
                message, first = first, None
                return message
            return await receive()

        await self._app(scope, receive_replayed, send)

    def _check_length(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"content-length" and not (value.isdigit() and len(value) < 20 and int(value) <= self._maximum):
                raise self._too_large()

    async def _read(self, receive: Receive, hold: Callable[[int], None]) -> bytes | None:
        parts, size = list[bytes](), 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._maximum:
                raise self._too_large()
            hold(len(parts[-1]))
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self._maximum} bytes. Shorten it.", code="body_too_large")


async def refuse(error: ApiError, path: str, receive: Receive | None, send: Send, *, seconds: float) -> None:
    """Refuse a request whose body may still be arriving: respond at once, but end the response after the body.

    Closing a connection with unread data resets it, and a client that sends everything before it reads would never see
    the response.

    Args:
        error: the error to respond with.
        path: path of the request.
        receive, send: the request's ASGI callables; `receive` is None if the body has already arrived.
        seconds: maximum time to wait for the body.
    """
    response = error.response(path)
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    if receive is not None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_drop(receive), seconds)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drop(receive: Receive) -> None:
    """Read a body to its end and discard it."""
    message = await receive()
    while message["type"] != "http.disconnect" and message.get("more_body", False):
        message = await receive()
