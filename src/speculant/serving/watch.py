"""The endpoints of the page at `/`: texts with the draft of every round, and what the memory has learned.

`POST /page/generate` streams a text as server-sent events, one per round; `GET /page/state` describes the server. Both
are meant for the page and may change with it; programs should use `/v1`.
"""

from __future__ import annotations

import string
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fastapi import Body, FastAPI, Request
from fastapi.responses import Response
from pydantic import Field

from speculant import __version__
from speculant.core.drafter import Drafter, Inspectable
from speculant.core.stats import Stats
from speculant.serving.access import note
from speculant.serving.answers import Service, outcome
from speculant.serving.bounds import Strict
from speculant.serving.exchange import Delta, Exchange, Job
from speculant.serving.keys import KeyRing, tenant_of
from speculant.serving.memory_keeper import memory_bytes
from speculant.serving.schemas import CompletionRequest, Message
from speculant.serving.scoped_metrics import ScopedMetrics
from speculant.serving.streams import DONE, EventStream, event, while_connected
from speculant.serving.token_types import Finite

if TYPE_CHECKING:
    from speculant.decoding.sequence import Round

PHRASES, LOOKED_AT = 12, 24  # number of phrases shown, and of those examined
BEFORE = string.whitespace + ".,;:!?\"'()"  # stripped from the start of a phrase
LOOKED_UP = 256  # number of tokens of a text that are looked up in the memory


class WatchRequest(Strict):
    """`POST /page/generate`.

    Attributes:
        prompt: the prompt's text.
        chat: whether it is a message for the model's chat template; otherwise a text to continue.
        method: "drafts" for the server's own method, "plain" for decoding without drafts in the same loop.
        max_tokens, temperature, seed: as in `/v1/completions`.
    """

    prompt: str
    chat: bool = False
    method: Literal["drafts", "plain"] = "drafts"
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: Finite = Field(default=0.0, ge=0, le=100)
    seed: int | None = Field(default=None, ge=0, lt=1 << 53)


