"""Answers of the Responses API that are kept, for `previous_response_id`, and those that can be cancelled.

Each key has its own, bounded in number and bytes; the one that was not used for longest goes first.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from speculant.serving.errors import ApiError
from speculant.serving.exchange import Exchange

ENTRIES = 1000  # of a key


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A response that is kept.

    Attributes:
        response: as it was sent.
        items: of its input, with ids.
        messages: of the conversation up to its answer, without instructions.
        size: bytes that it counts as.
    """

    response: dict[str, Any]
    items: Sequence[dict[str, Any]]
    messages: Sequence[dict[str, Any]]
    size: int


@dataclass(frozen=True, slots=True)
class Running:
    """A response that is being decoded, and how it is sent to who cancels it."""

    exchange: Exchange
    cancelled: Callable[[], dict[str, Any]]


class ResponseStore:
    """The responses of all keys."""

    def __init__(self, *, limit: int, entries: int = ENTRIES) -> None:
        """Take the bounds of each key: bytes, 0 for keeping nothing, and responses."""
        self._limit, self._entries = limit, entries
        self._kept: dict[str, OrderedDict[str, Kept]] = {}
        self._sizes: dict[str, int] = {}
        self._running: dict[tuple[str, str], Running] = {}

    def put(
        self, tenant: str, response: dict[str, Any], items: Sequence[dict[str, Any]], messages: Sequence[dict[str, Any]]
    ) -> None:
        """Keep a response, and let go of older ones beyond the bounds; one that is larger than them is not kept."""
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
        """Return a response of a key.

        Raises:
            ApiError: it is not kept.
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
        """Let go of a response.

        Raises:
            ApiError: it is not kept.
        """
        kept = self.get(tenant, name)
        self._sizes[tenant] -= kept.size
        del self._kept[tenant][name]

    def begin(self, tenant: str, name: str, running: Running) -> None:
        """Note that a response is being decoded, so that it can be cancelled."""
        self._running[tenant, name] = running

    def end(self, tenant: str, name: str) -> None:
        """Note that it is no longer."""
        self._running.pop((tenant, name), None)

    def cancel(self, tenant: str, name: str) -> dict[str, Any]:
        """End the decoding of a response and return it; who reads its stream gets the error.

        Raises:
            ApiError: it is not being decoded.
        """
        running = self._running.get((tenant, name))
        if running is None:
            self.get(tenant, name)
            raise ApiError(400, f"the response '{name[:128]}' has ended already.", code="invalid_value")
        running.exchange.fail(ApiError(409, "the response was cancelled.", code="cancelled"))
        return running.cancelled()
