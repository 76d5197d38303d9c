"""Stored responses of the Responses API, for `previous_response_id`, and running ones, which can be cancelled.

Each key has its own, bounded in number and bytes; the least recently used one is evicted first.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from speculant.serving.errors import ApiError
from speculant.serving.exchange import Exchange

ENTRIES = 1000  # maximum per key


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A stored response.

    Attributes:
        response: the response as it was sent.
        items: items of its input, with ids.
        messages: messages of the conversation including its answer, without instructions.
        size: size in bytes that counts towards the limit.
    """

    response: dict[str, Any]
    items: Sequence[dict[str, Any]]
    messages: Sequence[dict[str, Any]]
    size: int


@dataclass(frozen=True, slots=True)
class Running:
    """A response that is being decoded, and the form in which a cancelling client gets it."""

    exchange: Exchange
    cancelled: Callable[[], dict[str, Any]]


class ResponseStore:
    """The stored and running responses of all keys."""

    def __init__(self, *, limit: int, entries: int = ENTRIES) -> None:
        """Set the limits per key: bytes, 0 to store nothing, and number of responses."""
        self._limit, self._entries = limit, entries
        self._kept: dict[str, OrderedDict[str, Kept]] = {}
        self._sizes: dict[str, int] = {}
        self._running: dict[tuple[str, str], Running] = {}

    def put(
        self, tenant: str, response: dict[str, Any], items: Sequence[dict[str, Any]], messages: Sequence[dict[str, Any]]
    ) -> None:
        """Store a response and evict older ones beyond the limits; one that exceeds them alone is not stored."""
        size = sum(len(json.dumps(each)) for each in (response, items, messages))
        if size > self._limit:
            return
        own = self._kept.setdefault(tenant, OrderedDict())
        own[response["id"]] = Kept(response=response, items=items, messages=messages, size=size)
        self._sizes[tenant] = self._sizes.get(tenant, 0) + size
        while self._sizes[tenant] > self._limit or len(own) > self._entries:
            _, oldest = own.popitem(last=False)
            self._sizes[tenant] -= oldest.size

    def get(self, tenant: str, name: str, *, param: str | None = None) -> Kept:
        """Return a stored response of a key.

        Raises:
            ApiError: it is not stored.
        """
        own = self._kept.get(tenant, OrderedDict())
        if name not in own:
            raise ApiError(
                404,
                f"no response '{name[:128]}' is kept: it was not stored, was deleted, or made room for newer ones. "
                "Send the whole conversation in 'input'.",
                param=param,
                code="response_not_found",
            )
        own.move_to_end(name)
        return own[name]

    def delete(self, tenant: str, name: str) -> None:
        """Delete a stored response.

        Raises:
            ApiError: it is not stored.
        """
        kept = self.get(tenant, name)
        self._sizes[tenant] -= kept.size
        del self._kept[tenant][name]

    def begin(self, tenant: str, name: str, running: Running) -> None:
        """Register a response that is being decoded, so that it can be cancelled."""
        self._running[tenant, name] = running

    def end(self, tenant: str, name: str) -> None:
        """Unregister a response that is no longer being decoded."""
        self._running.pop((tenant, name), None)

    def cancel(self, tenant: str, name: str) -> dict[str, Any]:
        """Cancel a running response and return it; the reader of its stream gets an error.

        Raises:
            ApiError: it is not being decoded.
        """
        running = self._running.get((tenant, name))
        if running is None:
            self.get(tenant, name)
            raise ApiError(400, f"the response '{name[:128]}' has ended already.", code="invalid_value")
        running.exchange.fail(ApiError(409, "the response was cancelled.", code="cancelled"))
        return running.cancelled()
