"""The history of past requests: a bounded log of token ids with a search index, in two generations.

Documents are added to the young generation. When that reaches half of the byte limit, including its index, it becomes
the old generation, and the previous old one is dropped. Memory stays bounded without sweeps, and the oldest documents
go first. A memory file stores only the log; loading it rebuilds the index.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Drafter, Persistent
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.tree import Int32
from speculant.memory.file import read_memory, write_memory

END = -1  # follows every document in the log
MAX_VOCABULARY = 1 << 24
_PIECE = 256


class Index(Protocol):
    """A log of documents and its search index, within a byte limit."""

    @property
    def nbytes(self) -> int:
        """Size of log and index in bytes."""

    @property
    def text(self) -> Int32:
        """The stored documents, each followed by END."""

    def extend(self, tokens: Int32) -> int:
        """Extend the open document; return how many tokens were added, fewer if the limit is reached."""

    def finish(self) -> None:
        """End the open document."""

    def fresh(self: AnyIndex) -> AnyIndex:
        """Return an empty index with all memory up to its limit allocated, in the same proportions as this one."""


AnyIndex = TypeVar("AnyIndex", bound=Index)


class PastTexts(Generic[AnyIndex]):
    """Two generations of documents. Not safe to share between threads without a lock.

    Attributes:
        young: index that documents are added to.
        old: previous young index.
        limit: maximum bytes for both together.
    """

    def __init__(self, make: Callable[[int], AnyIndex], *, limit: int) -> None:
        """Create an empty history.

        Args:
            make: returns an empty index of at most the given number of bytes.
            limit: maximum bytes for the history.
        """
        self.limit = limit
        self.young, self.old = make(limit // 2), make(0)

    @property
    def nbytes(self) -> int:
        """Current size in bytes."""
        return self.young.nbytes + self.old.nbytes

    @property
    def text(self) -> Int32:
        """The stored documents, oldest first, each followed by END."""
        return np.concatenate([self.old.text, self.young.text])

    def learn(self, document: Int32) -> None:
        """Learn a whole document, Int32[T]."""
        self.extend(document)
        self.finish()

    def extend(self, tokens: Int32) -> None:
        """Extend the open document; if young is full, it becomes the old generation and a new one takes the rest."""
        while len(tokens):
            tokens = tokens[self.young.extend(tokens) :]
            if len(tokens):
                self.young.finish()
                if not len(self.young.text):
                    return
                self.old, self.young = self.young, self.young.fresh()  # growing would need memory for a copy

    def finish(self) -> None:
        """End the open document."""
        self.young.finish()


class Learning:
    """Serialises learning, and lets other requests draft while a long document is learned.

    Attributes:
        lock: must be held while the history is read or replaced.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._turn = threading.Lock()

    def learn(self, history: PastTexts[AnyIndex], document: Int32) -> None:
        """Learn a document Int32[T], holding the lock for one piece at a time."""
        with self._turn:
            for at in range(0, len(document), _PIECE):
                with self.lock:
                    history.extend(document[at : at + _PIECE])
            with self.lock:
                history.finish()


class HistoryDrafter(Drafter, Persistent, Generic[AnyIndex]):
    """Base class of drafters whose memory is a history, shared by all requests of a process.

    Attributes:
        kind: kind of their memory files.
    """

    kind: ClassVar[str]

    def __init__(self, *, vocabulary: int, tokenizer: str = "", memory_limit: int = MEMORY_LIMIT) -> None:
        """Start with an empty history.

        Args:
            vocabulary: V, the number of token ids.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: maximum bytes for past text and its index; a request's own index is extra.

        Raises:
            UnsupportedError: the vocabulary has more ids than an index can hold.
        """
        check_vocabulary(vocabulary)
        self._tokenizer = tokenizer
        self._limit = memory_limit
        self._learning = Learning()
        self._history = self._empty(memory_limit)

    def _empty(self, limit: int) -> PastTexts[AnyIndex]:
        """Return an empty history."""
        raise NotImplementedError

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs this drafter needs: none."""
        return NO_OUTPUTS

    @property
    def memory_bytes(self) -> int:
        """Current size of the memory in bytes."""
        return self._history.nbytes

    @property
    def tokens(self) -> int:
        """Number of tokens in the stored documents."""
        return int(np.count_nonzero(self._history.text != END))

    def learn(self, document: Int32) -> None:
        """Learn a document Int32[T]."""
        self._learning.learn(self._history, document)

    def save(self, path: Path) -> None:
        """Write the documents of the history.

        Raises:
            FileError: the file cannot be written; an existing file is left unchanged.
        """
        with self._learning.lock:
            write_memory(path, kind=self.kind, tokenizer=self._tokenizer, arrays={"text": self._history.text}, facts={})

    def load(self, path: Path) -> None:
        """Replace the history by the file's documents; if they exceed the limit, the latest are kept.

        Raises:
            FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
        """
        arrays, _ = read_memory(path, kind=self.kind, tokenizer=self._tokenizer)
        history = self._empty(self._limit)
        for document in documents_of(arrays["text"]):
            history.learn(document)
        with self._learning.lock:
            self._history = history


def documents_of(text: Int32) -> Iterator[Int32]:
    """Yield the documents of a log, each of which is followed by END."""
    start = 0
    for end in np.flatnonzero(text == END).tolist():
        yield text[start:end]
        start = end + 1


def check_vocabulary(vocabulary: int) -> None:
    """Check that an index can hold all token ids.

    Raises:
        UnsupportedError: the vocabulary is too large.
    """
    if vocabulary > MAX_VOCABULARY:
        raise UnsupportedError(f"this memory holds token ids below {MAX_VOCABULARY}, not {vocabulary}.")
