"""`speculant corpus`: builds a table or a suffix array from texts, for a drafter to begin with."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from speculant.cli.documents import Document, read_documents
from speculant.cli.options import Subparsers, quieten
from speculant.cli.output import check_writable
from speculant.core.errors import FileError, ModelNotFoundError, UsageError

if TYPE_CHECKING:
    from speculant.core.drafter import Drafter

DESCRIPTION = """\
Learn texts as prompts (for the method mix), count their tri-grams (for aded), or sort their suffixes (for rest), and
write what comes of it as a memory file for --memory. Text files may hold several documents, divided by
lines that hold only <|endoftext|>. Rows of .jsonl files are {"text": ...}, {"messages": [{"content": ...}]}, or token
ids: {"ids": [...]} or {"prompt_ids": [...], "output_ids": [...]}."""

BATCH = 1 << 20
SHOWN = 20


class Builder(Protocol):
    """Takes the documents of a corpus."""

    tokens: int

    def add(self, ids: Any) -> None:
        """Take a document of ids, Int[T]."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser("corpus", help="build a memory from texts", description="Work on corpora.")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    build = actions.add_parser("build", help="build a memory from texts", description=DESCRIPTION)
    build.add_argument("inputs", nargs="+", metavar="FILE", help="text files and .jsonl files")
    build.add_argument("-o", "--output", required=True, metavar="FILE", help="the memory file to write")
    build.add_argument(
        "--kind",
        choices=["mix", "trigram", "suffix"],
        default="mix",
        help="mix, for the method of that name, is the default; trigram and suffix, for aded and rest",
    )
    tokenizer = build.add_mutually_exclusive_group()
    tokenizer.add_argument(
        "--model", metavar="PATH|ID", help="the model it is for; only its config and tokenizer are read"
    )
    tokenizer.add_argument("--tokenizer", metavar="PATH|ID", help="the tokenizer, where there is no model")
    build.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, write, and say what came of it."""
    start = time.perf_counter()
    check_writable(args.output)
    paths = [Path(path) for path in args.inputs]
    size = sum(file_size(path) for path in paths)
    quieten()
    tokenizer, vocabulary = load_vocabulary(args)

    from tqdm import tqdm

    rejected = Rejected()
    with tqdm(total=size, unit="B", unit_scale=True, disable=not sys.stderr.isatty(), leave=False) as bar:

        def read(builder: Builder) -> None:
            for path in paths:
                documents = read_documents(path, vocabulary=vocabulary, advance=bar.update, reject=rejected)
                feed(builder, documents, tokenizer)

        builders = {"trigram": build_table, "mix": build_contexts, "suffix": build_suffixes}
        facts = builders[args.kind](read, Path(args.output), tokenizer, vocabulary)
    for fact in facts:
        print(fact)
    print(f"seconds     {time.perf_counter() - start:.1f}")
    if rejected.count:
        print(f"left out    {rejected.count} rows that could not be used")
    return 0


def build_table(read: Callable[[Builder], None], path: Path, tokenizer: Any, vocabulary: int) -> list[str]:
    """Count tri-grams, write their table, and return what to say of it.

    Raises:
        UsageError: the texts hold none.
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


class Prompts:
    """Has a drafter learn documents as if they were prompts."""

    def __init__(self, drafter: Drafter) -> None:
        self.tokens = 0
        self._drafter = drafter

    def add(self, ids: Any) -> None:
        """Learn a document of ids, Int[T]."""
        import numpy as np

        from speculant.core.drafter import Start

        self.tokens += len(ids)
        self._drafter.open(Start(prompt=np.asarray(ids, np.int32))).close()


def build_contexts(read: Callable[[Builder], None], path: Path, tokenizer: Any, vocabulary: int) -> list[str]:
    """Learn the contexts that `mix` looks up, write them, and return what to say of it.

    Raises:
        UsageError: the texts hold none.
        FileError: the memory cannot be written.
    """
    from speculant.drafters.mix.drafter import MixDrafter
    from speculant.memory.fingerprint import tokenizer_fingerprint

    drafter = MixDrafter(vocabulary=vocabulary, tokenizer=tokenizer_fingerprint(tokenizer, vocabulary))
    prompts = Prompts(drafter)
    read(prompts)
    if not prompts.tokens:
        raise UsageError("the texts are empty. Name files with more text in them.")
    drafter.save(path)
    return [f"tokens      {prompts.tokens}", f"bytes       {path.stat().st_size}"]


def build_suffixes(read: Callable[[Builder], None], path: Path, tokenizer: Any, vocabulary: int) -> list[str]:
    """Sort suffixes, write them, and return what to say of them; sorted blocks wait in a folder beside the file.

    Raises:
        UsageError: the texts hold none.
        FileError: the disk is full.
    """
    from speculant.drafters.suffix.array import SuffixArrayBuilder
    from speculant.drafters.suffix.rest import save_corpus
    from speculant.memory.fingerprint import tokenizer_fingerprint

    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            builder = SuffixArrayBuilder(vocabulary, Path(folder))
            read(builder)
            if builder.tokens < 3:
                raise UsageError("the texts are empty. Name files with more text in them.")
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


class Rejected:
    """Prints the first rows that could not be used and counts them all."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message: str) -> None:
        """Take a row's message."""
        from tqdm import tqdm

        self.count += 1
        if self.count <= SHOWN:
            tqdm.write(f"warning: {message}", file=sys.stderr)
        elif self.count == SHOWN + 1:
            tqdm.write("warning: there are more such rows; they are counted only.", file=sys.stderr)


def load_vocabulary(args: argparse.Namespace) -> tuple[Any, int]:
    """Return the tokenizer and the number of token ids that the table must have room for.

    Raises:
        ModelNotFoundError, TokenizerError: there is no such model or tokenizer.
    """
    from speculant.api.loading import bundled_model, load_tokenizer

    if args.tokenizer is not None:
        tokenizer = load_tokenizer(args.tokenizer)
        return tokenizer, len(tokenizer)
    from transformers import AutoConfig

    source = args.model or str(bundled_model())
    tokenizer = load_tokenizer(source)
    try:
        vocabulary: int = AutoConfig.from_pretrained(source).get_text_config(decoder=True).vocab_size
    except (OSError, ValueError, AttributeError) as error:
        raise ModelNotFoundError(
            f"{source} has a tokenizer, but no config that names a vocabulary. Name it by --tokenizer instead."
        ) from error
    return tokenizer, vocabulary


def feed(builder: Builder, documents: Iterable[Document], tokenizer: Any) -> None:
    """Add documents to a builder; texts are tokenised as prompts are, many at a time."""
    for batch in batches(documents):
        texts = [document for document in batch if isinstance(document, str)]
        for ids in tokenizer(texts)["input_ids"] if texts else []:
            builder.add(ids)
        for document in batch:
            if not isinstance(document, str):
                builder.add(document)


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Group documents to about a megabyte."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def file_size(path: Path) -> int:
    """Return a file's size.

    Raises:
        FileError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.seek(0, 2)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
