"""The requests of a benchmark: a task has items; an item has one request or, for a conversation, several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from speculant.bench.replay.texts import encode_chat
from speculant.bench.replay.traces import Recording
from speculant.bench.suite.suites import TaskConversation
from speculant.core.errors import TokenizerError, UsageError
from speculant.core.tree import Int32


@dataclass(frozen=True, slots=True, eq=False)
class TaskRequest:
    """One text to decode.

    Attributes:
        prompt: Int32[T].
        max_new_tokens: maximum tokens to decode.
        forced: Int32[max_new_tokens], the recorded output to follow; None to decode freely.
    """

    prompt: Int32
    max_new_tokens: int
    forced: Int32 | None = None


@dataclass(frozen=True, slots=True)
class TaskSampling:
    """How tokens are chosen: greedily at temperature 0, otherwise sampled with that seed."""

    temperature: float = 0.0
    seed: int = 0


class TaskItem(Protocol):
    """A sequence of requests."""

    @property
    def category(self) -> str:
        """The category by which figures are grouped."""

    @property
    def turns(self) -> int:
        """The maximum number of requests."""

    def request(self, answers: Sequence[Sequence[int]]) -> TaskRequest | None:
        """Return the request after those answers (token ids); None if there is no further one."""


@dataclass(frozen=True, slots=True)
class Task:
    """Named items, with notes for the report."""

    name: str
    items: Sequence[TaskItem]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class RecordedItem:
    """An item of a forced run."""

    recording: Recording
    turns = 1

    @property
    def category(self) -> str:
        """The category by which figures are grouped."""
        return self.recording.category

    def request(self, answers: Sequence[Sequence[int]]) -> TaskRequest | None:
        """Return the only request."""
        prompt, output = self.recording.prompt, self.recording.output
        return None if answers else TaskRequest(prompt, len(output), output)


@dataclass(frozen=True, slots=True, eq=False)
class PromptItem:
    """An item of a free run: a conversation, whose later turns follow plain decoding's answers.

    Attributes:
        conversation: the user's messages.
        tokenizer: with a chat template or, for a base model, without.
        positions: maximum tokens of prompt and answer together; None for no limit.
        max_new_tokens: maximum new tokens per answer.
    """

    conversation: TaskConversation
    tokenizer: Any
    positions: int | None
    max_new_tokens: int

    @property
    def category(self) -> str:
        """The category by which figures are grouped."""
        return self.conversation.category

    @property
    def turns(self) -> int:
        """The number of the user's messages."""
        return len(self.conversation.turns)

    def request(self, answers: Sequence[Sequence[int]]) -> TaskRequest | None:
        """Return the next turn's request; None if the conversation ends or exceeds the model's positions."""
        if len(answers) == self.turns:
            return None
        ids = self._encode(answers)
        room = self.max_new_tokens if self.positions is None else min(self.max_new_tokens, self.positions - len(ids))
        return TaskRequest(np.array(ids, np.int32), room) if ids and room > 0 else None

    def _encode(self, answers: Sequence[Sequence[int]]) -> list[int]:
        turns, tokenizer = self.conversation.turns[: len(answers) + 1], self.tokenizer
        if getattr(tokenizer, "chat_template", None):
            texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
            contents = [part for pair in zip(turns, texts, strict=False) for part in pair] + [turns[-1]]
            messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
            return encode_chat(tokenizer, messages, "")[0]
        ids: list[int] = tokenizer(turns[0])["input_ids"]
        for answer, turn in zip(answers, turns[1:], strict=True):
            ids = [*ids, *answer, *tokenizer(f"\n\n{turn}\n\n", add_special_tokens=False)["input_ids"]]
        return ids


def make_recorded_task(name: str, recordings: Sequence[Recording], positions: int | None) -> Task:
    """Return a task of recorded outputs, cut to the model's number of positions.

    Raises:
        UsageError: no prompt fits.
    """
    positions = positions or 1 << 30
    fitting = [each for each in recordings if len(each.prompt) < positions]
    if not fitting:
        raise UsageError(f"every prompt of {name} has {positions} tokens or more, and the model has no more positions.")
    cut = [replace(each, output=each.output[: positions - len(each.prompt)]) for each in fitting]
    shorter = sum(len(one.output) < len(other.output) for one, other in zip(cut, fitting, strict=True))
    notes = []
    if shorter:
        notes.append(f"{name}: {shorter} of {len(fitting)} outputs were cut at the model's {positions} positions.")
    if left_out := len(recordings) - len(fitting):
        notes.append(f"{name}: {left_out} requests were left out, since their prompts fill the model's positions.")
    return Task(name, [RecordedItem(each) for each in cut], tuple(notes))


def prompt_task(
    name: str, conversations: Sequence[TaskConversation], tokenizer: Any, *, positions: int | None, max_new_tokens: int
) -> Task:
    """Return a task of prompts.

    Raises:
        TokenizerError: the model has no tokenizer.
        UsageError: no prompt fits.
    """
    if tokenizer is None:
        raise TokenizerError(f"the prompts of {name} are text, and this model has no tokenizer.")
    items = [PromptItem(each, tokenizer, positions, max_new_tokens) for each in conversations]
    fitting = [item for item in items if item.request([]) is not None]
    if not fitting:
        raise UsageError(f"no prompt of {name} leaves room for an answer in the model's {positions} positions.")
    notes = []
    if left_out := len(items) - len(fitting):
        notes.append(
            f"{name}: {left_out} of {len(items)} prompts were left out, since they fill the model's positions."
        )
    return Task(name, fitting, tuple(notes))
