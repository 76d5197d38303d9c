"""Reads recorded answers: rows of token ids, chat logs, or prompts with their outputs.

A .jsonl file holds a row per line, a .json file a list of rows. A row is one of

    {"prompt_ids": [...], "output_ids": [...]}        token ids; may have "category" and "recorded"
    {"messages": [{"role", "content"}, ...]}          the last answer of the assistant is the output
    {"prompt": "...", "output": "..."}

The latter two are text and need a tokenizer. For each drafter that was measured with the trace, `recorded` has the
number of tokens that a round rooted at the token before output position p would have yielded (accepted drafts + 1).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from speculant.bench.replay.texts import encode_answer, encode_chat, message_text
from speculant.core.errors import FileError, UsageError
from speculant.core.tree import Int32
from speculant.corpus.documents import parse_reason

FORMS = 'a row is {"prompt_ids", "output_ids"}, {"messages": [...]} or {"prompt", "output"}'
NO_CATEGORY = "uncategorised"
LARGEST_ID = 2**31 - 2
RECORDED = "recorded:"  # before the name of a drafter whose acceptance was recorded


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A request and its recorded answer.

    Attributes:
        prompt: Int32[T], output: Int32[M].
        category: the category by which figures are grouped.
        recorded: per drafter Int32[*], the yield of a round at each output position; its length may differ from M.
    """

    prompt: Int32
    output: Int32
    category: str = NO_CATEGORY
    recorded: Mapping[str, Int32] = field(default_factory=dict)


def read_recordings(
    path: Path,
    *,
    tokenizer: Any = None,
    reject: Callable[[str], object] | None = None,
    advance: Callable[[int], object] = lambda _size: None,
) -> Iterator[Recording]:
    """Yield the recordings of a file.

    Args:
        path: a .json file holds a list of rows, every other file a row per line.
        tokenizer: tokenizer for rows of text.
        reject: called with place and reason of each unusable row; None to raise at the first.
        advance: called with the number of bytes read.

    Raises:
        FileError: the file cannot be read, or a row cannot be used and there is no `reject`.
        UsageError: a row is text and there is no tokenizer.
    """
    for place, text in _rows(path, advance):
        fault = None
        try:
            recording = parse_row(json.loads(text) if isinstance(text, bytes) else text, tokenizer)
        except UsageError as error:
            raise UsageError(f"{place}: {error}") from error
        except (ValueError, RecursionError) as error:
            fault = error
        if fault is None:
            yield recording
        elif reject is None:
            raise FileError(f"{place}: {parse_reason(fault)}.") from fault
        else:
            reject(f"{place}: {parse_reason(fault)}; this row is left out.")


def parse_row(row: Any, tokenizer: Any) -> Recording:
    """Return the recording of a row.

    Raises:
        ValueError: it is in none of the formats.
        UsageError: it is text and there is no tokenizer.
    """
    if not isinstance(row, dict):
        raise ValueError(FORMS)
    if "prompt_ids" in row and "output_ids" in row:
        prompt, output = (_whole_numbers(row[name], name, minimum=0) for name in ("prompt_ids", "output_ids"))
    else:
        prompt, output = _encode(row, tokenizer)
    if not len(prompt) or not len(output):
        raise ValueError(f"the {'output' if len(prompt) else 'prompt'} is empty")
    recorded = row.get("recorded") or {}
    if not isinstance(recorded, dict):
        raise ValueError("recorded must hold a list per drafter")
    yields = {str(name): _whole_numbers(each, f"recorded {name}", minimum=1) for name, each in recorded.items()}
    return Recording(prompt, output, str(row.get("category") or NO_CATEGORY), yields)


def _encode(row: dict[str, Any], tokenizer: Any) -> tuple[Int32, Int32]:
    match row:
        case {"messages": [*messages]}:
            if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages):
                raise ValueError('a message is {"role", "content"}')
            answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
            if not answers or answers[-1] == 0:
                raise ValueError("the messages hold no answer of the assistant")
            before: Any = messages[: answers[-1]]
            answer = message_text(messages[answers[-1]])
        case {"prompt": str(before), "output": str(answer)}:
            pass
        case _:
            raise ValueError(FORMS)
    if tokenizer is None:
        raise UsageError("this row is text, not token ids. Name the tokenizer of the model by --tokenizer.")
    encode = encode_answer if isinstance(before, str) else encode_chat
    ids, output = encode(tokenizer, before, answer)
    return np.array(ids, np.int32), np.array(output, np.int32)


def _whole_numbers(value: Any, name: str, *, minimum: int) -> Int32:
    if not isinstance(value, list) or not all(type(i) is int and minimum <= i <= LARGEST_ID for i in value):
        raise ValueError(f"{name} must be a list of whole numbers from {minimum} to {LARGEST_ID}")
    return np.array(value, np.int32)


def _rows(path: Path, advance: Callable[[int], object]) -> Iterator[tuple[str, Any]]:
    """Yield place and row: lines as unparsed bytes, entries of a JSON list as values."""
    try:
        with path.open("rb") as file:
            if path.suffix != ".json":
                for number, line in enumerate(file, start=1):
                    advance(len(line))
                    if line.strip():
                        yield f"{path}:{number}", line
                return
            text = file.read()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    advance(len(text))
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: {parse_reason(error)}. Name the file .jsonl if every line is a row.") from error
    if not isinstance(entries, list):
        raise FileError(f"{path}: a list of rows was expected. Name the file .jsonl if every line is a row.")
    for number, entry in enumerate(entries, start=1):
        yield f"{path}: entry {number}", entry
