"""`speculant corpus`: builds a table or a suffix array from texts, for a drafter to begin with."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from speculant.cli.commands import Command, Group
from speculant.cli.documents import Document, read_documents, why_no_text
from speculant.cli.options import ModelOption
from speculant.cli.terminal import progress, say
from speculant.core.errors import FileError, ModelNotFoundError, UsageError

if TYPE_CHECKING:
    from speculant.core.drafter import Drafter

HELP = """\
Build a memory file from texts, for --memory and --corpus.

Texts are learned as prompts (for the method mix), their tri-grams counted (for aded), or their suffixes sorted (for
rest). Text files may hold several documents, divided by lines that hold only <|endoftext|>. Rows of .jsonl files are
{"text": ...}, {"messages": [{"content": ...}]}, or token ids: {"ids": [...]} or {"prompt_ids": [...], "output_ids":
[...]}. Binary and empty files are left out with a warning."""

EXAMPLES = """
speculant corpus build --model your/model -o code.speculant src/*.py
speculant corpus build --model your/model --kind suffix -o log.mem *.jsonl
speculant generate "def main" --model your/model --memory code.speculant
"""

BATCH = 1 << 20
SHOWN = 20


class Builder(Protocol):
    """Takes the documents of a corpus."""

    tokens: int

    def add(self, ids: Any) -> None:
        """Take a document of ids, Int[T]."""


class Kind(str, Enum):
    """What is built."""

    MIX = "mix"
    TRIGRAM = "trigram"
    SUFFIX = "suffix"


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(cls=Group, help="Build memories from texts.", epilog=EXAMPLES, rich_markup_mode=None)
    group.callback()(lambda: None)  # keeps `build` a command of its own
    group.command("build", cls=Command, help=HELP, short_help="build a memory from texts", epilog=EXAMPLES)(build)
    app.add_typer(group, name="corpus")


def build(
    inputs: Annotated[list[str], typer.Argument(metavar="FILE", help="text files and .jsonl files")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="the memory file to write")],
    kind: Annotated[
        Kind,
        typer.Option("--kind", metavar="mix|trigram|suffix", help="for the methods mix (default), aded and rest"),
    ] = Kind.MIX,
    model: ModelOption = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="PATH|ID", help="the tokenizer, where there is no model")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing memory file")] = False,
) -> int:
    """Read, write, and report what was built."""
    from speculant.cli.files import check_memory_output

    start = time.perf_counter()
    if (model is None) == (tokenizer is None):
        raise UsageError(
            "name the model that the memory is for by --model, or its tokenizer by --tokenizer: a memory fits one "
            "tokenizer only. --model bundled is the story model that comes with the package."
        )
    paths = [Path(path) for path in inputs]
    sizes = {path: file_size(path) for path in paths}
    check_memory_output(output, inputs, force=force)
    rejected = Rejected()
    paths = [path for path in paths if not skipped(path, rejected)]
    if not paths:
        raise UsageError("none of the files holds text. Name text files or .jsonl files.")
    from speculant.cli.loading import quieten

    quieten()
    loaded, vocabulary = load_vocabulary(model, tokenizer)
    with progress("reading", sum(sizes[path] for path in paths), "bytes") as advance:

        def read(builder: Builder) -> None:
            for path in paths:
                documents = read_documents(path, vocabulary=vocabulary, advance=advance, reject=rejected)
                feed(builder, documents, loaded)

        builders = {Kind.TRIGRAM: build_table, Kind.MIX: build_contexts, Kind.SUFFIX: build_suffixes}
        facts = builders[kind](read, Path(output), loaded, vocabulary)
    for fact in facts:
        print(fact)
    print(f"seconds     {time.perf_counter() - start:.1f}")
    if rejected.count:
        print(f"left out    {rejected.count} files or rows that could not be used")
    return 0


def skipped(path: Path, reject: Callable[[str], object]) -> bool:
    """Return whether a file is left out, since it is empty or binary; `reject` is given the reason."""
    reason = why_no_text(path)
    if reason:
        reject(f"{path} {reason}; it is left out.")
    return bool(reason)


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
    """Prints what the first files and rows cannot be used for, and counts them all."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message: str) -> None:
        """Take a message."""
        self.count += 1
        if self.count <= SHOWN:
            say(f"warning: {message}")
        elif self.count == SHOWN + 1:
            say("warning: there are more of these; they are counted only.")


def load_vocabulary(model: str | None, tokenizer: str | None) -> tuple[Any, int]:
    """Return the tokenizer and the number of token ids that the memory must have room for.

    Args:
        model: only its config and tokenizer are read.
        tokenizer: where there is no model.

    Raises:
        ModelNotFoundError, TokenizerError: there is no such model or tokenizer.
    """
    from speculant.api.loading import bundled_model, load_tokenizer
    from speculant.cli.loading import model_source

    if tokenizer is not None:
        found = load_tokenizer(tokenizer)
        return found, len(found)
    from transformers import AutoConfig

    source = model_source(model) or str(bundled_model())
    found = load_tokenizer(source)
    try:
        vocabulary: int = AutoConfig.from_pretrained(source).get_text_config(decoder=True).vocab_size
    except (OSError, ValueError, AttributeError) as error:
        raise ModelNotFoundError(
            f"{source} has a tokenizer, but no config that names a vocabulary. Name it by --tokenizer instead."
        ) from error
    return found, vocabulary


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
