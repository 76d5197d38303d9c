"""The outputs of `speculant corpus build`: tri-gram tables, contexts, suffix arrays and automata, ranked ids."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from speculant.core.errors import FileError, UsageError
from speculant.corpus.rows import Document, batches
from speculant.memory.aside import SHARED, write_aside

if TYPE_CHECKING:
    from speculant.core.drafter import Drafter
    from speculant.drafters.suffix.sam import SamDrafter

RANKS = (1024, 4096, 8192, 16384, 32768, 65536)  # the share of tokens covered by these ranks is printed


class Builder(Protocol):
    """Receives the documents of a corpus."""

    tokens: int

    def add(self, ids: Any) -> None:
        """Add a document of ids, Int[T]."""


def build_table(read: Callable[[Builder], None], path: Path, tokenizer: Any, vocabulary: int) -> list[str]:
    """Count tri-grams, write their table, and return the lines to print about it.

    Raises:
        UsageError: the texts have none.
        FileError: the table cannot be written.
    """
    from speculant.drafters.aded.corpus import TrigramCounter, count_trigrams
    from speculant.drafters.aded.drafter import save_table
    from speculant.memory.fingerprint import tokenizer_fingerprint

    counter = TrigramCounter(vocabulary)
    read(counter)
    if counter.tokens < 3:
        raise UsageError("the texts hold no tri-grams. Name files with more text in them.")
    table = counter.table()
    save_table(path, table, tokenizer=tokenizer_fingerprint(tokenizer, vocabulary), vocabulary=vocabulary)
    trigrams, written = count_trigrams(table), path.stat().st_size
    facts = [f"tokens      {counter.tokens}", f"tri-grams   {trigrams}"]
    if counter.floor:
        facts.append(f"            those seen up to {counter.floor} times were dropped where room was short")
    return [
        *facts,
        f"bytes       {written}: {written / max(1, trigrams):.2f} per tri-gram, bi-grams and index included",
    ]


class DocumentLearner:
    """Teaches documents to a drafter as finished texts."""

    def __init__(self, drafter: SamDrafter) -> None:
        self.tokens = 0
        self._drafter = drafter

    def add(self, ids: Any) -> None:
        """Learn a document of ids, Int[T]."""
        import numpy as np

        self.tokens += len(ids)
        self._drafter.learn(np.asarray(ids, np.int32))


class PromptLearner:
    """Teaches documents to a drafter as prompts."""

    def __init__(self, drafter: Drafter) -> None:
        self.tokens = 0
        self._drafter = drafter

    def add(self, ids: Any) -> None:
        """Learn a document of ids, Int[T]."""
        import numpy as np

        from speculant.core.drafter import SessionRequest

        self.tokens += len(ids)
        self._drafter.open(SessionRequest(prompt=np.asarray(ids, np.int32))).close()


def build_contexts(read: Callable[[Builder], None], path: Path, tokenizer: Any, vocabulary: int) -> list[str]:
    """Learn the contexts that `mix` looks up, write them, and return the lines to print about them.

    Raises:
        UsageError: the texts have none.
        FileError: the memory cannot be written.
    """
    from speculant.drafters.mix.drafter import MixDrafter
    from speculant.memory.fingerprint import tokenizer_fingerprint

    drafter = MixDrafter(vocabulary=vocabulary, tokenizer=tokenizer_fingerprint(tokenizer, vocabulary))
    prompts = PromptLearner(drafter)
    read(prompts)
    _check_length(prompts.tokens)
    drafter.save(path)
    return [f"tokens      {prompts.tokens}", f"bytes       {path.stat().st_size}"]


def build_automaton(read: Callable[[Builder], None], path: Path, tokenizer: Any, vocabulary: int) -> list[str]:
    """Learn documents into the suffix automata of `sam`, write them, and return the lines to print about them.

    If the texts exceed the memory limit, the latest are kept.

    Raises:
        UsageError: the texts have none.
        FileError: the memory cannot be written.
    """
    from speculant.drafters.suffix.sam import SamDrafter
    from speculant.memory.fingerprint import tokenizer_fingerprint

    drafter = SamDrafter(vocabulary=vocabulary, tokenizer=tokenizer_fingerprint(tokenizer, vocabulary))
    learned = DocumentLearner(drafter)
    read(learned)
    _check_length(learned.tokens)
    drafter.save(path)
    kept = drafter.tokens
    facts = [f"tokens      {learned.tokens}", f"bytes       {path.stat().st_size}"]
    if kept < learned.tokens:
        facts.insert(1, f"            of which the latest {kept} were kept, as many as a memory may hold")
    return [*facts, f"in memory   {drafter.memory_bytes} bytes with the automata, which are built when it is loaded"]


def build_suffixes(read: Callable[[Builder], None], path: Path, tokenizer: Any, vocabulary: int) -> list[str]:
    """Sort suffixes, write them, and return the lines to print; sorted blocks are kept in a folder next to the file.

    Raises:
        UsageError: the texts have fewer than three.
        FileError: the disk is full.
    """
    from speculant.drafters.suffix.array import SuffixArrayBuilder
    from speculant.drafters.suffix.rest import save_corpus
    from speculant.memory.fingerprint import tokenizer_fingerprint

    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            builder = SuffixArrayBuilder(vocabulary, Path(folder))
            read(builder)
            _check_length(builder.tokens, minimum=3)
            blocks = builder.blocks()
            save_corpus(path, blocks, tokenizer=tokenizer_fingerprint(tokenizer, vocabulary))
    except OSError as error:
        raise FileError(f"cannot write beside {path}: {error.strerror}. Name a folder with more room.") from error
    written = path.stat().st_size
    return [
        f"tokens      {builder.tokens}",
        f"blocks      {len(blocks)}",
        f"bytes       {written}: {written / builder.tokens:.2f} per token",
    ]


class TokenCounter:
    """Counts the tokens of documents.

    Attributes:
        counts: Int64[V], counts by token id.
    """

    def __init__(self, vocabulary: int) -> None:
        import numpy as np

        self.tokens, self.counts = 0, np.zeros(vocabulary, np.int64)

    def add(self, ids: Any) -> None:
        """Count a document of ids, Int[T]."""
        import numpy as np

        self.tokens += len(ids)
        self.counts += np.bincount(np.asarray(ids, np.int64), minlength=len(self.counts))


def build_ranking(read: Callable[[Builder], None], path: Path, tokenizer: Any, vocabulary: int) -> list[str]:
    """Write the token ids of texts as a JSON list, most frequent first, and return the lines to print about it.

    The end-of-text token comes first: it occurs in no document, but ends every answer.

    Raises:
        UsageError: the texts are empty.
        FileError: the list cannot be written.
    """
    counter = TokenCounter(vocabulary)
    read(counter)
    _check_length(counter.tokens)
    end = getattr(tokenizer, "eos_token_id", None)
    ranked = [int(token) for token in (-counter.counts).argsort(kind="stable") if counter.counts[token]]
    ids = ranked if end is None else [int(end), *(token for token in ranked if token != end)]
    try:
        with write_aside(path, mode=SHARED) as file:
            file.write(json.dumps(ids).encode())
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}.") from error
    covered = counter.counts[ids].cumsum() / counter.tokens
    shares = [f"{covered[size - 1]:.2%} by {size}" for size in RANKS if size < len(ids)]
    return [
        f"tokens      {counter.tokens}",
        f"ids         {len(ids)} of {vocabulary}",
        *([f"covered     {', '.join(shares)}"] if shares else []),
    ]


def _check_length(tokens: int, *, minimum: int = 1) -> None:
    if tokens < minimum:
        found = f"have fewer than {minimum} tokens" if tokens else "are empty"
        raise UsageError(f"the texts {found}. Name files with more text in them.")


def feed(builder: Builder, documents: Iterable[Document], tokenizer: Any) -> None:
    """Add documents to a builder; texts are tokenised like prompts, many at a time."""
    for batch in batches(documents, len):
        texts = [document for document in batch if isinstance(document, str)]
        for ids in tokenizer(texts)["input_ids"] if texts else []:
            builder.add(ids)
        for document in batch:
            if not isinstance(document, str):
                builder.add(document)
