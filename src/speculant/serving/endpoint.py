"""Handling of text requests in every protocol: places in the queue, jobs, complete or streamed responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.requests import Request

from speculant.serving.access import note
from speculant.serving.answers import Service, outcome
from speculant.serving.errors import ApiError
from speculant.serving.exchange import Delta, Exchange
from speculant.serving.keys import tenant_of
from speculant.serving.schemas import SamplingRequest
from speculant.serving.streams import EventStream, while_connected
from speculant.serving.tracing import note_decoding


class Answer(Protocol):
    """The response to a request whose jobs have been submitted.

    Attributes:
        prompt: number of tokens of all its prompts.
    """

    prompt: int

    async def whole(self) -> BaseModel:
        """Return the response, once all texts have ended."""

    def events(self, first: tuple[int, Delta]) -> AsyncIterator[bytes]:
        """Yield the server-sent events of the stream, from the first delta on."""

    def write_failure(self, error: ApiError) -> bytes:
        """Return the final bytes of a stream that failed."""


async def respond(
    service: Service,
    body: SamplingRequest,
    request: Request,
    *,
    texts: int,
    begin: Callable[[Exchange], Coroutine[Any, Any, Answer]],
    headers: Mapping[str, str] | None = None,
) -> BaseModel | EventStream:
    """Return the response to a request; its places in the queue are released in any case.

    Args:
        service: state shared by the endpoints.
        body: body of the request.
        request: the HTTP request.
        texts: number of texts to decode.
        begin: submits their jobs.
        headers: additional headers of a streamed response.

    Raises:
        ApiError: the queue is full, or the request cannot be fulfilled.
    """
    exchange = service.engine.open(texts, tenant=tenant_of(request))
    note_decoding(request, body, exchange)
    try:
        answer = await while_connected(request, begin(exchange))
        note(request, prompt_tokens=answer.prompt, user=body.user)
        if not body.stream:
            return await while_connected(request, answer.whole())
        first = await while_connected(request, exchange.get())
        events = _note_outcome(answer.events(first), request, exchange)
        return EventStream(events, exchange, failed=answer.write_failure, headers=headers)
    except BaseException:
        exchange.close()
        raise
    finally:
        if not body.stream:
            note(request, **outcome(exchange))
            exchange.close()


async def _note_outcome(events: AsyncIterator[bytes], request: Request, exchange: Exchange) -> AsyncIterator[bytes]:
    """Yield events, then add facts about the decoding to the request's log line, also if the client disconnects."""
    try:
        async for each in events:
            yield each
    except (asyncio.CancelledError, GeneratorExit):
        note(request, disconnected=True)
        raise
    finally:
        note(request, **outcome(exchange))
