"""Check of the `Host` header: on loopback, other sites must not reach the server through a name that they control."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from speculant.core.environment import PREFIX
from speculant.serving.bodies import refuse
from speculant.serving.errors import ApiError

_TRUSTED = "speculant.trusted_host"


class HostCheck:
    """Answers requests for hosts that are not allowed with 400, in OpenAI's format; Starlette matches the hosts."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str], seconds: float) -> None:
        """Set the allowed hosts, and the maximum time in seconds for a refused request's body."""
        self._app, self._seconds = app, seconds
        self._check = TrustedHostMiddleware(_trust, allowed_hosts=hosts, www_redirect=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its host is allowed."""
        await self._check(scope, receive, _drop)
        if scope.get(_TRUSTED):
            await self._app(scope, receive, send)
            return
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        error = ApiError(
            400,
            f"the host '{host[:200]}' is not allowed here: whoever runs the server can allow it in the environment "
            f"variable {PREFIX}ALLOWED_HOSTS, names separated by commas.",
            code="host_not_allowed",
        )
        await refuse(error, scope["path"], receive, send, seconds=self._seconds)


async def _trust(scope: Scope, _receive: Receive, _send: Send) -> None:
    scope[_TRUSTED] = True


async def _drop(_message: Message) -> None:
    """Discard Starlette's own response."""
