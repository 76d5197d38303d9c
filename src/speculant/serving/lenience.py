"""Members of requests that have no effect are named in a response header; with `--lenient`, unknown ones too.

So clients that send parameters of other servers work, and can see which ones had no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNUSED = "x-speculant-unused"  # header that names members that were accepted but have no effect
MAX_NAMED = 20  # maximum number of names, since headers must be short
LONGEST = 80  # characters: maximum length of a name

_members: ContextVar[UnusedMembers | None] = ContextVar("speculant_unused", default=None)


class UnusedMembers:
    """The members of one request that have no effect, by their paths, such as "messages.0.mood".

    A value may be validated as several types, and only the unknown members of the matching type count. So unknown
    members are recorded per object, and move to the enclosing object once that is valid.

    Attributes:
        lenient: whether unknown members are accepted.
    """

    def __init__(self, *, lenient: bool) -> None:
        self.lenient = lenient
        self._paths: dict[int, list[str]] = {}  # by the id of the object that contains them

    def paths(self) -> list[str]:
        """Return the paths of all members without effect."""
        return [path for found in self._paths.values() for path in found]

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Discard what an attempt to validate an object recorded, if it fails."""
        before = dict(self._paths)
        try:
            yield
        except BaseException:
            self._paths = before
            raise

    def add(self, found: Any, unknown: Sequence[str], names: Mapping[str, str]) -> None:
        """Record the unknown members of a validated object, including those of nested objects.

        Args:
            found: the object, with its fields as attributes.
            unknown: its own unknown members.
            names: wire names of its fields.
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
        """Record a member of the request itself."""
        self._paths.setdefault(0, []).append(member)


def unused_members() -> UnusedMembers | None:
    """Return the recorder of the current request's members without effect; None outside requests."""
    return _members.get()


def name_unused(member: str) -> None:
    """Record a member of the current request that has no effect."""
    unused = unused_members()
    if unused is not None:
        unused.name(member)


class LenienceMiddleware:
    """Names the members of requests that have no effect in the response, and decides whether unknown ones may be."""

    def __init__(self, app: ASGIApp, *, lenient: bool) -> None:
        self._app, self._lenient = app, lenient

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        unused = UnusedMembers(lenient=self._lenient)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start" and (paths := unused.paths()):
                headers = MutableHeaders(scope=message)
                own = [headers[UNUSED]] if UNUSED in headers else []
                headers[UNUSED] = ", ".join([*own, *_escape(paths)])
            await send(message)

        token = _members.set(unused)
        try:
            await self._app(scope, receive, send_marked)
        finally:
            _members.reset(token)


def _escape(paths: Sequence[str]) -> list[str]:
    """Return paths escaped for a header, since clients choose names freely."""
    shown = [quote(path[:LONGEST], safe="._-[]$", errors="replace") for path in paths[:MAX_NAMED]]
    return [*shown, "..."] if len(paths) > MAX_NAMED else shown
