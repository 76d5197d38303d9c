"""The sources of a corpus: files, folders and Hugging Face datasets, each with a weight."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from speculant.core.errors import FileError, UsageError
from speculant.corpus.documents import read_rows, why_no_text
from speculant.corpus.hub import PREFIX, HubDataset, find_dataset, read_dataset
from speculant.corpus.rows import CorpusRow

MAX_WEIGHT = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file, with its size in bytes and modification time in nanoseconds, to detect changes."""

    path: Path
    size: int
    modified: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """One source.

    Attributes:
        given: the user's name for it, without the weight.
        name: name without leading folders, which must not be stored in the base.
        weight: how often its texts count.
        files: files in reading order; none for a dataset.
        dataset: dataset on the hub; None for files.
        left_out: number of skipped files of a folder, by reason.
    """

    given: str
    name: str
    weight: float
    files: tuple[SourceFile, ...]
    dataset: HubDataset | None
    left_out: Mapping[str, int]

    @property
    def size(self) -> int | None:
        """The number of bytes to read; None if unknown."""
        return sum(file.size for file in self.files) if self.dataset is None else self.dataset.size


def find_source(text: str, reject: Callable[[str], object]) -> TextSource:
    """Return the source named by `PATH`, `hf:ORG/NAME[:SPLIT]` or either with `@WEIGHT`.

    Args:
        text: name of the source; an existing path is taken literally.
        reject: called with the reason why a single file is skipped: it is empty or binary.

    Raises:
        UsageError: the weight or the name has another form.
        UnsupportedError: a dataset is named, and the package for datasets is not installed.
        FileError: there is no such file or dataset, or it cannot be read.
    """
    given, weight = split_weight(text)
    if given.startswith(PREFIX) and not Path(given).exists():
        dataset = find_dataset(given)
        return TextSource(given=given, name=given, weight=weight, files=(), dataset=dataset, left_out={})
    path = Path(given)
    if path.is_dir():
        files, left_out = list_folder(path)
    else:
        reason, left_out = why_no_text(path), {}
        if reason:
            reject(f"{path} {reason}; it is left out.")
        files = () if reason else (stamp(path),)
    name = path.name or path.resolve().name or "/"
    name = path.resolve().name if name == ".." else name
    return TextSource(given=given, name=name, weight=weight, files=files, dataset=None, left_out=left_out)


def split_weight(text: str) -> tuple[str, float]:
    """Return a source without its weight, and the weight: 1 if it has none.

    Raises:
        UsageError: the weight is not a number above 0, or too large.
    """
    given, at, number = text.rpartition("@")
    if not at or not given or Path(text).exists():
        return text, 1.0
    try:
        weight = float(number)
    except ValueError:
        return text, 1.0
    if not (math.isfinite(weight) and 0 < weight <= MAX_WEIGHT):
        raise UsageError(f"the weight of {given} must be above 0 and at most {MAX_WEIGHT:g}, not {number}.")
    return given, weight


def list_folder(folder: Path) -> tuple[tuple[SourceFile, ...], Mapping[str, int]]:
    """Return the text files below a folder, sorted by path, and the number of other files, by reason.

    Hidden files and folders are skipped: they contain settings, histories and keys. Links to folders are not followed.

    Raises:
        FileError: the folder cannot be read.
    """
    found: list[SourceFile] = []
    others: Counter[str] = Counter()

    def refuse(error: OSError) -> None:
        if Path(error.filename or folder) == folder:
            raise FileError(f"cannot read the folder {folder}: {error.strerror}.") from error
        others["unreadable"] += 1

    for place, folders, names in os.walk(folder, onerror=refuse):
        others["hidden"] += sum(name.startswith(".") for name in [*folders, *names])
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(place, name) for name in sorted(names) if not name.startswith(".")):
            try:
                reason = why_no_text(path).removeprefix("is ") if path.is_file() else "special"
                if not reason:
                    found.append(stamp(path))
            except FileError:
                reason = "unreadable"
            others[reason] += bool(reason)
    return tuple(found), {reason: count for reason, count in sorted(others.items()) if count}


def stamp(path: Path) -> SourceFile:
    """Return a file with its size and modification time.

    Raises:
        FileError: it cannot be read.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    return SourceFile(path=path, size=status.st_size, modified=status.st_mtime_ns)


def read_source(
    source: TextSource,
    *,
    vocabulary: int,
    advance: Callable[[int], object],
    reject: Callable[[str], object],
    file: int = 0,
    skip: int = 0,
) -> Iterator[tuple[int, CorpusRow]]:
    """Yield the rows of a source, each with the number of its file.

    Args:
        source: a found source.
        vocabulary: upper bound of ids.
        advance: called with the number of bytes read.
        reject: called with the reason for each unusable row.
        file: the first file to read.
        skip: rows of that file up to this place are skipped.

    Raises:
        FileError: it cannot be read.
    """
    if source.dataset is not None:
        for row in read_dataset(source.dataset, vocabulary=vocabulary, advance=advance, reject=reject, skip=skip):
            yield 0, row
        return
    for number in range(file, len(source.files)):
        begin = skip if number == file else 0
        path = source.files[number].path
        for row in read_rows(path, vocabulary=vocabulary, advance=advance, reject=reject, skip=begin):
            yield number, row
