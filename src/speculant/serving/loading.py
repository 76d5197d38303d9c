"""While the model loads, every request is answered with 503 at once, instead of waiting for the server to start."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from speculant.serving.bodies import refuse
from speculant.serving.errors import SERVER, ApiError
from speculant.serving.probes import Readiness, readiness_response
from speculant.serving.server import make_server

if TYPE_CHECKING:
    from speculant.options.serving import ServingOptions

BODY_SECONDS = 1.0  # maximum time for the body of a refused request


@contextmanager
def answering(bound: socket.socket, settings: ServingOptions) -> Iterator[None]:
    """Answer requests to a listening socket on a thread, until the server itself can."""
    server = make_server(make_loading_app(), replace(settings, drain_seconds=1), lambda: None)
    listening = bound.dup()  # uvicorn closes its sockets
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listening])), name="speculant-loading", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def make_loading_app() -> Starlette:
    """Return the application that reports that the model is being loaded."""

    async def ready(_request: Request) -> Response:
        return readiness_response(Readiness(status="loading"))

    async def refuse_request(scope: Scope, receive: Receive, send: Send) -> None:
        message = "the model is being loaded. Try again."
        error = ApiError(503, message, type=SERVER, code="loading", headers={"Retry-After": "1", "Connection": "close"})
        await refuse(error, scope["path"], receive, send, seconds=BODY_SECONDS)

    return Starlette(routes=[Route("/ready", ready), Mount("/", refuse_request)])
