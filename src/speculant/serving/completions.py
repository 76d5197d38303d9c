"""`POST /v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request

from speculant.serving.access import note
from speculant.serving.answers import Service, answer_id, chunker, collect, deltas, last_figures, now, outcome, usage
from speculant.serving.errors import ApiError
from speculant.serving.exchange import Delta, Exchange, Job
from speculant.serving.keys import tenant_of
from speculant.serving.logprobs import completion_logprobs, entries_of
from speculant.serving.parameters import COMPLETIONS, check_honoured
from speculant.serving.responses import CompletionChoice, CompletionResponse
from speculant.serving.schemas import CompletionRequest
from speculant.serving.streams import EventStream, while_connected


async def create_completion(
    service: Service, body: CompletionRequest, request: Request
) -> CompletionResponse | EventStream:
    """Continue one text or several; the choices of the first prompt come first.

    Raises:
        ApiError: the request cannot be honoured.
    """
    service.check_model(body.model)
    check_honoured(COMPLETIONS, body.model_dump(exclude_unset=True))
    if body.best_of not in (None, body.choices):
        message = "'best_of' must be equal to 'n': texts are not ranked."
        raise ApiError(400, message, param="best_of", code="unsupported_parameter")
    prompts = body.prompts
    service.check_shape(body, len(prompts) * body.choices)
    exchange = service.engine.open(len(prompts) * body.choices)
    try:
        encoded = [await _encoded(service, prompt) for prompt in prompts]
        for ids in encoded:
            for choice in range(body.choices):
                options = service.options(body, len(ids), choice=choice)
                exchange.submit(Job(prompt=ids, options=options, stop=body.stops, tenant=tenant_of(request)))
        count = sum(map(len, encoded))
        note(request, prompt_tokens=count, user=body.user)
        echoes = [await _echo(service, body, *pair) for pair in zip(prompts, encoded, strict=True)]
        if not body.stream:
            return await while_connected(request, _whole(service, body, exchange, count, echoes))
        first = await while_connected(request, exchange.get())
        chunks = _chunks(service, body, exchange, count, echoes, first, request)
        return EventStream(chunks, exchange, stall_seconds=service.settings.stall_seconds)
    except BaseException:
        exchange.close()
        raise
    finally:
        if not body.stream:
            note(request, **outcome(exchange))
            exchange.close()


async def _encoded(service: Service, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        return await service.prompts.text(prompt)
    service.prompts.check(prompt, param="prompt")
    return prompt


async def _echo(service: Service, body: CompletionRequest, prompt: str | list[int], ids: list[int]) -> str:
    """Return what stands before a text."""
    if not body.echo:
        return ""
    return prompt if isinstance(prompt, str) else await service.prompts.decode(ids)


async def _whole(
    service: Service, body: CompletionRequest, exchange: Exchange, prompt: int, echoes: list[str]
) -> CompletionResponse:
    texts = await collect(exchange)
    choices = [
        CompletionChoice.model_validate(
            {
                "index": index,
                "text": echoes[index // body.choices] + each.text,
                "logprobs": None
                if body.alternatives is None
                else completion_logprobs(
                    each.logprobs, service.prompts.token_text, offset=len(echoes[index // body.choices])
                ),
                "finish_reason": each.finish_reason,
            }
        )
        for index, each in enumerate(texts)
    ]
    return CompletionResponse(
        id=answer_id("cmpl"),
        created=now(),
        model=service.model,
        choices=choices,
        usage=usage(exchange, prompt, sum(each.tokens for each in texts), choices=body.choices),
        metrics=service.metrics(exchange.tickets),
    )


async def _chunks(
    service: Service,
    body: CompletionRequest,
    exchange: Exchange,
    prompt: int,
    echoes: list[str],
    first: tuple[int, Delta],
    request: Request,
) -> AsyncIterator[dict[str, Any]]:
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    chunk = chunker("cmpl", "text_completion", service.model, with_usage=with_usage)
    count, sent = 0, [len(echoes[index // body.choices]) for index in range(len(exchange.tickets))]
    if body.echo:
        for index in range(len(exchange.tickets)):
            yield chunk([_choice(index, echoes[index // body.choices])])
    async for index, delta in deltas(exchange, first):
        count += delta.tokens
        entries, logprobs = entries_of(delta), None
        if entries:
            logprobs = completion_logprobs(entries, service.prompts.token_text, offset=sent[index])
            sent[index] += sum(map(len, logprobs["tokens"]))
        if delta.text or delta.last or entries:
            yield chunk([_choice(index, delta.text, delta.finish_reason, logprobs=logprobs)])
    note(request, **outcome(exchange))
    if more := last_figures(service, body, exchange, prompt, count):
        yield chunk([], **more)


def _choice(
    index: int, text: str, finish_reason: str | None = None, *, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
