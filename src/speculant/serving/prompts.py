"""Encoding of texts and messages to token ids: short ones immediately, longer ones on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from speculant.api.media_prompts import encode_messages
from speculant.engines.hf.media import media_tokens
from speculant.serving.answer_parser import find_formats, shown_marks
from speculant.serving.errors import ApiError
from speculant.serving.lenience import name_unused
from speculant.serving.media import MediaReader
from speculant.serving.schemas import Message, Tool
from speculant.serving.template_forms import needs_text_arguments, render_any, template_text, with_text_arguments
from speculant.serving.template_rows import check_text, template_row
from speculant.serving.tools import text_tokens

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator

T = TypeVar("T")
LONG_TOKEN = 16  # characters; texts whose tokens are longer than this on average are rare
SHORT = 2000  # characters, whose encoding takes less time than waking a thread twice, a millisecond or two at most
RESERVED = {  # arguments of transformers' `apply_chat_template`, which are not a template's own
    *("conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt"),
    *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
    *("return_assistant_tokens_mask", "tokenizer_kwargs", "processor_kwargs"),
}
TAIL = 16  # last tokens of a prompt, which contain a mark however it is tokenized
MESSAGE = 50  # characters that the template is assumed to add per message


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat's prompt.

    Attributes:
        ids: its tokens.
        inputs: further outputs of the model's processor for media; empty for text.
        media_tokens: number of tokens that stand for media, by kind.
    """

    ids: list[int]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    media_tokens: Mapping[str, int] = field(default_factory=dict)


