"""What a benchmark asks of every method: tasks of items, an item of one request or, in a conversation, of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from speculant.bench.replay.texts import encode_chat
from speculant.bench.replay.traces import Recording
from speculant.bench.suite.suites import Conversation
from speculant.core.errors import TokenizerError, UsageError
from speculant.core.tree import Int32


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One text to decode.

    Attributes:
        prompt: Int32[T].
        most: how many tokens at most.
        forced: Int32[most], the recorded output to follow; None to decode freely.
    """

    prompt: Int32
    most: int
    forced: Int32 | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen: greedily at temperature 0, else drawn with a random stream of that seed."""

    temperature: float = 0.0
    seed: int = 0


class Item(Protocol):
    """Requests that follow each other."""

    @property
    def category(self) -> str: ...

    def request(self, answers: Sequence[Sequence[int]]) -> Request | None:
        """Return the request after those answers (token ids), or None if there is no further one."""


@dataclass(frozen=True, slots=True)
class Task:
    """A name, what is asked, and what the report should say of it."""

    name: str
    items: Sequence[Item]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """An item of a forced run."""

    recording: Recording

    @property
    def category(self) -> str:
        """What figures are grouped by."""
        return self.recording.category

    def request(self, answers: Sequence[Sequence[int]]) -> Request | None:
        """Return the one request."""
        prompt, output = self.recording.prompt, self.recording.output
        return None if answers else Request(prompt, len(output), output)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """An item of a free run: a conversation, its answers those of plain decoding.

    Attributes:
        conversation: what the user says.
        tokenizer: with a chat template or, for a model that is not tuned to chat, without.
        positions: how many tokens prompt and answer may take together; None for any number.
        most: new tokens per answer.
    """

    conversation: Conversation
    tokenizer: Any
    positions: int | None
    most: int

    @property
    def category(self) -> str:
        """What figures are grouped by."""
        return self.conversation.category

    def request(self, answers: Sequence[Sequence[int]]) -> Request | None:
        """Return the next turn's request, or None where the conversation ends or outgrows the model."""
        if len(answers) == len(self.conversation.turns):
            return None
        ids = self._encode(answers)
        room = self.most if self.positions is None else min(self.most, self.positions - len(ids))
        return Request(np.array(ids, np.int32), room) if ids and room > 0 else None

    def _encode(self, answers: Sequence[Sequence[int]]) -> list[int]:
        turns, tokenizer = self.conversation.turns[: len(answers) + 1], self.tokenizer
        if getattr(tokenizer, "chat_template", None):
            texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
            said = [part for pair in zip(turns, texts, strict=False) for part in pair] + [turns[-1]]
            roles = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
            return encode_chat(tokenizer, roles, "")[0]
        ids: list[int] = tokenizer(turns[0])["input_ids"]
        for answer, turn in zip(answers, turns[1:], strict=True):
            ids = [*ids, *answer, *tokenizer(f"\n\n{turn}\n\n", add_special_tokens=False)["input_ids"]]
        return ids


def recorded_task(name: str, recordings: Sequence[Recording], positions: int | None) -> Task:
    """Return a task of recorded outputs, cut at the positions that the model has.

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
    return Task(name, [Recorded(each) for each in cut], tuple(notes))


def asked_task(
    name: str, conversations: Sequence[Conversation], tokenizer: Any, *, positions: int | None, most: int
) -> Task:
    """Return a task of prompts to answer.

    Raises:
        TokenizerError: the model has no tokenizer.
        UsageError: no prompt fits.
    """
    if tokenizer is None:
        raise TokenizerError(f"the prompts of {name} are text, and this model has no tokenizer.")
    items = [Asked(each, tokenizer, positions, most) for each in conversations]
    fitting = [item for item in items if item.request([]) is not None]
    if not fitting:
        raise UsageError(f"no prompt of {name} leaves room for an answer in the model's {positions} positions.")
    notes = []
    if left_out := len(items) - len(fitting):
        notes.append(
            f"{name}: {left_out} of {len(items)} prompts were left out, since they fill the model's positions."
        )
    return Task(name, fitting, tuple(notes))
