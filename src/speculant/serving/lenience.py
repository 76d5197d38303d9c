"""With `--lenient`: members of requests that the server does not know are left out, and named in a header.

Clients that send what only other servers know then work, and can see what had no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNUSED = "x-speculant-unused"  # header that names what was taken and has no effect
MAX_NAMED = 20  # that are named; a header has little room
LONGEST = 80  # characters of a name

_members: ContextVar[UnusedMembers | None] = ContextVar("speculant_unused", default=None)


class UnusedMembers:
    """The unknown members of one request, by their paths, such as "messages.0.mood".

    A value may be tried as several types, and only what the one that fits left out counts. So an object's members are
    known by the object, and become those of the object around it once that is whole.
    """

    def __init__(self) -> None:
        self._paths: dict[int, list[str]] = {}  # by the id of the object that holds them

    def paths(self) -> list[str]:
        """Return the paths of all of them."""
        return [path for found in self._paths.values() for path in found]

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Forget what an attempt to read an object found, if it fails."""
        before = dict(self._paths)
        try:
            yield
        except BaseException:
            self._paths = before
            raise

    def add(self, found: Any, unknown: Sequence[str], names: Mapping[str, str]) -> None:
        """Note the unknown members of an object that was read; those of the objects in it become its own.

        Args:
            found: the object, with its fields as attributes.
            unknown: its own unknown members.
            names: of its fields, on the wire.
        """
        paths = list(unknown)
        for field, name in names.items():
            value = getattr(found, field)
            for place, each in enumerate(value) if isinstance(value, list) else [(None, value)]:
                inner = self._paths.pop(id(each), ())
                paths += [f"{name}.{path}" if place is None else f"{name}.{place}.{path}" for path in inner]
        if paths:
            self._paths[id(found)] = paths

    def name(self, member: str) -> None:
        """Note a member of the request itself."""
        self._paths.setdefault(0, []).append(member)


def unused_members() -> UnusedMembers | None:
    """Return where the unknown members of the request that is read are noted; None where they are refused."""
    return _members.get()


class Lenience:
    """Lets unknown members of requests pass, and names them in the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        unused = UnusedMembers()

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start" and (paths := unused.paths()):
                headers = MutableHeaders(scope=message)
                own = [headers[UNUSED]] if UNUSED in headers else []
                headers[UNUSED] = ", ".join([*own, *_shown(paths)])
            await send(message)

        token = _members.set(unused)
        try:
            await self._app(scope, receive, marked)
        finally:
            _members.reset(token)


def _shown(paths: Sequence[str]) -> list[str]:
    """Return paths as a header may have them: clients choose names freely."""
    shown = [quote(path[:LONGEST], safe="._-[]$", errors="replace") for path in paths[:MAX_NAMED]]
    return [*shown, "..."] if len(paths) > MAX_NAMED else shown
