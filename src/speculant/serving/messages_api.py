"""`/v1/messages`: Anthropic's Messages API, implemented on top of chats."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from speculant.serving.answers import Service, answer_id, usage
from speculant.serving.endpoint import respond
from speculant.serving.errors import ApiError, anthropic_body
from speculant.serving.exchange import Delta, Exchange
from speculant.serving.keys import tenant_of
from speculant.serving.lenience import UNUSED
from speculant.serving.message_blocks import read_choice, read_messages, read_tools
from speculant.serving.message_schemas import CountRequest, MessageObject, MessagesRequest, TokenCount
from speculant.serving.schemas import ChatRequest
from speculant.serving.segments import AnswerSegment, Segmenter, Step
from speculant.serving.streams import EventStream, event
from speculant.serving.turns import Turn, make_chat, plan_turn

KEPT_THINKING = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


async def create_message(
    service: Service, body: MessagesRequest, request: Request
) -> tuple[BaseModel | EventStream, dict[str, str]]:
    """Return a response and its headers.

    Raises:
        ApiError: the request cannot be fulfilled.
    """
    functions, unused = read_tools(body.tools or ())
    chat = _chat_request(service, body, functions)
    plan = plan_turn(service, chat)
    headers = _list_unused(service, body, unused)

    async def begin(exchange: Exchange) -> MessageAnswer:
        return MessageAnswer(service, await plan.begin(exchange, tenant=tenant_of(request)))

    return await respond(service, chat, request, texts=1, begin=begin, headers=headers), headers


async def count_tokens(service: Service, body: CountRequest) -> TokenCount:
    """Return the number of tokens of a prompt.

    Raises:
        ApiError: the request cannot be fulfilled.
    """
    _check_edits(body)
    functions, _ = read_tools(body.tools or ())
    chat = make_chat({"messages": read_messages(body.system, body.messages), "tools": functions or None})
    offered = None if read_choice(body.tool_choice) == "none" else chat.tools
    found = await service.prompts.read(chat.messages, offered, effort=_effort(service, body))
    return TokenCount(input_tokens=len(found.ids))


def _chat_request(service: Service, body: MessagesRequest, functions: Sequence[dict[str, Any]]) -> ChatRequest:
    _check_edits(body)
    choice, user = body.tool_choice, body.metadata.user_id if body.metadata else None
    given: dict[str, Any] = {
        "messages": read_messages(body.system, body.messages),
        "tools": functions or None,
        "tool_choice": read_choice(choice),
        "parallel_tool_calls": False if choice and choice.disable_parallel_tool_use else None,
        # Clients must send it, and send what their usual models can generate; it is only an upper bound.
        "max_completion_tokens": body.max_tokens if body.max_tokens < service.settings.max_new_tokens else None,
        "stop": body.stop_sequences or None,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stream": body.stream,
        "user": user,
    }
    given["reasoning_effort"] = _effort(service, body)
    form = body.output_config.format if body.output_config else None
    if form is not None:
        schema = {"name": "answer", "schema": form.schema_}
        given["response_format"] = {"type": "json_schema", "json_schema": schema}
    return make_chat(given)


def _effort(service: Service, body: CountRequest) -> str | None:
    """Return the effort that the chat template is given; None for none."""
    return body.output_config.effort if body.output_config and service.prompts.effort_switch else None


def _check_edits(body: CountRequest) -> None:
    edits = body.context_management and body.context_management.get("edits")
    if edits and body.context_management != KEPT_THINKING:
        message = "'context_management' is not supported: the conversation is read as it is. Leave it out."
        raise ApiError(400, message, param="context_management", code="unsupported_parameter")


def _list_unused(service: Service, body: MessagesRequest, tools: Sequence[str]) -> dict[str, str]:
    names = [f"tools.{name}" for name in tools if name.isascii() and name.isprintable()]
    if body.thinking is not None and body.thinking.type != "disabled":
        names.append("thinking")
    effort = body.output_config.effort if body.output_config else None
    if effort is not None and service.prompts.effort_switch is None:
        names.append("output_config.effort")
    return {UNUSED: ", ".join(names)} if names else {}


class MessageAnswer:
    """The answer to a request of the Messages API.

    Attributes:
        prompt: number of tokens of the prompt.
    """

    def __init__(self, service: Service, turn: Turn) -> None:
        self._service, self._turn, self._segmenter = service, turn, Segmenter()
        self._id, self.prompt = answer_id("msg").replace("-", "_"), len(turn.prompt)

    async def whole(self) -> MessageObject:
        """Return the response."""
        async for part in self._turn.parts():
            for _ in self._segmenter.push(part):
                pass
        content = [_block(segment) for segment in self._segmenter.segments]
        return MessageObject.model_validate(self._object(content) | self._end() | {"usage": self._usage()})

    async def events(self, first: tuple[int, Delta]) -> AsyncIterator[bytes]:
        """Yield the events of the stream."""
        message = self._object([]) | {"stop_reason": None, "stop_sequence": None, "usage": self._usage()}
        yield _event({"type": "message_start", "message": message})
        yield _event({"type": "ping"})
        async for part in self._turn.parts(first):
            for step in self._segmenter.push(part):
                for each in _events(step):
                    yield _event(each)
        yield _event({"type": "message_delta", "delta": self._end(), "usage": self._usage()})
        yield _event({"type": "message_stop"})

    def write_failure(self, error: ApiError) -> bytes:
        """Return the final bytes of a stream that failed."""
        return _event(anthropic_body(error))

    def _object(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._service.model}
        return head | {"content": content}

    def _end(self) -> dict[str, Any]:
        """Return the stop reason of the answer."""
        found = self._turn.exchange.tickets[0].stop_string
        reason = _REASONS[self._segmenter.finish_reason or "stop"]
        if found is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": found}

    def _usage(self) -> dict[str, Any]:
        used = usage(self._turn.exchange, self.prompt, self._turn.completion, choices=1)
        cached = used.prompt_tokens_details.cached_tokens
        return {
            "input_tokens": used.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": used.completion_tokens,
        }


_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def _events(step: Step) -> Iterator[dict[str, Any]]:
    segment, place = step.segment, {"index": step.segment.index}
    if step.kind == "begin":
        block = _block(segment) | ({"input": {}} if segment.kind == "call" else {})
        yield {"type": "content_block_start"} | place | {"content_block": block}
    elif step.kind == "grow":
        kind, name = _DELTAS[segment.kind]
        yield {"type": "content_block_delta"} | place | {"delta": {"type": kind, name: step.text}}
    else:
        if segment.kind == "reasoning":
            delta = {"type": "signature_delta", "signature": ""}
            yield {"type": "content_block_delta"} | place | {"delta": delta}
        yield {"type": "content_block_stop"} | place


_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def _block(segment: AnswerSegment) -> dict[str, Any]:
    if segment.kind == "text":
        return {"type": "text", "text": segment.text}
    if segment.kind == "reasoning":
        return {"type": "thinking", "thinking": segment.text, "signature": ""}
    return {"type": "tool_use", "id": segment.call_id, "name": segment.name, "input": _arguments(segment.text)}


def _arguments(text: str) -> dict[str, Any]:
    """Parse a call's arguments; none if the call is incomplete."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _event(value: dict[str, Any]) -> bytes:
    return event(value, name=value["type"])