class Watch:
    """Answers the page's requests."""

    def __init__(
        self, service: Service, method: str, drafters: Mapping[str, Drafter], metrics: ScopedMetrics, keys: KeyRing
    ) -> None:
        """Set the parts of the server.

        Args:
            service: state shared by the endpoints.
            method: the server's drafting method.
            drafters: drafters by tenant, "" for the shared one.
            metrics: provide counts of drafts and accepted tokens.
            keys: the active API keys.
        """
        self._keys = keys
        self._service, self._method, self._drafters, self._metrics = service, method, drafters, metrics

    async def generate(self, body: WatchRequest, request: Request) -> EventStream:
        """Return the stream of a text.

        Raises:
            ApiError: the request cannot be fulfilled.
        """
        service = self._service
        asked = CompletionRequest(
            model=service.model,
            prompt=body.prompt,
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            seed=body.seed,
        )
        service.check_shape(asked, 1)
        exchange = service.engine.open(1, tenant=tenant_of(request))
        try:
            if body.chat:
                ids = await service.prompts.chat([Message(role="user", content=body.prompt)])
            else:
                ids = await service.prompts.text(body.prompt)
            plain = body.method == "plain"
            options = service.options(asked, len(ids))
            exchange.submit(Job(prompt=ids, options=options, tenant=tenant_of(request), plain=plain, watched=True))
            note(request, prompt_tokens=len(ids))
            _, first = await while_connected(request, exchange.get())
            events = self._events(exchange, first, "none" if plain else self._method, ids, request)
            return EventStream(_in_frames(events), exchange, failed=lambda error: event(error.body()) + DONE)
        except BaseException:
            exchange.close()
            raise

    async def state(self, request: Request) -> dict[str, Any]:
        """Return what the page shows about the server: the model, its limits, and the requesting user's memory."""
        prompts, settings = self._service.prompts, self._service.settings
        tenant = tenant_of(request)
        drafts, hits = self._metrics.of(tenant).drafting()
        memory = {
            "bytes": memory_bytes(self._drafters, tenant),
            "limit": settings.memory_limit,
            "scope": settings.memory_scope,
        }
        return {
            "version": __version__,
            "model": self._service.model,
            "method": self._method,
            "chat": prompts.chats,
            "max_tokens": min(settings.max_new_tokens, prompts.positions or settings.max_new_tokens),
            "memory": memory | {"drafts": drafts, "hits": hits, "phrases": self._phrases()},
        }

    def _phrases(self) -> list[dict[str, Any]] | None:
        """Return the most used phrases; None if they are not known, or may come from another user's texts."""
        drafter = self._inspectable("")
        if drafter is None:
            return None
        prompts, found = self._service.prompts, dict[str, dict[str, Any]]()
        text = prompts.token_text
        for phrase in drafter.top_phrases(LOOKED_AT, without=prompts.special_ids):
            words = "".join(map(text, phrase.tokens)).split("\n")[-1].lstrip(BEFORE).rstrip()
            if len(words.split()) > 1 or (words and not words.isascii()):  # several words, or a script without spaces
                following = [{"text": text(token), "share": round(share, 3)} for token, share in phrase.following]
                found.setdefault(words, {"text": words, "uses": phrase.uses, "following": following})
        return list(found.values())[:PHRASES]

    def _inspectable(self, tenant: str) -> Inspectable | None:
        """Return the memory that a tenant may inspect: its own, or the shared one if there is a single user."""
        drafter: object = self._drafters.get(tenant) if tenant else None
        if drafter is None and len(self._keys) <= 1:
            drafter = self._drafters.get("")
        return drafter if isinstance(drafter, Inspectable) else None

    async def _events(
        self, exchange: Exchange, delta: Delta, method: str, prompt: Sequence[int], request: Request
    ) -> AsyncIterator[dict[str, Any]]:
        yield {"type": "start", "method": method, "prompt_tokens": len(prompt)}
        stats, tokens = Stats(method, prompt_tokens=len(prompt)), list(prompt[-2:])
        while True:
            if delta.piece is not None and delta.piece.tokens:
                tokens += delta.piece.tokens
                yield await self._round(delta, stats)
            if delta.last:
                break
            _, delta = await exchange.get()
        note(request, **outcome(exchange))
        known = self._find_seen_share(tokens, len(prompt[-2:]), tenant_of(request)) if method == "none" else None
        yield {"type": "end", "finish_reason": delta.finish_reason, "known": known}

    def _find_seen_share(self, tokens: list[int], start: int, tenant: str) -> float | None:
        """Return the share of a text that the memory has seen; None if it cannot tell, or must not."""
        drafter = self._inspectable(tenant)
        if drafter is None:
            return None
        return round(drafter.seen_share(np.array(tokens[: start + LOOKED_UP], np.int32), start=start), 3)

    async def _round(self, delta: Delta, stats: Stats) -> dict[str, Any]:
        """Return the event of a round, and count it."""
        piece = delta.piece
        assert piece is not None
        milliseconds, stats.seconds = 1e3 * (piece.seconds - stats.seconds), piece.seconds
        if not piece.rounds:
            stats.tokens, stats.prefill_seconds = len(piece.tokens), piece.seconds
        for each in piece.rounds:
            stats.add_round(each.draft, each.walk.path, each.walk.tokens)
        decoding = stats.seconds - stats.prefill_seconds
        return {
            "type": "round",
            "tokens": [
                {"text": text, "source": source.value} for text, source in zip(piece.texts, piece.sources, strict=True)
            ],
            "drafts": [self._draft(each) for each in piece.rounds],
            "milliseconds": round(milliseconds, 3),
            "total": {
                "tokens": stats.tokens,
                "rounds": stats.rounds,
                "milliseconds": round(1e3 * stats.seconds, 3),
                "tokens_per_second": round((stats.tokens - 1) / decoding, 2) if decoding > 0 else 0,
                "mat": round(stats.mat, 3),
                "offered_by_depth": stats.offered_by_depth,
                "accepted_by_depth": stats.accepted_by_depth,
            },
        }

    def _draft(self, watched: Round) -> dict[str, Any]:
        draft, walk, prompts = watched.draft, watched.walk, self._service.prompts

        def text(token: int) -> str:
            return "" if token in prompts.special_ids else prompts.token_text(token)

        return {
            "texts": [text(token) for token in draft.tokens.tolist()],
            "parents": draft.parents.tolist(),
            "weights": [round(weight, 4) for weight in draft.weights.tolist()],
            "path": list(walk.path),
            "bonus": text(walk.tokens[-1]),
        }


def add_watch_routes(app: FastAPI, watch: Watch) -> None:
    """Add the page's endpoints."""

    @app.post("/page/generate", include_in_schema=False)
    async def generate(body: Annotated[WatchRequest, Body()], request: Request) -> Response:
        """Stream a text with the draft of every round."""
        return await watch.generate(body, request)

    @app.get("/page/state", include_in_schema=False)
    async def state(request: Request) -> dict[str, Any]:
        """Describe the server and its memory."""
        return await watch.state(request)


async def _in_frames(values: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    """Yield the events of values, then one that marks the end."""
    async for value in values:
        yield event(value)
    yield DONE
