"""Suites of prompts, read from a folder or downloaded once from their authors.

Rows have their authors' formats; the first of these that matches is used:

    {"turns": [...]}                       a conversation (Spec-Bench, MT-Bench)
    {"query", "docs": [...]}               a question about documents (LLMA)
    {"prompt"}, {"question"}, {"query"}, {"text"}    one prompt (HumanEval, GSM8K, LLMA, MBPP)
"""

from __future__ import annotations

import gzip
import json
import os
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from speculant.core.errors import FileError, UsageError
from speculant.core.folders import cache_folder

SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "spec-bench": "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
        "humaneval": "https://raw.githubusercontent.com/openai/human-eval/master/data/HumanEval.jsonl.gz",
        "gsm8k": "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/test.jsonl",
        "mbpp": "https://raw.githubusercontent.com/google-research/google-research/master/mbpp/mbpp.jsonl",
    }
)
FILE_NAMES: Mapping[str, str] = MappingProxyType({"gsm8k": "gsm8k-test"})  # files with another name
SINGLE = ("prompt", "question", "query", "text")
TIMEOUT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class TaskConversation:
    """The user's messages in a conversation, and the category by which figures are grouped."""

    turns: tuple[str, ...]
    category: str


def read_suite(task: str, folder: Path | None, reject: Callable[[str], object] | None = None) -> list[TaskConversation]:
    """Return the prompts of a task.

    Args:
        task: a suite's name, or a .jsonl file of prompts.
        folder: folder of suites named NAME.jsonl; None for $SPECULANT_DATA/prompts.
        reject: called with place and reason of each unusable row; None to raise at the first.

    Raises:
        FileError: it cannot be found, downloaded or read, or a row cannot be used and there is no `reject`.
        UsageError: there is no such suite or file.
    """
    path = find_suite(task, folder)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                found.append(_parse(f"{path}:{number}", line, path.stem))
        except FileError as error:
            if reject is None:
                raise
            reject(f"{str(error).removesuffix('.')}; this row is left out.")
    if not found:
        raise FileError(f"{path} holds no prompts.")
    return found


def find_suite(task: str, folder: Path | None) -> Path:
    """Return the file of a task, downloading a suite that is not on disk.

    Raises:
        FileError, UsageError: see `read_suite`.
    """
    if task.endswith(".jsonl"):
        return Path(task)
    if folder is None and "SPECULANT_DATA" in os.environ:
        folder = Path(os.environ["SPECULANT_DATA"]) / "prompts"
    name = f"{FILE_NAMES.get(task, task)}.jsonl"
    for place in (folder, downloads := downloads_folder()):
        if place is not None and (place / name).is_file():
            return place / name
    if task not in SOURCES:
        raise UsageError(
            f"there is no task '{task}'. There are {', '.join(SOURCES)}, each NAME of a NAME.jsonl in --data DIR or "
            "$SPECULANT_DATA/prompts, and paths of .jsonl files of prompts."
        )
    return _download(task, downloads / name)


def downloads_folder() -> Path:
    """Return the folder of downloaded suites.

    Raises:
        FileError: this user has no home folder.
    """
    try:
        return cache_folder() / "prompts"
    except OSError as error:
        raise FileError(f"there is no folder for downloads ({error}). Set XDG_CACHE_HOME.") from error


def _download(task: str, path: Path) -> Path:
    source = SOURCES[task]
    try:
        with urllib.request.urlopen(source, timeout=TIMEOUT_SECONDS) as response:
            content: bytes = response.read()
        if source.endswith(".gz"):
            content = gzip.decompress(content)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_bytes(content)
        partial.rename(path)
    except OSError as error:
        raise FileError(
            f"'{task}' could not be downloaded ({error}). Without a network, put {path.name} into a "
            f"folder and name it by --data DIR; it comes from {source}."
        ) from error
    return path


def _parse(place: str, line: bytes, category: str) -> TaskConversation:
    try:
        return parse_conversation(json.loads(line), category)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{place}: {error}.") from error


def parse_conversation(row: Any, category: str) -> TaskConversation:
    """Return the conversation of a row.

    Args:
        row: a JSON value.
        category: for rows without their own.

    Raises:
        ValueError: the row has an unknown format.
    """
    match row:
        case {"turns": [str(), *_] as turns} if all(isinstance(turn, str) for turn in turns):
            texts = tuple(turns)
        case {"query": str(query), "docs": [*docs]}:
            texts = ("\n\n".join([*map(str, docs), query]),)
        case dict():
            given = [row[name] for name in SINGLE if isinstance(row.get(name), str)]
            texts = (given[0],) if given else ()
        case _:
            texts = ()
    if not texts or not all(texts):
        raise ValueError('a row with "turns", "prompt", "question", "query" or "text" was expected')
    return TaskConversation(texts, str(row.get("category") or category))
