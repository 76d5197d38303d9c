"""API keys: compared in constant time before anything of a request is read."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from speculant.serving.bodies import refuse
from speculant.serving.errors import ApiError
from speculant.serving.room import PROBES

OPEN = (*PROBES, "/", "/docs")  # and the pages, which hold nothing of anyone
STATIC = "/static/"  # below it are the page's files, and nothing else
_TENANT = "speculant.tenant"


def tenant_name(key: str) -> str:
    """Return what stands for a key in names of files and metrics; the key cannot be had from it."""
    return hashlib.sha256(b"speculant tenant:" + key.encode()).hexdigest()[:16]


def tenant_of(request: Request) -> str:
    """Return the tenant of a request, "" without keys."""
    return tenant_in(request.scope)


def tenant_in(scope: Scope) -> str:
    """Return the same of an ASGI scope, "" too before its key was checked."""
    tenant: str = scope.get(_TENANT, "")
    return tenant


class KeyCheck:
    """Answers requests without a valid key with 401."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], seconds: float) -> None:
        """Take the keys, without any of which everyone may ask, and the seconds that a refused body may take."""
        self._app, self._seconds = app, seconds
        self._keys = {hashlib.sha256(key.encode()).digest(): tenant_name(key) for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if it may be."""
        if scope["type"] == "http" and self._keys and not _is_open(scope["path"]):
            tenant = self._tenant(scope)
            if tenant is None:
                error = ApiError(
                    401,
                    "a valid API key is needed, in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                    type="authentication_error",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await refuse(error, scope["path"], receive, send, seconds=self._seconds)
                return
            scope[_TENANT] = tenant
        await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, bearer = value.partition(b" ")
                given = bearer.strip() if scheme.lower() == b"bearer" else b""
            elif name == b"x-api-key" and not given:  # as Anthropic's clients send it
                given = value.strip()
        digest, found = hashlib.sha256(given).digest(), None
        for known, tenant in self._keys.items():  # all of them, so that the time does not depend on which
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(STATIC)
