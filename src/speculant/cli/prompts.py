"""Prompts from the command line, standard input or a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.core.errors import FileError, PromptError, UsageError
from speculant.corpus.rows import is_text

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator

Message = dict[str, Any]
Prompt = str | list[Message] | tuple[str, ...]
SINGLE = ("prompt", "question", "query", "text")


def read_prompt_argument(text: str) -> str:
    """Return the PROMPT argument; "-" reads standard input, without its last newline.

    Raises:
        PromptError: it is empty.
        UsageError: it is not text.
    """
    if text == "-":
        try:
            text = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not UTF-8 text: byte {error.start} is invalid.") from error
    if not is_text(text):
        raise UsageError("the prompt is not UTF-8 text; write it to a file in UTF-8 and give that to --prompts.")
    if not text:
        raise PromptError("the prompt is empty; there is nothing to continue. Give it some text.")
    return text


def read_prompts(path: str) -> list[Prompt]:
    """Read the prompts of a file.

    Args:
        path: .json has a list, .jsonl a row per line, see `prompt_of`; in any other file every line is a prompt. Blank
            lines are skipped.

    Raises:
        FileError: it cannot be read, or has no prompts or an unknown format; the message names file and line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FileError(f"cannot read the prompts in {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise FileError(f"{path}:{line}: this is not UTF-8 text. Convert the file to UTF-8.") from error
    suffix = Path(path).suffix
    prompts: list[Prompt]
    if suffix == ".json":
        prompts = _from_list(path, text)
    elif suffix == ".jsonl":
        prompts = [prompt_of(f"{path}:{i}", _parse(path, line, i)) for i, line in _lines(text)]
    else:
        prompts = [line for _, line in _lines(text)]
    if not prompts:
        raise FileError(f"{path} holds no prompts.")
    return prompts


def single_turns(prompts: Sequence[Prompt]) -> list[str | list[Message]]:
    """Return the prompts, all of one turn, for decoding together.

    Raises:
        UsageError: one has several turns.
    """
    for number, prompt in enumerate(prompts, start=1):
        if isinstance(prompt, tuple):
            raise UsageError(f"prompt {number} has several turns, which must be decoded in order. Leave out --batch.")
    return [prompt for prompt in prompts if not isinstance(prompt, tuple)]


def prompt_of(place: str, item: Any) -> Prompt:
    """Return the prompt in a row.

    The first of these formats that matches is used:

        "text"                                           one prompt
        [{"role", "content"}, ...], {"messages": [...]}  a chat; an answer at its end is left out
        {"turns": ["...", ...]}                          what a user writes, turn by turn
        {"query", "docs": [...]}                         a question about documents
        {"prompt"}, {"question"}, {"query"}, {"text"}    one prompt

    Args:
        place: file and line, for messages.
        item: the row.

    Raises:
        FileError: it has none of these formats, or is empty.
    """
    prompt: Prompt | None = None
    match item:
        case str():
            prompt = item
        case [*messages] | {"messages": [*messages]} if messages and all(map(_is_message, messages)):
            chat = [{"role": each["role"], "content": each["content"]} for each in messages]
            prompt = chat[:-1] if chat[-1]["role"] == "assistant" else chat
        case {"turns": [str(), *_] as turns} if all(isinstance(turn, str) for turn in turns):
            prompt = turns[0] if len(turns) == 1 else tuple(turns)
        case {"query": str(query), "docs": [*docs]}:
            prompt = "\n\n".join([*map(str, docs), query])
        case dict():
            prompt = next((item[name] for name in SINGLE if isinstance(item.get(name), str)), None)
    if prompt is None:
        raise FileError(
            f'{place}: a string, chat messages, or an object with "prompt", "question", "turns", "messages", "query" '
            'or "text" was expected.'
        )
    texts = [prompt] if isinstance(prompt, str) else [_content(each) for each in prompt]
    if not texts or not all(texts):
        raise FileError(f"{place}: the prompt is empty.")
    if not all(map(is_text, texts)):
        raise FileError(f"{place}: the prompt is not text: it contains half of a surrogate pair.")
    return prompt


def _content(part: str | Message) -> str:
    return part if isinstance(part, str) else part["content"]


def _lines(text: str) -> list[tuple[int, str]]:
    # Not splitlines(), which also splits at characters that JSON strings may contain.
    numbered = enumerate(text.split("\n"), start=1)
    return [(number, line.removesuffix("\r")) for number, line in numbered if line.strip()]


def _from_list(path: str, text: str) -> list[Prompt]:
    items = _parse(path, text, 1)
    if not isinstance(items, list):
        raise FileError(f"{path}:1: a list of prompts was expected. Name the file .jsonl if every line is a row.")
    if items and all(_is_message(item) for item in items):  # one conversation
        return [prompt_of(f"{path}:1", items)]
    return [prompt_of(f"{path}: entry {i}", item) for i, item in enumerate(items, start=1)]


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)


def _parse(path: str, text: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"{path}:{line + error.lineno - 1}: this is not JSON: {error.msg}.") from error
    except RecursionError as error:
        raise FileError(f"{path}:{line}: this JSON is nested too deeply.") from error


def encode_prompt(speculator: Speculator, number: int, prompt: Prompt) -> list[int]:
    """Return a prompt's token ids.

    Raises:
        UsageError: it has several turns.
    """
    if isinstance(prompt, tuple):
        raise UsageError(f"prompt {number} has several turns; checking takes single prompts and chats.")
    if isinstance(prompt, list):
        return list(speculator.encode_chat(prompt))
    ids: list[int] = speculator.tokenizer(prompt)["input_ids"]
    return ids
