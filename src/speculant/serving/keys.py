"""API keys: compared in constant time, before a request's body is read."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from speculant.core.errors import FileError, UsageError
from speculant.options.serving import ServingOptions, read_key
from speculant.serving.bodies import refuse
from speculant.serving.errors import ApiError
from speculant.serving.room import PROBES

OPEN = (*PROBES, "/", "/docs")  # probes, and pages that contain no user data
STATIC = "/static/"  # contains only the page's files
_TENANT = "speculant.tenant"


def tenant_name(key: str) -> str:
    """Return the name of a key in file names and metrics; the key cannot be recovered from it."""
    return hashlib.sha256(b"speculant tenant:" + key.encode()).hexdigest()[:16]


def tenant_of(request: Request) -> str:
    """Return the tenant of a request; "" if there are no keys."""
    return tenant_in(request.scope)


def tenant_in(scope: Scope) -> str:
    """Return the tenant of an ASGI scope; "" if there are no keys or its key has not been checked yet."""
    tenant: str = scope.get(_TENANT, "")
    return tenant


class KeyRing:
    """The active keys: those of the options, and those of a file, which can be reloaded.

    Attributes:
        file: file that keys are read from, or None.
        tenants: tenants by the digests of their keys.
    """

    def __init__(self, settings: ServingOptions) -> None:
        """Read the keys.

        Raises:
            FileError: the file cannot be read.
            UsageError: the file has no key, or an invalid line.
        """
        self._given, self.file = settings.api_keys, settings.api_key_file
        self.tenants: dict[bytes, str] = {}
        self.use(self.read())

    def read(self) -> tuple[str, ...]:
        """Read the current keys from options and file, without duplicates; raises the errors of `KeyRing`."""
        of_file = () if self.file is None else read_key_file(self.file)
        return tuple(dict.fromkeys([*self._given, *of_file]))

    def use(self, keys: Sequence[str]) -> None:
        """Replace the active keys."""
        self.tenants = {hashlib.sha256(key.encode()).digest(): tenant_name(key) for key in keys}

    def __len__(self) -> int:
        """Return the number of active keys."""
        return len(self.tenants)


def read_key_file(path: Path) -> list[str]:
    """Read the keys of a file: one per line, ignoring empty lines and lines that begin with #.

    Raises:
        FileError: the file cannot be read.
        UsageError: it has no key, which would leave the server open, or an invalid line.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read the keys in {path}: {getattr(error, 'strerror', None) or error}.") from error
    keys = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                keys.append(read_key(line.strip()))
            except ValueError as error:
                raise UsageError(f"line {number} of {path} {error}") from error
    if not keys:
        raise UsageError(f"{path} holds no key, which would let everyone ask. Write one per line.")
    return keys


class KeyCheck:
    """Answers requests without a valid key with 401."""

    def __init__(self, app: ASGIApp, keys: KeyRing, seconds: float) -> None:
        """Set the keys (none to allow everyone), and the maximum time in seconds for a refused request's body."""
        self._app, self._keys, self._seconds = app, keys, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its key is valid."""
        if scope["type"] == "http" and len(self._keys) and not _is_open(scope["path"]):
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
            elif name == b"x-api-key" and not given:  # sent by Anthropic's clients
                given = value.strip()
        digest, found = hashlib.sha256(given).digest(), None
        for known, tenant in self._keys.tenants.items():  # compares all, for constant time
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(STATIC)