class PromptEncoder:
    """Encodes prompts for one model.

    Attributes:
        tokenizer: the model's tokenizer.
        positions: maximum positions of the model; None for no limit.
        vocabulary: V.
        token_limit: maximum number of tokens of a prompt; None for no limit.
        ends: ids of the tokens that end the model's texts.
        text_tokens: see `tools.text_tokens`.
        formats: formats of the model's answers.
    """

    def __init__(
        self,
        speculator: Speculator,
        media: MediaReader,
        *,
        token_limit: int,
        reasoning: str = "auto",
        tools: str = "auto",
    ) -> None:
        """Create the encoder of a model.

        Args:
            speculator: the model.
            media: reads the media in messages.
            token_limit: maximum number of tokens of a prompt; 0 for the model's positions.
            reasoning, tools: names of the formats of answers, see `answer_parser.find_formats`.

        Raises:
            UsageError: these formats cannot be combined.
        """
        self.tokenizer, self._processor, self._media = speculator.tokenizer, speculator.processor, media
        self._placeholders = media_tokens(speculator.model.config) if media.kinds else {}
        capabilities = speculator.engine.capabilities
        self.positions, self.vocabulary = capabilities.positions, capabilities.vocabulary
        limits = [limit for limit in (token_limit, self.positions and self.positions - 1) if limit]
        self.token_limit = min(limits, default=None)
        self.text_tokens = text_tokens(self.tokenizer)
        self.formats = find_formats(self.chat_template, self.tokenizer, reasoning=reasoning, tools=tools)
        own = speculator.engine.defaults.get("eos_token_id")
        self.ends: list[int] = [] if own is None else [own] if isinstance(own, int) else list(own)
        self._texts: dict[int, str] = {}  # texts of single tokens
        self._shown: dict[tuple[str, ...], dict[int, str]] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="speculant-tokenizer")
        self._submitted: list[Future[Any]] = []  # two threads must not use a tokenizer that keeps state

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self.chat_template)

    @property
    def chat_template(self) -> str:
        """The chat template of the tokenizer or processor; "" if there is none."""
        own = (template_text(getattr(each, "chat_template", None)) for each in (self.tokenizer, self._processor))
        return next(filter(None, own), "")

    async def read(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        given: Mapping[str, Any] | None = None,
        *,
        effort: str | None = None,
    ) -> ChatPrompt:
        """Return the prompt of messages as `messages` does, with an effort of reasoning.

        An effort that the chat template does not take, or refuses, has no effect and is named so.

        Args:
            messages, tools: the conversation, and the tools that the model is shown.
            given: arguments of the chat template.
            effort: effort of reasoning; None or "none" for the template's own.
        """
        switch = None if effort in (None, "none") else self.effort_switch
        if switch is not None:
            try:
                return await self.messages(messages, tools, {**(given or {}), switch: effort})
            except ApiError:
                pass  # because of the effort, or the next try raises it too
        found = await self.messages(messages, tools, given)
        if effort is not None:
            name_unused("reasoning_effort")
        return found

    @property
    def effort_switch(self) -> str | None:
        """The name of the chat template's argument for the effort of reasoning; None if it has none."""
        template = template_text(getattr(self.tokenizer, "chat_template", None))
        return next((name for name in ("reasoning_effort", "thinking_effort") if name in template), None)

    def close(self) -> None:
        """Stop the thread."""
        self._worker.shutdown(cancel_futures=True)

    async def text(self, text: str, *, param: str = "prompt", special: bool = True) -> list[int]:
        """Encode a text.

        Raises:
            ApiError: it is empty or too long.
        """
        check_text(text, param=param)
        ids = await self._run(lambda: self._ids(text, special=special), size=len(text))
        self.check(ids, param=param)
        return ids

    async def messages(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        switches: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Return the prompt of messages, including media, ready for the answer; `switches` are template arguments.

        Raises:
            ApiError: the template rejects them, they are too long, or a file cannot be read.
        """
        files = [
            (part.model_dump(), f"messages.{place}.content.{index}")
            for place, message in enumerate(messages)
            for index, part in enumerate(message.content if isinstance(message.content, list) else ())
            if part.type != "text"
        ]
        own = getattr(self.tokenizer, "chat_template", None)  # for some models, only the processor has a template
        if not self._media.kinds or (own and not files):
            return ChatPrompt(await self.chat(messages, tools, switches))
        read = iter(await self._media.read(files))
        rows = [template_row(message, place, read) for place, message in enumerate(messages)]
        work = partial(encode_messages, self._processor, rows, **self._template_options(tools, switches))
        inputs = await self._run(work, size=SHORT + 1)
        ids: list[int] = inputs.pop("input_ids")[0].tolist()
        self.check(ids, param="messages")
        if not files:
            return ChatPrompt(ids)
        counts = {kind: sum(map(ids.count, tokens)) for kind, tokens in self._placeholders.items()}
        return ChatPrompt(ids, inputs, counts)

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        switches: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Encode text-only messages with the model's chat template, ready for the answer.

        Raises:
            ApiError: the template rejects them, or they are too long.
        """
        rows = [template_row(message, place) for place, message in enumerate(messages)]
        large = tools or any("tool_calls" in row for row in rows)
        size = SHORT + 1 if large else sum(MESSAGE + len(row["content"]) for row in rows)
        ids = await self._run(lambda: self._apply_template(rows, self._template_options(tools, switches)), size=size)
        self.check(ids, param="messages")
        return ids

    async def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        self.check_vocabulary(ids, "tokens")
        text: str = await self._run(lambda: self.tokenizer.decode(list(ids)), size=len(ids))
        return text

    def begins_reasoning(self, ids: Sequence[int]) -> bool:
        """Return whether a prompt ends with the mark that begins the reasoning of an answer."""
        form = self.formats.reasoning
        return form is not None and str(self.tokenizer.decode(list(ids[-TAIL:]))).rstrip().endswith(form.begin)

    def find_shown(self, marks: tuple[str, ...]) -> dict[int, str]:
        """Return the marks that are special tokens, by token id."""
        if marks not in self._shown:
            self._shown[marks] = shown_marks(self.tokenizer, marks)
        return self._shown[marks]

    @cached_property
    def thought_tokens(self) -> tuple[str, ...]:
        """The marks of reasoning that are special tokens."""
        form = self.formats.reasoning
        return () if form is None else tuple(self.find_shown(form.marks).values())

    def token_text(self, token: int) -> str:
        """Return the text of one token within a text; the replacement character if it is only part of a character."""
        if self.tokenizer is None:
            return ""
        if token not in self._texts:
            alone = self.tokenizer.decode([token])  # some tokenizers drop a text's first space
            self._texts[token] = self.tokenizer.decode([token, token])[len(alone) :]
        return self._texts[token]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokens that are not text, such as the end of a text."""
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        marks = [token for token, each in added.items() if each.special]
        return frozenset([*getattr(self.tokenizer, "all_special_ids", []), *marks])

    def check(self, ids: Sequence[int], *, param: str) -> None:
        """Check a prompt's length and ids.

        Raises:
            ApiError: it is empty, too long, or contains ids outside the model's vocabulary.
        """
        if not ids:
            raise ApiError(400, "the prompt is empty.", param=param, code="invalid_value")
        if self.token_limit is not None and len(ids) > self.token_limit:
            raise ApiError(
                400,
                f"the prompt has {len(ids)} tokens or more, and at most {self.token_limit} are taken. Shorten it.",
                param=param,
                code="context_length_exceeded",
            )
        self.check_vocabulary(ids, param)

    def check_vocabulary(self, ids: Sequence[int], param: str) -> None:
        """Check that ids are in the model's vocabulary.

        Raises:
            ApiError: an id is not.
        """
        if ids and max(ids) >= self.vocabulary:
            raise ApiError(400, f"token ids must be below {self.vocabulary}.", param=param, code="invalid_value")

    async def _run(self, work: Callable[[], T], *, size: int) -> T:
        """Run work on `size` characters, on the thread if they are many, and return its result."""
        if self.tokenizer is None:
            raise ApiError(400, "this model has no tokenizer; only token ids are taken.", code="unsupported")
        self._submitted = [each for each in self._submitted if not each.done()]
        if size <= SHORT and not self._submitted:
            return work()
        self._submitted.append(self._worker.submit(work))
        return await asyncio.wrap_future(self._submitted[-1])

    def _ids(self, text: str, *, special: bool = True) -> list[int]:
        """Encode a text; if it is certainly too long, only a prefix of it, which is too long as well."""
        maximum = self.token_limit
        if maximum is not None and len(text) > LONG_TOKEN * maximum:
            beginning: list[int] = self.tokenizer(text[: LONG_TOKEN * maximum], add_special_tokens=special)["input_ids"]
            if len(beginning) > 2 * maximum:  # the whole text cannot have fewer than half of these
                return beginning
        ids: list[int] = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        return ids

    def _apply_template(self, rows: list[dict[str, Any]], options: dict[str, Any]) -> list[int]:
        template = getattr(self.tokenizer, "chat_template", None)
        if not template:
            raise ApiError(400, "this model has no chat template; use /v1/completions.", code="no_chat_template")
        if any("tool_calls" in row for row in rows) and self._text_arguments:
            rows = with_text_arguments(rows)
        text = render_any(lambda form: self._render(form, options), rows)
        check_text(text, param="messages")
        begun = self.tokenizer.bos_token is not None and text.startswith(self.tokenizer.bos_token)
        return self._ids(text, special=not begun)

    @cached_property
    def _text_arguments(self) -> bool:
        """Whether the template needs the arguments of calls as text."""
        return needs_text_arguments(lambda rows: self._render(rows, {}))

    def _render(self, rows: list[dict[str, Any]], options: dict[str, Any]) -> str:
        text: str = self.tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True, **options)
        return text

    def _template_options(self, tools: Sequence[Tool] | None, switches: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the arguments of the chat template besides the messages.

        Raises:
            ApiError: the template does not support tools, or a switch has a reserved name.
        """
        for name in switches or ():
            if name in RESERVED:
                message = f"'{name}' is not a switch of chat templates; leave it out."
                raise ApiError(400, message, param="chat_template_kwargs", code="invalid_value")
        if not tools:
            return dict(switches or {})
        if not self.formats.calls:
            raise ApiError(
                400,
                "'tools' is not supported with this model: its chat template's format of tool calls is not known. "
                "Name it when the server is started (--tool-parser).",
                param="tools",
                code="unsupported_parameter",
            )
        return {**(switches or {}), "tools": [tool.model_dump(exclude_none=True) for tool in tools]}
