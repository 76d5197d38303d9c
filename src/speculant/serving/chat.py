"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request

from speculant.serving.access import note
from speculant.serving.answers import Service, answer_id, chunker, collect, deltas, last_figures, now, outcome, usage
from speculant.serving.errors import ApiError
from speculant.serving.exchange import Delta, Exchange, Job
from speculant.serving.keys import tenant_of
from speculant.serving.logprobs import chat_logprobs, entries_of
from speculant.serving.parameters import CHAT, check_honoured
from speculant.serving.prompts import joined
from speculant.serving.responses import AnswerMessage, ChatChoice, ChatResponse
from speculant.serving.schemas import ChatRequest
from speculant.serving.streams import EventStream, while_connected
from speculant.serving.tools import ToolCallParser


async def create_chat(service: Service, body: ChatRequest, request: Request) -> ChatResponse | EventStream:
    """Answer a chat.

    Raises:
        ApiError: it cannot be honoured.
    """
    service.check_model(body.model)
    check_honoured(CHAT, body.model_dump(exclude_unset=True))
    service.check_shape(body, body.choices)
    tools = _offered(body)
    if body.prediction is not None and not service.predicts:
        message = "'prediction' is not supported by this server's drafting method. Leave it out."
        raise ApiError(400, message, param="prediction", code="unsupported_parameter")
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value")
    exchange = service.engine.open(body.choices)
    try:
        prompt = await service.prompts.chat(body.messages, body.tools if tools else None)
        prediction = await _predicted(service, body)
        for choice in range(body.choices):
            options = service.options(body, len(prompt), choice=choice)
            exchange.submit(
                Job(prompt=prompt, options=options, stop=body.stops, tenant=tenant_of(request), prediction=prediction)
            )
        note(request, prompt_tokens=len(prompt), user=body.user)
        if not body.stream:
            return await while_connected(request, _whole(service, body, exchange, len(prompt), tools=tools))
        first = await while_connected(request, exchange.get())
        chunks = _chunks(service, body, exchange, len(prompt), first, request, tools=tools)
        return EventStream(chunks, exchange, stall_seconds=service.settings.stall_seconds)
    except BaseException:
        exchange.close()
        raise
    finally:
        if not body.stream:
            note(request, **outcome(exchange))
            exchange.close()


def _offered(body: ChatRequest) -> bool:
    """Return whether the model is told of tools.

    Raises:
        ApiError: a choice of tools cannot be honoured.
    """
    if body.tool_choice not in (None, "auto", "none"):
        message = "'tool_choice' is only 'auto' or 'none' here: other choices need constrained decoding."
        raise ApiError(400, message, param="tool_choice", code="unsupported_parameter")
    if body.parallel_tool_calls is False:
        message = "'parallel_tool_calls' cannot be false: the model decides how many calls it makes."
        raise ApiError(400, message, param="parallel_tool_calls", code="unsupported_parameter")
    return bool(body.tools) and body.tool_choice != "none"


async def _predicted(service: Service, body: ChatRequest) -> list[int]:
    if body.prediction is None:
        return []
    text = joined(body.prediction.content, param="prediction.content")
    return await service.prompts.text(text, param="prediction", special=False) if text else []


async def _whole(service: Service, body: ChatRequest, exchange: Exchange, prompt: int, *, tools: bool) -> ChatResponse:
    texts = await collect(exchange)
    choices = []
    for index, each in enumerate(texts):
        text, parser = each.text, ToolCallParser()
        if tools:
            text = parser.push(each.text)[0] + parser.flush()
        message = AnswerMessage.model_validate(
            {"content": text.strip() or None if parser.calls else text, "tool_calls": parser.calls or None}
        )
        reason = "tool_calls" if parser.calls and each.finish_reason == "stop" else each.finish_reason
        logprobs = None if body.alternatives is None else chat_logprobs(each.logprobs, service.prompts.token_text)
        choices.append(
            ChatChoice.model_validate(
                {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}
            )
        )
    return ChatResponse(
        id=answer_id("chatcmpl"),
        created=now(),
        model=service.model,
        choices=choices,
        usage=usage(exchange, prompt, sum(each.tokens for each in texts), choices=body.choices),
        metrics=service.metrics(exchange.tickets),
    )


async def _chunks(
    service: Service,
    body: ChatRequest,
    exchange: Exchange,
    prompt: int,
    first: tuple[int, Delta],
    request: Request,
    *,
    tools: bool,
) -> AsyncIterator[dict[str, Any]]:
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    chunk = chunker("chatcmpl", "chat.completion.chunk", service.model, with_usage=with_usage)
    parsers = {index: ToolCallParser() for index in range(body.choices)} if tools else {}
    count = 0
    for index in range(body.choices):
        yield chunk([_choice(index, {"role": "assistant", "content": ""})])
    async for index, delta in deltas(exchange, first):
        count += delta.tokens
        text, calls, parser = delta.text, list[dict[str, Any]](), parsers.get(index)
        if parser is not None:
            before = len(parser.calls)
            text, calls = parser.push(text)
            calls = [call | {"index": before + place} for place, call in enumerate(calls)]
            text += parser.flush() if delta.last else ""
        entries = entries_of(delta)
        if text or entries:
            logprobs = chat_logprobs(entries, service.prompts.token_text) if entries else None
            yield chunk([_choice(index, {"content": text}, logprobs=logprobs)])
        if calls:
            yield chunk([_choice(index, {"tool_calls": calls})])
        if delta.last:
            called = parser is not None and parser.calls and delta.finish_reason == "stop"
            yield chunk([_choice(index, {}, "tool_calls" if called else delta.finish_reason)])
    note(request, **outcome(exchange))
    if more := last_figures(service, body, exchange, prompt, count):
        yield chunk([], **more)


def _choice(
    index: int, delta: dict[str, Any], finish_reason: str | None = None, *, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
