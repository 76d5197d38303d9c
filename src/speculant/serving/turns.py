"""Answers to chats, independent of the protocol: planning a request, and its texts as parts while they are decoded.

The other protocols are translated to a `ChatRequest`; each only renders the parts in its own format.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from speculant.serving.answer_parser import AnswerParser
from speculant.serving.answers import Service, deltas
from speculant.serving.call_grammars import own_grammar
from speculant.serving.errors import ApiError, validation_error
from speculant.serving.exchange import Delta, Exchange, Job
from speculant.serving.formats import AnswerFormat, format_of
from speculant.serving.harmony import HarmonyParser
from speculant.serving.logprobs import Entries, entries_of
from speculant.serving.reasoning import ReasoningParser
from speculant.serving.response_templates import TemplateParser
from speculant.serving.schemas import ChatRequest
from speculant.serving.template_rows import join_content
from speculant.serving.tool_choice import ToolPlan, plan_tools
from speculant.serving.tool_formats import HERMES
from speculant.serving.tools import ToolCallParser


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPart:
    """The addition of a round to an answer.

    Attributes:
        index: index of its choice.
        text: text of the answer.
        reasoning: reasoning, which precedes the answer and is not part of it.
        calls: new parts of tool calls, in the format of OpenAI's chunks; one with an id begins a call.
        logprobs: log-probabilities of its tokens, if requested.
        tokens: number of committed tokens.
        ids: ids of these tokens.
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
    """A validated chat request and how to answer it."""

    service: Service
    body: ChatRequest
    format: AnswerFormat | None
    tools: ToolPlan

    @property
    def free(self) -> bool:
        """Whether the answer may contain reasoning: it is neither restricted to calls nor constrained to a format."""
        return self.format is None and not self.tools.forced

    def make_parser(self, prompt: Sequence[int], before: str) -> AnswerParser | HarmonyParser | TemplateParser:
        """Return the parser that separates an answer into its parts.

        Args:
            prompt: the prompt's ids.
            before: its text, if answers are parsed by a response template.
        """
        formats, plan = self.service.prompts.formats, self.tools
        tools, schemas = None, dict[str, Any]()
        if plan.offered:
            form = formats.tools or HERMES
            if not plan.own:  # grammars use Hermes' format
                form = replace(HERMES, short_ids=form.short_ids)
            schemas = {tool.function.name: tool.function.parameters or {} for tool in plan.offered}
            tools = ToolCallParser(form, forced=plan.forced, schemas=schemas, allowed=plan.allowed, limit=plan.limit)
        if formats.harmony and self.free:
            return HarmonyParser(tools, reasons=formats.reasons)
        if formats.template is not None and self.free:
            return TemplateParser(formats.template, before, tools, schemas=schemas, reasons=formats.reasons)
        if not self.free:
            return AnswerParser(None, tools)
        reasoning = None
        if formats.reasoning is not None:
            reasoning = ReasoningParser(formats.reasoning, begun=self.service.prompts.begins_reasoning(prompt))
        return AnswerParser(reasoning, tools, framing=formats.framing)

    def _marks(self) -> dict[int, str]:
        """Return the special tokens that are kept in the texts."""
        own = bool(self.tools.offered) and self.tools.own
        prompts = self.service.prompts
        if not (self.free or own):
            return {}
        shown = prompts.find_shown(prompts.formats.marks(reasons=self.free, tools=own))
        if prompts.formats.template is None:
            return shown
        return {token: text for token, text in shown.items() if token not in prompts.ends}  # its end ends all fields

    async def begin(self, exchange: Exchange, *, tenant: str) -> Turn:
        """Submit its texts.

        Raises:
            ApiError: the prompt, prediction or constraint is invalid.
        """
        service, body = self.service, self.body
        given, effort = body.chat_template_kwargs, body.reasoning_effort
        found = await service.prompts.read(body.messages, self.tools.offered, given, effort=effort)
        prediction = await self._read_prediction()
        constraint = await service.compile_constraint(body, self.tools.format or self.format)
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
    """Create the chat request that a request of another protocol corresponds to.

    Raises:
        ApiError: a value is invalid.
    """
    try:
        return ChatRequest.model_validate(given)
    except ValidationError as error:
        raise validation_error(error.errors()) from error


def plan_turn(service: Service, body: ChatRequest) -> TurnPlan:
    """Validate a chat request and plan its answer.

    Raises:
        ApiError: the request cannot be fulfilled.
    """
    service.check_shape(body, body.choices)
    answer = format_of(body.response_format, body.structured_outputs)
    prompts = service.prompts
    form = prompts.formats.tools
    native = own_grammar(form, prompts.chat_template)
    tokens = prompts.text_tokens if native is None else [*prompts.text_tokens, *prompts.thought_tokens]
    tools = plan_tools(body, answer, tokens, own=form is not HERMES, native=native)
    if body.prediction is not None and not service.predicts:
        message = "'prediction' is not supported by this server's drafting method. Leave it out."
        raise ApiError(400, message, param="prediction", code="unsupported_parameter")
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value")
    return TurnPlan(service=service, body=body, format=answer, tools=tools)


class Turn:
    """The answers to a chat while they are decoded.

    Attributes:
        plan, exchange, prompt: the planned request, its texts and the prompt's ids.
        completion, reasoning: number of tokens of the parts read so far, and how many of them are reasoning.
    """

    def __init__(self, plan: TurnPlan, exchange: Exchange, prompt: list[int]) -> None:
        """Set the request that is being decoded."""
        self.plan, self.exchange, self.prompt = plan, exchange, prompt
        self.completion = self.reasoning = 0

    @property
    def forced(self) -> bool:
        """Whether the answer consists only of calls."""
        return self.plan.tools.forced

    async def parts(self, first: tuple[int, Delta] | None = None) -> AsyncIterator[AnswerPart]:
        """Yield the parts that each round adds, until all answers have ended.

        Args:
            first: the first delta, if it has been read already.

        Raises:
            ApiError: a text failed.
        """
        prompts = self.plan.service.prompts
        before = "" if prompts.formats.template is None else await prompts.decode(self.prompt)
        parsers = [self.plan.make_parser(self.prompt, before) for _ in range(self.plan.body.choices)]
        async for index, delta in deltas(self.exchange, first):
            self.completion += delta.tokens
            parser, reasoning, text, calls = parsers[index], "", "", list[dict[str, Any]]()
            for piece, tokens in _pieces(delta):
                inside = parser.inside
                found = parser.push(piece)
                self.reasoning += tokens if inside or parser.inside else 0
                reasoning, text, calls = reasoning + found[0], text + found[1], calls + found[2]
            if delta.last:
                found = parser.flush()
                reasoning, text, calls = reasoning + found[0], text + found[1], calls + found[2]
            if self.forced and not text.strip():  # between calls
                text = ""
            reason = "tool_calls" if parser.calls and delta.finish_reason == "stop" else delta.finish_reason
            yield AnswerPart(
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
    """Split a delta's text by tokens, with the number of tokens; in one piece if a stop string holds some back."""
    texts = [] if delta.piece is None else delta.piece.texts[: delta.tokens]
    if "".join(texts) != delta.text:
        return [(delta.text, delta.tokens)]
    return [(text, 1) for text in texts]
