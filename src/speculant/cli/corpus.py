"""`speculant corpus`: builds a table from texts, for a drafter to begin with."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.documents import Document, read_documents
from speculant.cli.options import Subparsers, quieten
from speculant.cli.output import check_writable
from speculant.errors import FileError, ModelNotFoundError, UsageError

if TYPE_CHECKING:
    from speculant.drafters.corpus import TrigramCounter

DESCRIPTION = """\
Count the tri-grams of texts and write them as a memory file for --memory. Text files may hold several
documents, divided by lines that hold only <|endoftext|>. Rows of .jsonl files are {"text": ...},
{"messages": [{"content": ...}]}, or token ids: {"ids": [...]} or {"prompt_ids": [...], "output_ids": [...]}."""

BATCH = 1 << 20
SHOWN = 20


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser("corpus", help="build a table from texts", description="Work on corpora.")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    build = actions.add_parser("build", help="build a table from texts", description=DESCRIPTION)
    build.add_argument("inputs", nargs="+", metavar="FILE", help="text files and .jsonl files")
    build.add_argument("-o", "--output", required=True, metavar="FILE", help="the memory file to write")
    build.add_argument("--kind", choices=["trigram"], default="trigram", help="default: trigram, for the method aded")
    tokenizer = build.add_mutually_exclusive_group()
    tokenizer.add_argument(
        "--model", metavar="PATH|ID", help="the model it is for; only its config and tokenizer are read"
    )
    tokenizer.add_argument("--tokenizer", metavar="PATH|ID", help="the tokenizer, where there is no model")
    build.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Count, write, and say what came of it."""
    start = time.perf_counter()
    check_writable(args.output)
    paths = [Path(path) for path in args.inputs]
    size = sum(file_size(path) for path in paths)
    quieten()
    tokenizer, vocabulary = load_vocabulary(args)

    from tqdm import tqdm

    from speculant.drafters.aded import save_table
    from speculant.drafters.corpus import TrigramCounter, count_trigrams
    from speculant.fingerprint import tokenizer_fingerprint

    rejected = Rejected()
    counter = TrigramCounter(vocabulary)
    with tqdm(total=size, unit="B", unit_scale=True, disable=not sys.stderr.isatty(), leave=False) as bar:
        for path in paths:
            documents = read_documents(path, vocabulary=vocabulary, advance=bar.update, reject=rejected)
            count(counter, documents, tokenizer)
    if counter.tokens < 3:
        raise UsageError("the texts hold no tri-grams. Name files with more text in them.")
    table = counter.table()
    save_table(Path(args.output), table, tokenizer=tokenizer_fingerprint(tokenizer, vocabulary), vocabulary=vocabulary)
    say_what_came(counter, count_trigrams(table), Path(args.output).stat().st_size, time.perf_counter() - start)
    if rejected.count:
        print(f"left out    {rejected.count} rows that could not be used")
    return 0


def say_what_came(counter: TrigramCounter, trigrams: int, written: int, seconds: float) -> None:
    """Print the size of what was read and of what was written."""
    print(f"tokens      {counter.tokens}")
    print(f"tri-grams   {trigrams}")
    if counter.floor:
        print(f"            those seen up to {counter.floor} times were dropped where room was short")
    print(f"bytes       {written}: {written / max(1, trigrams):.2f} per tri-gram, bi-grams and index included")
    print(f"seconds     {seconds:.1f}")


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
    from speculant.loading import bundled_model, load_tokenizer

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


def count(counter: TrigramCounter, documents: Iterable[Document], tokenizer: Any) -> None:
    """Add documents to a counter; texts are tokenised as prompts are, many at a time."""
    for batch in batches(documents):
        texts = [document for document in batch if isinstance(document, str)]
        for ids in tokenizer(texts)["input_ids"] if texts else []:
            counter.add(ids)
        for document in batch:
            if not isinstance(document, str):
                counter.add(document)


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
