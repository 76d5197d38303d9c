"""`/health`, `/ready` and `/version`: whether the server works, whether it accepts requests now, and its version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from speculant import __version__
from speculant.serving.errors import SERVER, ApiError
from speculant.serving.openapi import READING, errors

if TYPE_CHECKING:
    from speculant.serving.answers import Service


class Health(BaseModel):
    """The server can decode requests."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """Whether requests are accepted, and if not, why.

    Attributes:
        status: "loading" until the model can decode, "draining" once the server is shutting down, "failed" if the
            decoding thread has died, else "ready".
    """

    status: Literal["ready", "loading", "draining", "failed"]


class Version(BaseModel):
    """The version of Speculant, in vLLM's format."""

    version: str = __version__


def add_probe_routes(app: FastAPI, service: Service) -> None:
    """Add the endpoints for load balancers and supervisors; `make_server` signals shutdown by `app.state.leaving`."""
    app.state.leaving = lambda: False

    @app.get("/health", responses=errors(503))
    async def health() -> Health:
        """Return whether the server works; if it does not, it needs a restart."""
        if not service.engine.alive:
            raise ApiError(503, "the decoding thread does not run.", type=SERVER, code="not_running")
        return Health()

    @app.get("/ready", response_model=Readiness, responses={503: {"model": Readiness, "description": "It does not."}})
    async def ready() -> JSONResponse:
        """Return whether the server accepts requests now."""
        found = Readiness(status="draining" if app.state.leaving() else service.engine.status)
        return readiness_response(found)

    @app.get("/version", responses=errors(*READING))
    async def version() -> Version:
        """Return the version of the server."""
        return Version()


def readiness_response(found: Readiness) -> JSONResponse:
    """Return the HTTP response for a readiness."""
    headers = {} if found.status == "ready" else {"Retry-After": "1"}
    return JSONResponse(found.model_dump(), 200 if found.status == "ready" else 503, headers=headers)
