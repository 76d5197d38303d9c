"""How a text request is answered, by both endpoints: places in the queue, jobs, the response whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.requests import Request

from speculant.serving.access import note
from speculant.serving.answers import Service, chunker, metrics_of, outcome, usage
from speculant.serving.exchange import Delta, Exchange
from speculant.serving.keys import tenant_of
from speculant.serving.schemas import SamplingRequest
from speculant.serving.streams import EventStream, while_connected


class Answer(Protocol):
    """The response to a request whose jobs are submitted.

    Attributes:
        prompt: tokens of all its prompts.
        completion: tokens of its texts that were streamed so far.
        kind: of its chunks, and the prefix of their ids.
    """

    prompt: int
    completion: int
    kind: tuple[str, str]

    async def whole(self) -> BaseModel:
        """Return the response, once all texts have ended."""

    def chunks(self, first: tuple[int, Delta]) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the choices of each chunk of the stream, from the first delta on."""


async def respond(
    service: Service,
    body: SamplingRequest,
    request: Request,
    *,
    texts: int,
    begin: Callable[[Exchange], Coroutine[Any, Any, Answer]],
) -> BaseModel | EventStream:
    """Return the response to a request; whatever happens, its places in the queue are given back.

    Args:
        service: of the server.
        body: what the client asks for.
        request: its HTTP request.
        texts: to be decoded.
        begin: submits their jobs.

    Raises:
        ApiError: there is no room, or the request cannot be honoured.
    """
    exchange = service.engine.open(texts, tenant=tenant_of(request))
    try:
        answer = await while_connected(request, begin(exchange))
        note(request, prompt_tokens=answer.prompt, user=body.user)
        if not body.stream:
            return await while_connected(request, answer.whole())
        first = await while_connected(request, exchange.get())
        chunks = _chunks(service, body, request, exchange, answer, first)
        return EventStream(chunks, exchange)
    except BaseException:
        exchange.close()
        raise
    finally:
        if not body.stream:
            note(request, **outcome(exchange))
            exchange.close()


async def _chunks(
    service: Service,
    body: SamplingRequest,
    request: Request,
    exchange: Exchange,
    answer: Answer,
    first: tuple[int, Delta],
) -> AsyncIterator[dict[str, Any]]:
    prefix, kind = answer.kind
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    chunk = chunker(prefix, kind, service.model, with_usage=with_usage)
    left = len(exchange.tickets)
    async for choices in answer.chunks(first):
        left -= sum(choice["finish_reason"] is not None for choice in choices)
        # Clients read the first choice of every chunk, unless they asked for one with usage alone.
        yield chunk(choices) if left or with_usage else chunk(choices, **metrics_of(service, exchange))
    note(request, **outcome(exchange))
    if with_usage:
        tokens = usage(exchange, answer.prompt, answer.completion, choices=body.choices)
        yield chunk([], **metrics_of(service, exchange), usage=tokens.model_dump())
