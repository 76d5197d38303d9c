"""Limit of concurrent requests: further ones get 503 at once, except probes, which are always answered."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from speculant.serving.errors import SERVER, ApiError

PROBES = ("/health", "/ready")  # of load balancers and supervisors


class RequestRoom:
    """Counts the requests that are being answered."""

    def __init__(self, app: ASGIApp, maximum: int) -> None:
        """Set the maximum number of concurrent requests."""
        self._app, self._maximum, self._count = app, maximum, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if there is room."""
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        if self._count >= self._maximum:
            error = ApiError(
                503,
                f"{self._maximum} requests are being answered, and there is no room for more. Try again.",
                type=SERVER,
                code="no_room",
                headers={"Retry-After": "1", "Connection": "close"},  # a body that is still arriving is not read
            )
            await error.response(scope["path"])(scope, receive, send)
            return
        self._count += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._count -= 1
