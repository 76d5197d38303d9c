"""What `speculant corpus build` and `speculant base learn` share: sources, vocabularies, and the writing of files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli import terminal
from speculant.cli.base_facts import built_lines
from speculant.cli.corpus_settings import BUDGET, BuiltFile, CorpusKind
from speculant.cli.terminal import importing, progress, waiting
from speculant.core.errors import ModelNotFoundError, UsageError

if TYPE_CHECKING:
    from speculant.corpus.builders import Builder
    from speculant.corpus.rejected import Rejected
    from speculant.corpus.sources import TextSource


def find(text: str, rejected: Rejected) -> TextSource:
    """Find a source; see `corpus.sources.find_source`."""
    from speculant.corpus.hub import PREFIX
    from speculant.corpus.sources import find_source

    with waiting(f"asking the hub for {text.removeprefix(PREFIX)}") if text.startswith(PREFIX) else nullcontext():
        return find_source(text, rejected)


def write_base(
    file: BuiltFile,
    sources: Sequence[TextSource],
    tokenizer: Any,
    vocabulary: int,
    rejected: Rejected,
    *,
    exclude: tuple[Path, ...] = (),
    source: str | None = None,
    restart: bool = False,
) -> list[str]:
    """Build a base and return the lines to print about it; see `corpus.base.build_base`.

    Raises:
        UsageError: the sources contain no text.
        FileError: one cannot be read, or the base cannot be written.
    """
    from speculant.corpus.base import build_base
    from speculant.corpus.base_plan import BaseSettings
    from speculant.memory.fingerprint import tokenizer_fingerprint

    settings = BaseSettings(
        tokenizer=tokenizer_fingerprint(tokenizer, vocabulary),
        template=getattr(tokenizer, "chat_template", None),
        vocabulary=vocabulary,
        budget=file.budget or BUDGET,
        exclude=exclude,
        license=file.license,
        source=source,
    )
    path = Path(file.output)
    built = build_base(path, sources, tokenizer, settings, rejected=rejected, console=terminal, restart=restart)
    return [*built_lines(built), *left_out_lines(sources, rejected)]


def write_memory(
    path: Path, sources: Sequence[TextSource], kind: CorpusKind, tokenizer: Any, vocabulary: int, rejected: Rejected
) -> list[str]:
    """Read the sources once, write a memory, and return the lines to print about it.

    Raises:
        UsageError: the sources contain no text.
        FileError: a source cannot be read, or the memory cannot be written.
    """
    from speculant.corpus.builders import (
        build_automaton,
        build_contexts,
        build_ranking,
        build_suffixes,
        build_table,
        feed,
    )
    from speculant.corpus.sources import read_source

    sizes = [source.size for source in sources]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    with progress("reading", total, "bytes") as advance:

        def read(builder: Builder) -> None:
            for source in sources:
                rows = read_source(source, vocabulary=vocabulary, advance=advance, reject=rejected)
                feed(builder, (document for _, row in rows for document in row.documents), tokenizer)

        builders = {CorpusKind.TRIGRAM: build_table, CorpusKind.MIX: build_contexts, CorpusKind.SUFFIX: build_suffixes}
        builders |= {CorpusKind.SAM: build_automaton, CorpusKind.VOCABULARY: build_ranking}
        facts = builders[kind](read, path, tokenizer, vocabulary)
    return [*facts, *left_out_lines(sources, rejected)]


def left_out_lines(sources: Sequence[TextSource], rejected: Rejected) -> list[str]:
    """Return the lines to print about what could not be used."""
    lines = [f"left out    {rejected.count} files or rows that could not be used"] if rejected.count else []
    return lines + [
        f"left out    of {each.name}: {', '.join(f'{n} {why}' for why, n in each.left_out.items())} files"
        for each in sources
        if each.left_out
    ]


def check_sources(sources: Sequence[TextSource], kind: CorpusKind) -> None:
    """Check that there are sources, and that weights are given for bases only.

    Raises:
        UsageError: there are none, or weights are given for another kind.
    """
    if not any(source.files or source.dataset for source in sources):
        raise UsageError("none of the files contains text. Name text files or .jsonl files.")
    for source in sources:
        if source.weight != 1 and kind is not CorpusKind.MIX_BASE:
            raise UsageError(
                f"{source.given} has a weight, which only bases know: a memory of kind {kind.value} counts what it "
                "reads. Leave the weight out, or add --kind mix-base."
            )


def check_tokenizer(model: str | None, tokenizer: str | None) -> None:
    """Check that a model or tokenizer exists, as far as its name tells, before anything is read.

    Raises:
        TokenizerError: it is a path, and nothing is there.
    """
    from speculant.api.loading import find_tokenizer

    find_tokenizer(model if tokenizer is None else tokenizer)


def load_vocabulary(model: str | None, tokenizer: str | None) -> tuple[Any, int]:
    """Load the tokenizer and the number of token ids for the memory.

    Args:
        model: a model, of which only config and tokenizer are read.
        tokenizer: a tokenizer, if there is no model.

    Raises:
        ModelNotFoundError, TokenizerError: there is no such model or tokenizer.
    """
    from speculant.api.loading import find_tokenizer, load_tokenizer
    from speculant.cli.loading import silence_loading

    source = find_tokenizer(model if tokenizer is None else tokenizer)
    if not Path(source).is_file():
        with importing("transformers"):
            silence_loading()
    with waiting(f"loading the tokenizer of {model or tokenizer}"):
        found = load_tokenizer(source)
    if tokenizer is not None:
        return found, len(found)
    from transformers import AutoConfig

    try:
        vocabulary: int = AutoConfig.from_pretrained(source).get_text_config(decoder=True).vocab_size
    except (OSError, ValueError, AttributeError) as error:
        raise ModelNotFoundError(
            f"{source} has a tokenizer, but no config with a vocabulary size. Name it by --tokenizer instead."
        ) from error
    return found, vocabulary
