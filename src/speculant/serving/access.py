"""Access log and request counts: one line per request, with facts noted by the endpoint; texts are never logged."""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from speculant.serving.keys import tenant_in
from speculant.serving.room import PROBES
from speculant.serving.scoped_metrics import ScopedMetrics

logger = logging.getLogger("speculant.serving.access")
_NOTES = "speculant.notes"
QUIET = (*PROBES, "/metrics")  # polled all the time, so logged at debug level only


def note(request: Request, **facts: Any) -> None:
    """Add facts to the log line of a request."""
    request.scope.get(_NOTES, {}).update({name: value for name, value in facts.items() if value is not None})


def notes_of(scope: Scope) -> dict[str, Any]:
    """Return the facts noted for a request."""
    notes: dict[str, Any] = scope.get(_NOTES, {})
    return notes


class AccessLog:
    """Logs and counts requests, and returns an id for each in `x-request-id`."""

    def __init__(self, app: ASGIApp, metrics: ScopedMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, then log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 499  # if the client disconnects before there is a response
        notes: dict[str, Any] = {"id": uuid.uuid4().hex}
        scope[_NOTES] = notes

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", [])
                message["headers"] = [*message["headers"], (b"x-request-id", notes["id"].encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except BaseException:
            status = 500 if status == 499 else status
            raise
        finally:
            route = getattr(scope.get("route"), "path", "none")
            seconds = time.monotonic() - began
            self._metrics.of(tenant_in(scope)).answered(scope["method"], route, status)
            facts = {"method": scope["method"], "path": route, "status": status, "seconds": round(seconds, 4)} | notes
            level = logging.DEBUG if route in QUIET else logging.INFO
            logger.log(level, "request", extra={"facts": facts})
