"""Prompts from the command line, standard input or a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from speculant.core.errors import FileError, UsageError


def given_prompt(text: str) -> str:
    """Return the PROMPT argument; "-" stands for standard input, without its last line end.

    Raises:
        UsageError: it is not text.
    """
    if text == "-":
        try:
            text = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not UTF-8 text: byte {error.start} does not belong there.") from error
    if not is_text(text):
        raise UsageError("the prompt is not UTF-8 text; write it to a file in UTF-8 and give that to --prompts.")
    return text


def read_prompts(path: str) -> list[str]:
    """Return the prompts of a file.

    Args:
        path: .json holds a list, .jsonl a row per line, each a string or an object with "prompt"; in any other
            file every line is a prompt. Blank lines are passed over.

    Raises:
        FileError: it cannot be read, holds no prompts or something else; the message names file and line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FileError(f"cannot read the prompts in {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise FileError(f"{path}:{line}: this is not UTF-8 text. Convert the file to UTF-8.") from error
    suffix = Path(path).suffix
    if suffix == ".json":
        prompts = _from_list(path, text)
    elif suffix == ".jsonl":
        prompts = [_from_item(f"{path}:{i}", _parse(path, line, i)) for i, line in _lines(text)]
    else:
        prompts = [line for _, line in _lines(text)]
    if not prompts:
        raise FileError(f"{path} holds no prompts.")
    return prompts


def is_text(text: str) -> bool:
    """Say whether a string can be encoded; bytes that were no text arrive as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _lines(text: str) -> list[tuple[int, str]]:
    # Not splitlines(), which also cuts at characters that JSON strings may hold.
    numbered = enumerate(text.split("\n"), start=1)
    return [(number, line.removesuffix("\r")) for number, line in numbered if line.strip()]


def _from_list(path: str, text: str) -> list[str]:
    items = _parse(path, text, 1)
    if not isinstance(items, list):
        raise FileError(f"{path}:1: a list of prompts was expected. Name the file .jsonl if every line is a row.")
    return [_from_item(f"{path}: entry {i}", item) for i, item in enumerate(items, start=1)]


def _from_item(place: str, item: Any) -> str:
    prompt = item.get("prompt") if isinstance(item, dict) else item
    if not isinstance(prompt, str):
        raise FileError(f'{place}: a string or an object with a string "prompt" was expected.')
    if not prompt:
        raise FileError(f"{place}: the prompt is empty.")
    if not is_text(prompt):
        raise FileError(f"{place}: the prompt is not text: it holds half of a surrogate pair.")
    return prompt


def _parse(path: str, text: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"{path}:{line + error.lineno - 1}: this is not JSON: {error.msg}.") from error
    except RecursionError as error:
        raise FileError(f"{path}:{line}: this JSON is nested too deeply.") from error
