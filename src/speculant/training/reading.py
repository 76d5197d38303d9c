"""Reads the texts named by `--data`: folders of texts that the target wrote, and files of any text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from speculant.core.errors import FileError, UsageError
from speculant.training.fingerprint import TargetIdentity
from speculant.training.hidden_files import find_hidden_files, read_hidden_folder
from speculant.training.shards import MANIFEST, read_manifest, read_shard, shard_files
from speculant.training.texts import Texts, from_parts, join_texts

SUFFIXES = (".txt", ".jsonl")


@dataclass(frozen=True, slots=True, eq=False)
class TrainData:
    """Texts, and messages about them for the user.

    Attributes:
        texts: all texts.
        sources: names of files and folders with their contents, for the model card.
        notes: warnings.
    """

    texts: Texts
    sources: tuple[str, ...]
    notes: tuple[str, ...]


def read_data(
    paths: Sequence[str | Path], tokenizer: Any, target: TargetIdentity, *, start: int | None = None
) -> TrainData:
    """Read the texts of files and folders as token ids of the target.

    Args:
        paths: folders of `train data`, or of hidden states stored by vLLM or speculators; .txt files, split at
            <|endoftext|>; .jsonl files with rows {"text"} or {"messages"}. For encoder-decoders: folders of `train
            data`, or .jsonl files with rows {"source", "target"}.
        tokenizer: the target's tokenizer; with None only folders can be read.
        target: the target that should have written the texts.
        start: the first token of the decoder's texts, if the target is an encoder-decoder.

    Raises:
        FileError: a file cannot be read, or is damaged or unfinished.
        UsageError: a file has another tokenizer or an unknown format, or there is no text.
    """
    texts, sources, notes = list[Texts](), list[str](), list[str]()
    for path in map(Path, paths):
        if not path.exists():
            raise FileError(f"there is no data at {path}. Name files, or a folder that `speculant train data` made.")
        if path.is_dir() and not shard_files(path) and find_hidden_files(path):
            found, written = read_hidden_folder(path, target.vocabulary), True
            notes.append(f"the hidden states of the texts in {path} are read, as far as they fit this target.")
        elif path.is_dir():
            found, written = _read_folder(path, target, notes)
        elif path.suffix in SUFFIXES:
            found, written = _read_file(path, tokenizer, start), False
        else:
            raise UsageError(f"{path} is no data: a folder, a .txt or a .jsonl file was expected.")
        if not written:
            notes.append(
                f"the texts of {path} were not written by this target. A head learns what the target writes: it trains "
                "better on texts that `speculant train data` lets the target write."
            )
        texts.append(found)
        sources.append(f"{path.resolve().name} ({len(found)} texts, {found.tokens} tokens)")
    whole = join_texts(texts)
    if not len(whole):
        raise UsageError("there is no text in the data. Name files with text, or let `speculant train data` make some.")
    return TrainData(whole, tuple(sources), tuple(notes))


def _read_folder(path: Path, target: TargetIdentity, notes: list[str]) -> tuple[Texts, bool]:
    """Return the texts of a folder, and whether the target wrote them, as far as known."""
    shards = shard_files(path)
    if not shards:
        raise FileError(
            f"{path} holds no shards of texts (*.npz). Name a folder that `speculant train data` made, "
            "or one of hidden states (*.safetensors) that vLLM or speculators stored."
        )
    written, manifest = True, read_manifest(path)
    if manifest is None:
        notes.append(f"{path} has no {MANIFEST}, so it is not known which model and tokenizer its texts are of.")
    else:
        by = manifest["target"]
        if by["tokenizer"] != target.tokenizer:
            raise UsageError(
                f"the texts in {path} are of another tokenizer than this target's: they were written by {by['name']}. "
                "Make data for this target with `speculant train data`."
            )
        written = by["model"] == target.model
        if len(shards) < manifest["shards"]:
            notes.append(
                f"{path} has {len(shards)} of {manifest['shards']} shards: `speculant train data` was interrupted. "
                "The same command goes on; training uses what is there."
            )
    return join_texts([read_shard(shard, target.vocabulary) for shard in shards]), written


def _read_file(path: Path, tokenizer: Any, start: int | None) -> Texts:
    if tokenizer is None:
        raise UsageError(f"{path} is text, and the target has no tokenizer to read it with. Name a folder of ids.")
    if start is not None:
        return _read_pairs(path, tokenizer, start)
    parts = [part for part in _texts(path, tokenizer) if part.strip()]
    ids = tokenizer(parts)["input_ids"] if parts else []
    return from_parts([np.asarray(each, np.int32) for each in ids])


def _read_pairs(path: Path, tokenizer: Any, start: int) -> Texts:
    """Read the pairs of a file; a decoder's text begins with the token `start`, which the target does not choose."""
    if path.suffix == ".txt":
        raise UsageError(
            f"{path} has texts without sources, and the target is an encoder-decoder. Name a .jsonl file with rows "
            '{"source", "target"}, or a folder that `speculant train data` made.'
        )
    sources, targets = list[str](), list[str]()
    for place, row in _rows(path, _read_text(path)):
        match row:
            case {"source": str(source), "target": str(target)}:
                sources.append(source)
                targets.append(target)
            case _:
                raise FileError(
                    f'{place}: a row {{"source", "target"}} was expected, as the target is an encoder-decoder.'
                )
    if not sources:
        return from_parts([])
    read, written = tokenizer(sources)["input_ids"], tokenizer(text_target=targets)["input_ids"]
    found = from_parts([np.asarray([start, *ids], np.int32) for ids in written], [1] * len(written))
    return replace(found, sources=from_parts([np.asarray(ids, np.int32) for ids in read]))


def _texts(path: Path, tokenizer: Any) -> Iterator[str]:
    text = _read_text(path)
    if path.suffix == ".txt":
        yield from re.split(r"\n?<\|endoftext\|>\n?", text.replace("\r\n", "\n"))
        return
    for place, row in _rows(path, text):
        yield _text_of(row, tokenizer, place)


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text: byte {error.start} does not belong there.") from error


def _rows(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a .jsonl file, each with its place for messages."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise FileError(f"{path}:{number}: this is not JSON: {error}. It may be truncated.") from error
        yield f"{path}:{number}", row


def _text_of(row: Any, tokenizer: Any, place: str) -> str:
    match row:
        case {"text": str(text)}:
            return text
        case {"messages": [*messages]} if tokenizer.chat_template:
            return str(tokenizer.apply_chat_template(messages, tokenize=False))
        case {"messages": [*_]}:
            raise UsageError(f"{place}: these are messages, and the target's tokenizer has no chat template.")
    raise FileError(f'{place}: a row {{"text"}} or {{"messages"}} was expected.')
