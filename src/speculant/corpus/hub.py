"""Hugging Face datasets as sources of a corpus: streamed row by row, at the revision that was current at the start."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from speculant.core.errors import FileError, UnsupportedError, UsageError
from speculant.corpus.rows import CorpusRow, read_row

PREFIX = "hf:"
SPLIT = "train"
_FORM = re.compile(r"hf:(?P<repository>[^/:@\s]+/[^/:@\s]+)(/(?P<configuration>[^/:@\s]+))?(:(?P<split>[^/:@\s]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubDataset:
    """A dataset on the hub.

    Attributes:
        repository: "ORG/NAME".
        configuration: name, for datasets with several; None for the only one.
        split: split of the dataset.
        revision: the commit to read.
        size: bytes of the split according to the hub; None if unknown.
    """

    repository: str
    configuration: str | None
    split: str
    revision: str
    size: int | None


def find_dataset(name: str) -> HubDataset:
    """Find the dataset named by `hf:ORG/NAME[/CONFIGURATION][:SPLIT]`, in its current revision.

    Raises:
        UsageError: the name has another form.
        UnsupportedError: the package `datasets` is not installed.
        FileError: there is no such dataset, or the hub cannot be reached.
    """
    match = _FORM.fullmatch(name)
    if match is None:
        raise UsageError(f"'{name}' is no dataset: write hf:ORG/NAME, hf:ORG/NAME:SPLIT or hf:ORG/NAME/CONFIG:SPLIT.")
    repository, configuration = match["repository"], match["configuration"]
    split = match["split"] or SPLIT
    check_installed()
    with _explain_errors(repository):
        from huggingface_hub import HfApi

        revision = str(HfApi().dataset_info(repository).sha)
        info = _open(repository, configuration, split, revision).info
    about = (info.splits or {}).get(split)
    size = getattr(about, "num_bytes", None) or None
    return HubDataset(repository=repository, configuration=configuration, split=split, revision=revision, size=size)


def check_installed() -> None:
    """Check that the package `datasets` can be imported.

    Raises:
        UnsupportedError: it cannot.
    """
    try:
        import datasets
    except ImportError as error:
        raise UnsupportedError(
            f"sources that begin with hf: need the package `datasets`, which cannot be imported ({error}): "
            "pip install 'speculant[datasets]'. Files of the dataset, as .jsonl, .json or text, are sources without it."
        ) from error
    datasets.disable_progress_bars()
    logging.getLogger("datasets").setLevel(logging.ERROR)


def read_dataset(
    dataset: HubDataset,
    *,
    vocabulary: int,
    advance: Callable[[int], object],
    reject: Callable[[str], object],
    skip: int = 0,
) -> Iterator[CorpusRow]:
    """Yield the rows of a dataset.

    Args:
        dataset: a found dataset.
        vocabulary: upper bound of ids.
        advance: called with the number of bytes of text read.
        reject: called with number and reason of each unusable row.
        skip: number of rows to skip.

    Raises:
        FileError: the hub can no longer be reached.
    """
    name = f"{PREFIX}{dataset.repository}"
    with _explain_errors(dataset.repository):
        rows = _open(dataset.repository, dataset.configuration, dataset.split, dataset.revision)
        places = iter(rows.skip(skip) if skip else rows)
    for place in range(skip + 1, 1 << 62):
        with _explain_errors(dataset.repository):  # around network access only, not around the use of rows
            value = next(places, None)
        if value is None:
            return
        try:
            row = read_row(value, vocabulary=vocabulary, place=place)
        except ValueError as error:
            reject(f"{name}: row {place} with {', '.join(map(str, value))}: {error}; this row is left out.")
            continue
        advance(sum(len(text.encode()) for text in row.documents if isinstance(text, str)))
        yield row


def _open(repository: str, configuration: str | None, split: str, revision: str) -> Any:
    import datasets

    return datasets.load_dataset(repository, configuration, split=split, revision=revision, streaming=True)


@contextmanager
def _explain_errors(repository: str) -> Iterator[None]:
    """Convert any exception of the hub's packages to an error with its reason and a remedy."""
    try:
        yield
    except Exception as error:  # HTTP, the file formats of datasets and their scripts fail in many ways
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = (lines[0] if lines else type(error).__name__).rstrip(".")
        raise FileError(
            f"cannot read the dataset {repository} from the hub: {reason}. Check its name, the network and, for gated "
            "datasets, your login; or save it as .jsonl where there is a network, and name that file."
        ) from error
