"""The texts that `--data` names: folders of what the target wrote, and files of any text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speculant.core.errors import FileError, UsageError
from speculant.training.fingerprint import TargetIdentity
from speculant.training.texts import Texts, from_parts, joined

MANIFEST = "data.json"
SUFFIXES = (".txt", ".jsonl")


@dataclass(frozen=True, slots=True, eq=False)
class TrainData:
    """Texts, and what the user should know of them.

    Attributes:
        texts: all of them.
        sources: names of files and folders, with what they hold, for the model card.
        notes: warnings.
    """

    texts: Texts
    sources: tuple[str, ...]
    notes: tuple[str, ...]


def read_data(paths: Sequence[str | Path], tokenizer: Any, target: TargetIdentity) -> TrainData:
    """Return the texts of files and folders, as token ids of the target.

    Args:
        paths: folders of `train data`; .txt files, cut into texts by lines that hold only <|endoftext|>; .jsonl files
            with rows {"text"} or {"messages"}.
        tokenizer: the target's; None reads folders only.
        target: what the texts should have been written by.

    Raises:
        FileError: one cannot be read, or is damaged or unfinished.
        UsageError: one is of another tokenizer or of a kind that is not understood, or there is no text.
    """
    texts, sources, notes = list[Texts](), list[str](), list[str]()
    for path in map(Path, paths):
        if not path.exists():
            raise FileError(f"there is no data at {path}. Name files, or a folder that `speculant train data` made.")
        if path.is_dir():
            found, written = _read_folder(path, target, notes)
        elif path.suffix in SUFFIXES:
            found, written = _read_file(path, tokenizer), False
        else:
            raise UsageError(f"{path} is no data: a folder, a .txt or a .jsonl file was expected.")
        if not written:
            notes.append(
                f"the texts of {path} were not written by this target. A head learns what the target writes: it trains "
                "better on texts that `speculant train data` lets the target write."
            )
        texts.append(found)
        sources.append(f"{path.resolve().name} ({len(found)} texts, {found.tokens} tokens)")
    whole = joined(texts)
    if not len(whole):
        raise UsageError("there is no text in the data. Name files with text, or let `speculant train data` make some.")
    return TrainData(whole, tuple(sources), tuple(notes))


def read_shard(path: Path, vocabulary: int) -> Texts:
    """Return the texts of a shard: arrays `ids` of all texts in a row, `lengths`, and perhaps `prompts`.

    Raises:
        FileError: it is damaged, or holds ids that the target does not have.
    """
    try:
        with np.load(path, allow_pickle=False) as shard:
            ids, lengths = shard["ids"].astype(np.int64), shard["lengths"].astype(np.int64)
            prompts = shard["prompts"] if "prompts" in shard else np.zeros(len(lengths), np.int32)
    except Exception as error:  # damaged archives fail in many ways; each ends here with its reason
        raise FileError(
            f"{path} cannot be read: {type(error).__name__}: {error}. It may be truncated: delete it, and let "
            "`speculant train data` write it again."
        ) from error
    if lengths.sum() != len(ids) or len(prompts) != len(lengths) or (len(lengths) and lengths.min() < 0):
        raise FileError(f"{path} is damaged: its lengths do not add up to its tokens. Delete it and write it again.")
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary:
        raise FileError(
            f"{path} has token ids from {ids.min()} to {ids.max()}, and the target's vocabulary has {vocabulary}: it "
            "was made for another model."
        )
    return from_parts(np.split(ids, np.cumsum(lengths)[:-1]) if len(lengths) else [], prompts)


def _read_folder(path: Path, target: TargetIdentity, notes: list[str]) -> tuple[Texts, bool]:
    """Return the texts of a folder, and whether the target wrote them as far as is known."""
    shards = sorted(each for each in path.glob("*.npz") if ".tmp" not in each.name)
    if not shards:
        raise FileError(f"{path} holds no shards of texts (*.npz). Name a folder that `speculant train data` made.")
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
    return joined([read_shard(shard, target.vocabulary) for shard in shards]), written


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return what a folder says of its texts; None if it has no manifest.

    Raises:
        FileError: it is damaged.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if not isinstance(found["target"], dict) or not isinstance(found["shards"], int):
            raise ValueError("it does not name a target and a number of shards")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} cannot be read: {error}. Write the data anew with `speculant train data`.") from error
    return found


def _read_file(path: Path, tokenizer: Any) -> Texts:
    if tokenizer is None:
        raise UsageError(f"{path} is text, and the target has no tokenizer to read it with. Name a folder of ids.")
    parts = [part for part in _texts(path, tokenizer) if part.strip()]
    ids = tokenizer(parts)["input_ids"] if parts else []
    return from_parts([np.asarray(each, np.int32) for each in ids])


def _texts(path: Path, tokenizer: Any) -> Iterator[str]:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text: byte {error.start} does not belong there.") from error
    if path.suffix == ".txt":
        yield from text.replace("\r\n", "\n").split("\n<|endoftext|>\n")
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise FileError(f"{path}:{number}: this is not JSON: {error}. It may be truncated.") from error
        yield _text_of(row, tokenizer, f"{path}:{number}")


def _text_of(row: Any, tokenizer: Any, place: str) -> str:
    match row:
        case {"text": str(text)}:
            return text
        case {"messages": [*messages]} if tokenizer.chat_template:
            return str(tokenizer.apply_chat_template(messages, tokenize=False))
        case {"messages": [*_]}:
            raise UsageError(f"{place}: these are messages, and the target's tokenizer has no chat template.")
    raise FileError(f'{place}: a row {{"text"}} or {{"messages"}} was expected.')
