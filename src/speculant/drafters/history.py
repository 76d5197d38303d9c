"""What drafters remember of past requests: a bounded log of token ids under an index that makes it searchable.

Documents are learned into the young generation. When that has grown to half of the byte limit, index included,
it becomes the old one, and the former old one is dropped: bounded, no sweeps, and recency decides what stays.
A memory file holds the log alone; loading learns it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from speculant.drafters.memory_file import read_memory, write_memory
from speculant.errors import UnsupportedError
from speculant.tree import Int32

END = -1  # stands in the log after every document
MAX_VOCABULARY = 1 << 24
DEFAULT_LIMIT = 256 << 20
_PIECE = 256


class Index(Protocol):
    """A log of documents and what makes it searchable, within the bytes it was made for."""

    @property
    def nbytes(self) -> int:
        """Bytes of log and index."""

    @property
    def text(self) -> Int32:
        """The documents held, END after each."""

    def extend(self, tokens: Int32) -> int:
        """Go on with the open document; return how many tokens were taken, fewer if the limit is reached."""

    def finish(self) -> None:
        """End the open document."""


AnyIndex = TypeVar("AnyIndex", bound=Index)


class History(Generic[AnyIndex]):
    """The two generations. Not safe to share between threads without a lock.

    Attributes:
        young: what is learned into.
        old: what was young before.
        limit: bytes that both may take together.
    """

    def __init__(self, make: Callable[[int], AnyIndex], *, limit: int) -> None:
        """Start empty.

        Args:
            make: builds an empty index of at most so many bytes.
            limit: bytes that the history may take.
        """
        self._make = make
        self.limit = limit
        self.young, self.old = make(limit // 2), make(0)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.young.nbytes + self.old.nbytes

    @property
    def text(self) -> Int32:
        """The documents held, oldest first, END after each."""
        return np.concatenate([self.old.text, self.young.text])

    def learn(self, document: Int32) -> None:
        """Learn a whole document, Int32[T]."""
        self.extend(document)
        self.finish()

    def extend(self, tokens: Int32) -> None:
        """Go on with the open document; where it does not fit, what came before belongs to the old generation."""
        while len(tokens):
            tokens = tokens[self.young.extend(tokens) :]
            if len(tokens):
                self.young.finish()
                if not len(self.young.text):
                    return
                self.old, self.young = self.young, self._make(self.limit // 2)

    def finish(self) -> None:
        """End the open document."""
        self.young.finish()


class Learning:
    """Lets requests learn one after the other, and others draft meanwhile.

    Attributes:
        lock: what whoever reads or replaces the history must hold.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._turn = threading.Lock()

    def learn(self, history: History[AnyIndex], document: Int32) -> None:
        """Learn a document Int32[T], holding the lock for a piece at a time."""
        with self._turn:
            for at in range(0, len(document), _PIECE):
                with self.lock:
                    history.extend(document[at : at + _PIECE])
            with self.lock:
                history.finish()


def documents_of(text: Int32) -> Iterator[Int32]:
    """Yield the documents of a log in which END stands after each."""
    start = 0
    for end in np.flatnonzero(text == END).tolist():
        yield text[start:end]
        start = end + 1


def save_history(path: Path, history: History[AnyIndex], *, kind: str, tokenizer: str) -> None:
    """Write the log.

    Raises:
        FileError: the file cannot be written; an older one is unchanged.
    """
    write_memory(path, kind=kind, tokenizer=tokenizer, arrays={"text": history.text}, facts={})


def load_history(path: Path, history: History[AnyIndex], *, kind: str, tokenizer: str) -> None:
    """Learn the log of a file; where it exceeds the limit, the latest documents stay.

    Raises:
        FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
    """
    arrays, _ = read_memory(path, kind=kind, tokenizer=tokenizer)
    for document in documents_of(arrays["text"]):
        history.learn(document)


def check_vocabulary(vocabulary: int) -> None:
    """Refuse more token ids than an index can tell apart.

    Raises:
        UnsupportedError: the vocabulary is larger.
    """
    if vocabulary > MAX_VOCABULARY:
        raise UnsupportedError(f"this memory holds token ids below {MAX_VOCABULARY}, not {vocabulary}.")
