"""Memory files that methods begin a replay with: which file suits which method, and whether the ids mean the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from speculant.bench.systems.peers import PREFIX
from speculant.core.errors import UsageError
from speculant.memory.file import read_header
from speculant.memory.fingerprint import tokenizer_fingerprint
from speculant.registry import find_method

FILE_KINDS: Mapping[str, str] = MappingProxyType({"trigram": "trigram", "suffix-array": "suffix"})  # as built


@dataclass(frozen=True, slots=True)
class Corpus:
    """A memory file, the kind of corpus it is, and the fingerprint that a drafter needs to load it."""

    path: Path
    kind: str
    tokenizer: str


def read_corpus(path: Path, tokenizer: Any = None) -> Corpus:
    """Look into a corpus file.

    Args:
        path: the file.
        tokenizer: of the traces; None if they are read as ids.

    Raises:
        FileError, CorruptMemoryError: it cannot be read.
        UsageError: it belongs to a tokenizer, and whether that is the traces' own is not known.
    """
    header, _ = read_header(path)
    fingerprint: str = header["tokenizer"]
    if tokenizer is not None:
        fingerprint = tokenizer_fingerprint(tokenizer, len(tokenizer))
    elif fingerprint and not fingerprint.startswith("ids-"):
        raise UsageError(
            f"{path} was made with a tokenizer (fingerprint {fingerprint}), and ids alone do not tell whether the "
            "traces were too. Name the traces' tokenizer by --tokenizer."
        )
    return Corpus(path, FILE_KINDS.get(header["kind"], header["kind"]), fingerprint)


def assign(methods: Sequence[str], corpora: Sequence[Corpus]) -> Mapping[str, Corpus]:
    """Return, for each method that takes one, the corpus it begins with.

    Raises:
        UsageError: two corpora are of one kind, or no method takes a corpus.
    """
    by_kind = {corpus.kind: corpus for corpus in corpora}
    if len(by_kind) < len(corpora):
        raise UsageError("two corpora are of the same kind; a method begins with one. Build one of all the texts.")
    kinds = {name: None if name.startswith(PREFIX) else find_method(name).corpus for name in methods}
    for corpus in corpora:
        if corpus.kind not in kinds.values():
            raise UsageError(
                f"{corpus.path} holds a memory of kind '{corpus.kind}', which none of {', '.join(methods)} can begin "
                "with. Leave it out, or name a method that takes it."
            )
    return {name: by_kind[kind] for name, kind in kinds.items() if kind in by_kind}
