"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from speculant.serving.answers import Collected, Service, answer_id, collect, deltas, now, prompt_logprobs_of, usage
from speculant.serving.endpoint import Answer, respond
from speculant.serving.errors import ApiError
from speculant.serving.exchange import Delta, Exchange, Job
from speculant.serving.formats import format_of
from speculant.serving.keys import tenant_of
from speculant.serving.logprobs import chat_logprobs, entries_of
from speculant.serving.parameters import CHAT, check_honoured
from speculant.serving.prompts import join_content
from speculant.serving.responses import AnswerMessage, ChatChoice, ChatResponse
from speculant.serving.schemas import ChatRequest
from speculant.serving.streams import EventStream
from speculant.serving.tool_choice import ToolPlan, plan_tools
from speculant.serving.tools import ToolCallParser


async def create_chat(service: Service, body: ChatRequest, request: Request) -> BaseModel | EventStream:
    """Answer a chat.

    Raises:
        ApiError: it cannot be honoured.
    """
    service.check_model(body.model)
    check_honoured(CHAT, body.model_dump(exclude_unset=True))
    service.check_shape(body, body.choices)
    answer = format_of(body.response_format, body.structured_outputs)
    plan = plan_tools(body, answer, service.prompts.text_tokens)
    if body.prediction is not None and not service.predicts:
        message = "'prediction' is not supported by this server's drafting method. Leave it out."
        raise ApiError(400, message, param="prediction", code="unsupported_parameter")
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value")

    async def begin(exchange: Exchange) -> ChatAnswer:
        found = await service.prompts.messages(body.messages, plan.offered)
        prompt = found.ids
        prediction = await _read_prediction(service, body)
        constraint = await service.compiled(body, plan.format or answer)
        for choice in range(body.choices):
            options = service.options(body, len(prompt), choice=choice) | {"constraint": constraint}
            exchange.submit(
                Job(
                    prompt=prompt,
                    inputs=found.inputs,
                    media_tokens=found.media_tokens,
                    options=options,
                    stop=body.stops,
                    tenant=tenant_of(request),
                    prediction=prediction,
                )
            )
        return ChatAnswer(service, body, exchange, prompt, plan)

    return await respond(service, body, request, texts=body.choices, begin=begin)


async def _read_prediction(service: Service, body: ChatRequest) -> list[int]:
    if body.prediction is None:
        return []
    text = join_content(body.prediction.content, param="prediction.content")
    return await service.prompts.text(text, param="prediction", special=False) if text else []


class ChatAnswer(Answer):
    """The answer to a chat."""

    kind = "chatcmpl", "chat.completion.chunk"

    def __init__(
        self, service: Service, body: ChatRequest, exchange: Exchange, prompt: list[int], plan: ToolPlan
    ) -> None:
        self._service, self._body, self._exchange, self._plan = service, body, exchange, plan
        self._ids = prompt
        self.prompt, self.completion = len(prompt), 0

    async def whole(self) -> ChatResponse:
        texts = await collect(self._exchange)
        return ChatResponse(
            id=answer_id("chatcmpl"),
            created=now(),
            model=self._service.model,
            choices=[self._choice(index, each) for index, each in enumerate(texts)],
            prompt_logprobs=prompt_logprobs_of(self._service, self._body, self._ids, self._exchange.tickets[0]),
            usage=usage(self._exchange, self.prompt, sum(each.tokens for each in texts), choices=self._body.choices),
            metrics=self._service.metrics(self._exchange.tickets),
        )

    def _choice(self, index: int, found: Collected) -> ChatChoice:
        text, parser = found.text, ToolCallParser(forced=self._plan.forced)
        if self._plan.offered:
            text = parser.push(found.text)[0] + parser.flush()
        message = AnswerMessage.model_validate(
            {"content": text.strip() or None if parser.calls else text, "tool_calls": parser.calls or None}
        )
        logprobs = (
            None if self._body.alternatives is None else chat_logprobs(found.logprobs, self._service.prompts.token_text)
        )
        reason = _reason(parser, found.finish_reason)
        return ChatChoice.model_validate(
            {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}
        )

    async def chunks(self, first: tuple[int, Delta]) -> AsyncIterator[list[dict[str, Any]]]:
        parsers = {index: ToolCallParser(forced=self._plan.forced) for index in range(self._body.choices)}
        for index in range(self._body.choices):
            yield [_choice(index, {"role": "assistant", "content": None if self._plan.forced else ""})]
        async for index, delta in deltas(self._exchange, first):
            self.completion += delta.tokens
            text, calls, parser = delta.text, list[dict[str, Any]](), parsers[index]
            if self._plan.offered:
                text, calls = parser.push(text)
                text += parser.flush() if delta.last else ""
            if self._plan.forced and not text.strip():  # between calls
                text = ""
            entries = entries_of(delta)
            if text or entries:
                logprobs = chat_logprobs(entries, self._service.prompts.token_text) if entries else None
                yield [_choice(index, {"content": text}, logprobs=logprobs)]
            if calls:
                yield [_choice(index, {"tool_calls": calls})]
            if delta.last:
                yield [_choice(index, {}, _reason(parser, delta.finish_reason))]


def _reason(parser: ToolCallParser, finish_reason: str | None) -> str | None:
    return "tool_calls" if parser.calls and finish_reason == "stop" else finish_reason


def _choice(
    index: int, delta: dict[str, Any], finish_reason: str | None = None, *, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
