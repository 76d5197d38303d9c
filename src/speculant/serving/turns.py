"""A chat's answers, whatever the protocol: what a request means, and its texts as parts while they are decoded.

A `ChatRequest` is the request that the other protocols are translated to; each only renders the parts in its own form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from speculant.serving.answer_parser import AnswerParser
from speculant.serving.answers import Service, deltas
from speculant.serving.errors import ApiError, validation_error
from speculant.serving.exchange import Delta, Exchange, Job
from speculant.serving.formats import AnswerFormat, format_of
from speculant.serving.harmony import HarmonyParser
from speculant.serving.logprobs import Entries, entries_of
from speculant.serving.prompts import join_content
from speculant.serving.reasoning import ReasoningParser
from speculant.serving.schemas import ChatRequest
from speculant.serving.tool_choice import ToolPlan, plan_tools
from speculant.serving.tool_formats import HERMES, TOOL_FORMATS
from speculant.serving.tools import ToolCallParser


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a round added to an answer.

    Attributes:
        index: of its choice.
        text: of the answer.
        reasoning: text that comes before the answer and is not part of it.
        calls: what is new of its tool calls, in the form of OpenAI's chunks; one with an id begins a call.
        logprobs: of its tokens, where they were asked for.
        tokens: how many were committed.
        ids: of these tokens.
        finish_reason: "stop", "length" or "tool_calls" in the last part, else None.
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    calls: Sequence[dict[str, Any]] = ()
    logprobs: Entries = field(default_factory=list)
    tokens: int = 0
    ids: Sequence[int] = ()
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlan:
    """A chat that can be honoured."""

    service: Service
    body: ChatRequest
    format: AnswerFormat | None
    tools: ToolPlan

    @property
    def free(self) -> bool:
        """Whether the answer may hold reasoning: it is neither calls alone nor text of a form."""
        return self.format is None and not self.tools.forced

    def make_parser(self, prompt: Sequence[int]) -> AnswerParser | HarmonyParser:
        """Return what separates an answer into its parts."""
        formats, plan = self.service.prompts.formats, self.tools
        tools = None
        if plan.offered:
            form = formats.tools or HERMES
            if not plan.own:  # a grammar knows Hermes' format
                form = replace(HERMES, short_ids=form.short_ids)
            schemas = {tool.function.name: tool.function.parameters or {} for tool in plan.offered}
            tools = ToolCallParser(form, forced=plan.forced, schemas=schemas, allowed=plan.allowed, limit=plan.limit)
        if formats.harmony and self.free:
            return HarmonyParser(tools, reasons=formats.reasons)
        reasoning = None
        if formats.reasoning is not None and self.free:
            reasoning = ReasoningParser(formats.reasoning, begun=self.service.prompts.begins_reasoning(prompt))
        return AnswerParser(reasoning, tools)

    def _marks(self) -> dict[int, str]:
        """Return the special tokens that are part of the texts."""
        own = bool(self.tools.offered) and self.tools.own
        prompts = self.service.prompts
        return prompts.shown(prompts.formats.marks(reasons=self.free, tools=own)) if self.free or own else {}

    async def begin(self, exchange: Exchange, *, tenant: str) -> Turn:
        """Submit its texts.

        Raises:
            ApiError: the prompt, the prediction or the constraint cannot be taken.
        """
        service, body = self.service, self.body
        switches = service.prompts.switches(body.chat_template_kwargs, body.reasoning_effort)
        found = await service.prompts.messages(body.messages, self.tools.offered, switches)
        prediction = await self._read_prediction()
        constraint = await service.compiled(body, self.tools.format or self.format)
        marks = self._marks()
        for choice in range(body.choices):
            options = service.options(body, len(found.ids), choice=choice) | {"constraint": constraint}
            job = Job(
                prompt=found.ids,
                inputs=found.inputs,
                media_tokens=found.media_tokens,
                options=options,
                stop=body.stops,
                marks=marks,
                tenant=tenant,
                prediction=prediction,
                priority=body.priority or 0,
            )
            exchange.submit(job)
        return Turn(self, exchange, found.ids)

    async def _read_prediction(self) -> list[int]:
        if self.body.prediction is None:
            return []
        text = join_content(self.body.prediction.content, param="prediction.content")
        return await self.service.prompts.text(text, param="prediction", special=False) if text else []


def make_chat(given: dict[str, Any]) -> ChatRequest:
    """Return the chat that a request of another protocol asks for.

    Raises:
        ApiError: a value is wrong.
    """
    try:
        return ChatRequest.model_validate(given)
    except ValidationError as error:
        raise validation_error(error.errors()) from error


def plan_turn(service: Service, body: ChatRequest) -> TurnPlan:
    """Return what a chat means.

    Raises:
        ApiError: it cannot be honoured.
    """
    service.check_shape(body, body.choices)
    answer = format_of(body.response_format, body.structured_outputs)
    form = service.prompts.formats.tools
    tools = plan_tools(
        body,
        answer,
        service.prompts.text_tokens,
        own=form is not HERMES,
        tagged=form is TOOL_FORMATS["qwen3_coder"],
    )
    if body.prediction is not None and not service.predicts:
        message = "'prediction' is not supported by this server's drafting method. Leave it out."
        raise ApiError(400, message, param="prediction", code="unsupported_parameter")
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value")
    return TurnPlan(service=service, body=body, format=answer, tools=tools)


class Turn:
    """The answers to a chat while they are decoded.

    Attributes:
        plan, exchange, prompt: what is decoded: the request, its texts and the prompt's ids.
        completion, reasoning: tokens of the parts that were read so far, and how many of them are reasoning.
    """

    def __init__(self, plan: TurnPlan, exchange: Exchange, prompt: list[int]) -> None:
        """Take what is being decoded."""
        self.plan, self.exchange, self.prompt = plan, exchange, prompt
        self.completion = self.reasoning = 0

    @property
    def forced(self) -> bool:
        """Whether the answer is calls and nothing else."""
        return self.plan.tools.forced

    async def parts(self, first: tuple[int, Delta] | None = None) -> AsyncIterator[Part]:
        """Yield what each round adds, until all answers have ended.

        Args:
            first: the first delta, if it was read already.

        Raises:
            ApiError: a text failed.
        """
        parsers = [self.plan.make_parser(self.prompt) for _ in range(self.plan.body.choices)]
        async for index, delta in deltas(self.exchange, first):
            self.completion += delta.tokens
            parser, reasoning, text, calls = parsers[index], "", "", list[dict[str, Any]]()
            for piece, tokens in _pieces(delta):
                before = parser.inside
                found = parser.push(piece)
                self.reasoning += tokens if before or parser.inside else 0
                reasoning, text, calls = reasoning + found[0], text + found[1], calls + found[2]
            if delta.last:
                found = parser.flush()
                reasoning, text, calls = reasoning + found[0], text + found[1], calls + found[2]
            if self.forced and not text.strip():  # between calls
                text = ""
            reason = "tool_calls" if parser.calls and delta.finish_reason == "stop" else delta.finish_reason
            yield Part(
                index=index,
                text=text,
                reasoning=reasoning,
                calls=calls,
                logprobs=entries_of(delta),
                tokens=delta.tokens,
                ids=delta.ids,
                finish_reason=reason,
            )


def _pieces(delta: Delta) -> list[tuple[str, int]]:
    """Return a delta's text token by token, with the number of tokens; whole where a stop string holds some back."""
    texts = [] if delta.piece is None else delta.piece.texts[: delta.tokens]
    if "".join(texts) != delta.text:
        return [(delta.text, delta.tokens)]
    return [(text, 1) for text in texts]
