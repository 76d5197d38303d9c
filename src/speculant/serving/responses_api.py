"""`/v1/responses`: OpenAI's Responses API, implemented on top of chats."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from speculant.serving.answers import Service, answer_id, now, usage
from speculant.serving.endpoint import respond
from speculant.serving.errors import ApiError
from speculant.serving.exchange import Delta, Exchange
from speculant.serving.keys import tenant_of
from speculant.serving.lenience import UNUSED
from speculant.serving.response_items import ItemWriter, Tools, read_choice, read_items, read_tools
from speculant.serving.response_schemas import Item, ResponseObject, ResponseRequest
from speculant.serving.response_store import ResponseStore, Running
from speculant.serving.schemas import ChatRequest
from speculant.serving.segments import Segmenter
from speculant.serving.streams import EventStream, event
from speculant.serving.turns import Turn, make_chat, plan_turn

_WITHOUT_EFFECT = (
    "include",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "client_metadata",
)


async def create_response(
    service: Service, store: ResponseStore, body: ResponseRequest, request: Request
) -> tuple[BaseModel | EventStream, dict[str, str]]:
    """Return a response and its headers.

    Raises:
        ApiError: the request cannot be fulfilled.
    """
    tenant = tenant_of(request)
    tools = read_tools(body.tools or ())
    messages = read_items(body.input)
    if body.previous_response_id is not None:
        before = store.get(tenant, body.previous_response_id, param="previous_response_id")
        messages = [*before.messages, *messages]
    chat = _chat_request(service, body, tools, messages)
    plan = plan_turn(service, chat)
    headers = _list_unused(service, body, tools)

    async def begin(exchange: Exchange) -> ResponseAnswer:
        turn = await plan.begin(exchange, tenant=tenant)
        return ResponseAnswer(service, store, body, turn, tools, messages, tenant)

    return await respond(service, chat, request, texts=1, begin=begin, headers=headers), headers


def _chat_request(
    service: Service, body: ResponseRequest, tools: Tools, messages: Sequence[dict[str, Any]]
) -> ChatRequest:
    if body.instructions is not None:
        messages = [{"role": "system", "content": body.instructions}, *messages]
    given: dict[str, Any] = {
        "messages": messages,
        "tools": tools.functions or None,
        "tool_choice": read_choice(body),
        "parallel_tool_calls": body.parallel_tool_calls,
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "seed": body.seed,
        "priority": body.priority,
        "stream": body.stream,
        "user": body.user,
    }
    if body.reasoning is not None and service.prompts.effort_switch is not None:
        given["reasoning_effort"] = body.reasoning.effort
    form = body.text.format if body.text else None
    if form is not None:
        given["response_format"] = {"type": form.type}
        if form.type == "json_schema":
            schema = {"name": form.name or "answer", "schema": form.schema_, "strict": form.strict}
            given["response_format"]["json_schema"] = schema
    return make_chat(given)


def _list_unused(service: Service, body: ResponseRequest, tools: Tools) -> dict[str, str]:
    names = [f"tools.{each}" for each in tools.unused]
    effective = () if service.prompts.effort_switch is None else ("effort",)
    options = body.reasoning or ()
    names += [f"reasoning.{name}" for name, value in options if value is not None and name not in effective]
    if body.text and body.text.verbosity:
        names.append("text.verbosity")
    names += [name for name in _WITHOUT_EFFECT if getattr(body, name) not in (None, [], {}, "", "auto", "default")]
    return {UNUSED: ", ".join(names)} if names else {}


class ResponseAnswer:
    """The answer to a request of the Responses API.

    Attributes:
        prompt: number of tokens of the prompt.
    """

    def __init__(
        self,
        service: Service,
        store: ResponseStore,
        body: ResponseRequest,
        turn: Turn,
        tools: Tools,
        messages: Sequence[dict[str, Any]],
        tenant: str,
    ) -> None:
        self._service, self._store, self._body, self._turn = service, store, body, turn
        self._messages, self._tenant = messages, tenant
        self._segmenter, self._writer = Segmenter(), ItemWriter(tools.names)
        self._id, self._created, self._number = answer_id("resp").replace("-", "_"), now(), 0
        self.prompt = len(turn.prompt)

    async def whole(self) -> ResponseObject:
        """Return the response."""
        async for _ in self._grow(None):
            pass
        return ResponseObject.model_validate(self._finish())

    async def events(self, first: tuple[int, Delta]) -> AsyncIterator[bytes]:
        """Yield the events of the stream."""
        running = Running(self._turn.exchange, lambda: self._object("cancelled"))
        self._store.begin(self._tenant, self._id, running)
        try:
            for kind in ("response.created", "response.in_progress"):
                yield self._event({"type": kind, "response": self._object("in_progress")})
            async for each in self._grow(first):
                yield self._event(each)
            response = self._finish()
            yield self._event({"type": f"response.{response['status']}", "response": response})
        finally:
            self._store.end(self._tenant, self._id)

    def write_failure(self, error: ApiError) -> bytes:
        """Return the final bytes of a stream that failed."""
        response = self._object("cancelled" if error.code == "cancelled" else "failed")
        response["error"] = {"code": error.code or "server_error", "message": error.message}
        if self._body.store is not False:
            self._keep(response)
        return self._event({"type": "response.failed", "response": response})

    async def _grow(self, first: tuple[int, Delta] | None) -> AsyncIterator[dict[str, Any]]:
        async for part in self._turn.parts(first):
            for step in self._segmenter.push(part):
                for each in self._writer.write(step):
                    yield each

    def _finish(self) -> dict[str, Any]:
        """Return the complete response, and store it if requested."""
        cut = self._segmenter.finish_reason == "length"
        response = self._object("incomplete" if cut else "completed")
        if cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        used = usage(self._turn.exchange, self.prompt, self._turn.completion, choices=1, reasoning=self._turn.reasoning)
        response["usage"] = {
            "input_tokens": used.prompt_tokens,
            "input_tokens_details": {"cached_tokens": used.prompt_tokens_details.cached_tokens},
            "output_tokens": used.completion_tokens,
            "output_tokens_details": used.completion_tokens_details.model_dump(),
            "total_tokens": used.total_tokens,
        }
        metrics = self._service.metrics(self._turn.exchange.tickets)
        if metrics is not None:
            response["metrics"] = metrics.model_dump()
        if self._body.store is not False:
            self._keep(response)
        return response

    def _keep(self, response: dict[str, Any]) -> None:
        given = self._body.input
        items = list(_dump([Item(role="user", content=given)] if isinstance(given, str) else given))
        items = [{"id": f"{self._id}_{place}"} | item for place, item in enumerate(items)]
        answer = [Item.model_validate(each) for each in response["output"]]
        messages = [*self._messages, *read_items(answer)] if answer else list(self._messages)
        self._store.put(self._tenant, response, items, messages)

    def _object(self, status: str) -> dict[str, Any]:
        body = self._body
        sent = body.model_dump(by_alias=True, exclude_none=True)
        effort = sent.get("reasoning", {}).get("effort") if self._service.prompts.effort_switch else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._service.model,
            "output": list(self._writer.items),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": effort, "summary": None},
            "store": body.store is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}} | sent.get("text", {}),
            "tool_choice": sent.get("tool_choice", "auto"),
            "tools": sent.get("tools", []),
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    def _event(self, value: dict[str, Any]) -> bytes:
        value["sequence_number"] = self._number
        self._number += 1
        return event(value, name=value["type"])


def _dump(items: Sequence[Item]) -> Iterator[dict[str, Any]]:
    for item in items:
        yield {"type": "message"} | item.model_dump(exclude_none=True)
