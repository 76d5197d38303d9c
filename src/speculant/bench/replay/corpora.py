"""Memory files with which methods start a replay: which method each file fits, and whether token ids match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from speculant.bench.systems.peers import PREFIX
from speculant.core.errors import ForeignMemoryError, UsageError
from speculant.memory.bases import read_base_header
from speculant.memory.file import read_header
from speculant.memory.fingerprint import tokenizer_fingerprint
from speculant.registry import find_method

FILE_KINDS: Mapping[str, str] = MappingProxyType(
    {"trigram": "trigram", "suffix-array": "suffix", "suffix-automaton": "sam"}
)  # of files written by `corpus build`


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A memory file, its kind, and the tokenizer fingerprint that a drafter needs to load it."""

    path: Path
    kind: str
    tokenizer: str


def read_corpus(path: Path, tokenizer: Any = None) -> CorpusFile:
    """Return the kind and the fingerprint of a corpus file.

    Args:
        path: the file.
        tokenizer: tokenizer of the traces; None if they are token ids.

    Raises:
        FileError, CorruptMemoryError: it cannot be read.
        UsageError: it was made with a tokenizer, and the traces' tokenizer is unknown.
    """
    header, _ = read_header(path)
    fingerprint = _fingerprint(path, header["tokenizer"], tokenizer)
    return CorpusFile(path, FILE_KINDS.get(header["kind"], header["kind"]), fingerprint)


def assign(methods: Sequence[str], corpora: Sequence[CorpusFile]) -> Mapping[str, CorpusFile]:
    """Return the corpus of each method that can start with one.

    Raises:
        UsageError: two corpora are of the same kind, or no method can start with one of them.
    """
    by_kind = {corpus.kind: corpus for corpus in corpora}
    if len(by_kind) < len(corpora):
        raise UsageError(
            "two corpora are of the same kind, but a method starts with one. Build one from all the texts."
        )
    kinds = {name: None if name.startswith(PREFIX) else find_method(name).corpus for name in methods}
    for corpus in corpora:
        if corpus.kind not in kinds.values():
            raise UsageError(
                f"{corpus.path} holds a memory of kind '{corpus.kind}', which none of {', '.join(methods)} can start "
                "with. Leave it out, or name a method that takes it."
            )
    return {name: by_kind[kind] for name, kind in kinds.items() if kind in by_kind}


def assign_bases(methods: Sequence[str], paths: Sequence[Path], tokenizer: Any = None) -> dict[str, tuple[Path, ...]]:
    """Return the frozen bases of each method that takes any.

    Args:
        methods: the methods to replay.
        paths: paths of the bases, which must have the traces' tokenizer.
        tokenizer: tokenizer of the traces; None if they are token ids.

    Raises:
        FileError, CorruptMemoryError, ForeignMemoryError: a base cannot be read, or is of another tokenizer.
        UsageError: no method takes one, or it is unknown whether they match the traces.
    """
    taking = [name for name in methods if not name.startswith(PREFIX) and find_method(name).takes_bases]
    if paths and not taking:
        raise UsageError(f"--base would be ignored: none of {', '.join(methods)} takes one. Add the method mix.")
    for path in paths:
        held = read_base_header(path).tokenizer
        if _fingerprint(path, held, tokenizer) != held:
            raise ForeignMemoryError(f"{path} was made with another tokenizer than the one that is named.")
    return dict.fromkeys(taking, tuple(paths))


def _fingerprint(path: Path, held: str, tokenizer: Any) -> str:
    """Return the fingerprint of the traces' tokenizer, or the file's own, `held`, if it depends on ids alone."""
    if tokenizer is not None:
        return tokenizer_fingerprint(tokenizer, len(tokenizer))
    if held and not held.startswith("ids-"):
        raise UsageError(
            f"{path} was made with a tokenizer (fingerprint {held}), and whether the traces' token ids are of the same "
            "tokenizer is not known. Name the traces' tokenizer by --tokenizer."
        )
    return held
