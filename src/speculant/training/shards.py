"""Folders of texts that a target wrote: shards of token ids, and a manifest that identifies the target."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from speculant.core.errors import FileError
from speculant.memory.aside import SHARED, write_aside
from speculant.training.texts import Int32, Int64, Texts, from_parts

MANIFEST = "data.json"
SOURCES, SOURCE_LENGTHS = "source_ids", "source_lengths"  # arrays of shards with pairs of texts


def shard_file(folder: Path, number: int) -> Path:
    """Return the path of a shard."""
    return folder / f"texts-{number:05d}.npz"


def shard_files(folder: Path) -> list[Path]:
    """Return the complete shards of a folder."""
    return sorted(folder.glob("*.npz"))


def write_shard(path: Path, texts: Texts) -> None:
    """Write a shard atomically.

    Raises:
        FileError: it cannot be written.
    """
    arrays: dict[str, Any] = {"ids": texts.ids, "lengths": texts.lengths, "prompts": texts.prompts}
    if texts.sources is not None:
        arrays |= {SOURCES: texts.sources.ids, SOURCE_LENGTHS: texts.sources.lengths}
    try:
        with write_aside(path, mode=SHARED) as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}. Make room; the same command then goes on.") from error


def read_shard(path: Path, vocabulary: int) -> Texts:
    """Read the texts of a shard: concatenated arrays `ids`, `lengths`, and optionally `prompts` and their sources.

    Raises:
        FileError: it is damaged, or has ids that the target lacks.
    """
    sources: Texts | None = None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as shard:
            ids, lengths = shard["ids"].astype(np.int64), shard["lengths"].astype(np.int64)
            prompts = shard["prompts"].astype(np.int32) if "prompts" in shard else np.zeros(len(lengths), np.int32)
            if SOURCES in shard:
                sources = _split(shard[SOURCES].astype(np.int64), shard[SOURCE_LENGTHS].astype(np.int64))
        found = replace(_split(ids, lengths, prompts), sources=sources)
        if sources is not None and len(sources) != len(found):
            raise ValueError(f"it has {len(sources)} sources of {len(found)} texts")
    except Exception as error:  # damaged archives fail in many ways; each ends here with its reason
        raise FileError(
            f"{path} cannot be read: {type(error).__name__}: {error}. It may be truncated: delete it, and let "
            "`speculant train data` write it again."
        ) from error
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary:
        raise FileError(
            f"{path} has token ids from {ids.min()} to {ids.max()}, and the target's vocabulary has {vocabulary}: it "
            "was made for another model."
        )
    return found


def _split(ids: Int64, lengths: Int64, prompts: Int32 | None = None) -> Texts:
    """Return texts given their concatenated ids.

    Raises:
        ValueError: the arrays contradict each other.
    """
    if lengths.sum() != len(ids) or (lengths < 0).any() or (prompts is not None and len(prompts) != len(lengths)):
        raise ValueError("its lengths do not add up to its tokens")
    return from_parts(np.split(ids, np.cumsum(lengths)[:-1]) if len(lengths) else [], prompts)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read the manifest of a folder; None if there is none.

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


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of a folder; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with write_aside(folder / MANIFEST, mode=SHARED) as file:
        file.write(f"{json.dumps(manifest, indent=2)}\n".encode())
