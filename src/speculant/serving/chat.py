"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from speculant.serving.answers import Service, answer_id, now, prompt_logprobs_of, usage
from speculant.serving.chunks import ChunkedAnswer
from speculant.serving.endpoint import respond
from speculant.serving.exchange import Delta, Exchange
from speculant.serving.keys import tenant_of
from speculant.serving.logprobs import Entries, chat_logprobs
from speculant.serving.parameters import CHAT, check_supported
from speculant.serving.responses import AnswerMessage, ChatChoice, ChatResponse
from speculant.serving.schemas import ChatRequest
from speculant.serving.streams import EventStream
from speculant.serving.turns import AnswerPart, Turn, plan_turn


async def create_chat(service: Service, body: ChatRequest, request: Request) -> BaseModel | EventStream:
    """Create a chat completion.

    Raises:
        ApiError: the request cannot be fulfilled.
    """
    check_supported(CHAT, body.model_dump(exclude_unset=True))
    plan = plan_turn(service, body)

    async def begin(exchange: Exchange) -> ChatAnswer:
        return ChatAnswer(service, body, await plan.begin(exchange, tenant=tenant_of(request)))

    return await respond(service, body, request, texts=body.choices, begin=begin)


class ChatAnswer(ChunkedAnswer):
    """The answer to a chat."""

    kind = "chatcmpl", "chat.completion.chunk"

    def __init__(self, service: Service, body: ChatRequest, turn: Turn) -> None:
        super().__init__(service, body, turn.exchange)
        self._body: ChatRequest = body
        self._turn, self.prompt, self.completion = turn, len(turn.prompt), 0

    async def whole(self) -> ChatResponse:
        """Return the response."""
        answers: list[list[AnswerPart]] = [[] for _ in self._exchange.tickets]
        async for part in self._turn.parts():
            answers[part.index].append(part)
            self.completion += part.tokens
        return ChatResponse(
            id=answer_id("chatcmpl"),
            created=now(),
            model=self._service.model,
            choices=[self._whole_choice(index, parts) for index, parts in enumerate(answers)],
            prompt_logprobs=prompt_logprobs_of(self._service, self._body, self._turn.prompt, self._exchange.tickets[0]),
            **self.begin(),
            usage=usage(
                self._exchange, self.prompt, self.completion, choices=self._body.choices, reasoning=self._turn.reasoning
            ),
            metrics=self._service.metrics(self._exchange.tickets),
        )

    def _whole_choice(self, index: int, parts: list[AnswerPart]) -> ChatChoice:
        text, entries, calls = "".join(part.text for part in parts), Entries(), list[dict[str, Any]]()
        for part in parts:
            entries += part.logprobs
            for call in part.calls:
                if "id" in call:
                    calls.append({"id": call["id"], "function": dict(call["function"])})
                else:
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        reasoning = "".join(part.reasoning for part in parts) or None
        message = {
            "content": text.strip() or None if calls else text,
            "reasoning_content": reasoning,
            "reasoning": reasoning,
            "tool_calls": calls or None,
        }
        return ChatChoice.model_validate(
            {
                "index": index,
                "message": AnswerMessage.model_validate(message),
                "logprobs": None if self._body.alternatives is None else self._logprobs(entries),
                "finish_reason": parts[-1].finish_reason,
                "token_ids": [token for part in parts for token in part.ids] if self._body.return_token_ids else None,
            }
        )

    def begin(self) -> dict[str, Any]:
        """Return the prompt's ids, if requested."""
        return {"prompt_token_ids": self._turn.prompt} if self._body.return_token_ids else {}

    async def chunks(self, first: tuple[int, Delta]) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the choices of each chunk."""
        for index in range(self._body.choices):
            yield [_choice(index, {"role": "assistant", "content": None if self._turn.forced else ""})]
        async for part in self._turn.parts(first):
            self.completion, self.reasoning = self._turn.completion, self._turn.reasoning
            ids = {"token_ids": part.ids} if self._body.return_token_ids and part.ids else {}  # in the first chunk only
            if part.reasoning:
                yield [_choice(part.index, {"reasoning_content": part.reasoning, "reasoning": part.reasoning}) | ids]
                ids = {}
            if part.text or part.logprobs or (ids and not part.calls):
                logprobs = self._logprobs(part.logprobs) if part.logprobs else None
                yield [_choice(part.index, {"content": part.text}, logprobs=logprobs) | ids]
                ids = {}
            if part.calls:
                yield [_choice(part.index, {"tool_calls": part.calls}) | ids]
            if part.finish_reason is not None:
                yield [_choice(part.index, {}, part.finish_reason)]

    def _logprobs(self, entries: Entries) -> dict[str, Any]:
        return chat_logprobs(entries, self._service.prompts.token_text)


def _choice(
    index: int, delta: dict[str, Any], finish_reason: str | None = None, *, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
