"""`speculant corpus`: builds memories and frozen bases from texts, as a starting point for drafters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speculant.cli import terminal
from speculant.cli.base_facts import built_lines
from speculant.cli.binding import Take, bind, parse
from speculant.cli.commands import Command, Group
from speculant.cli.terminal import importing, progress, say, waiting
from speculant.core.errors import ModelNotFoundError, UsageError
from speculant.corpus.rejected import Rejected
from speculant.options import kinds
from speculant.options.model import ModelOptions

if TYPE_CHECKING:
    from speculant.corpus.builders import Builder
    from speculant.corpus.sources import TextSource

HELP = """\
Build a memory file from texts, for --memory and --corpus, or a frozen base, for --base.

--kind selects what is built: a memory of mix that has read the texts, trigram counts (aded), sorted suffixes (rest), a
suffix automaton (sam), a read-only base of mix, or token ids ranked by frequency (for --set vocabulary=FILE of heads).

Sources are text files, folders of them (hidden files are skipped), and hf:ORG/NAME[:SPLIT] for a dataset of the
Hugging Face hub, which is streamed. Text files may contain several documents, separated by lines with only
<|endoftext|>, in .txt files by any <|endoftext|>. Rows of .jsonl files and of lists in .json files are {"text": ...},
{"messages": [{"role", "content"}]}, {"prompt", "output"}, or token ids: {"ids": [...]} or {"prompt_ids": [...],
"output_ids": [...]}. All files may be compressed (.gz). Binary and empty files are skipped with a warning.

For bases, SOURCE@2 counts every text of a source twice, conversations are learned in the tokenizer's chat template, and
the same command continues an interrupted build."""

EXAMPLES = """
speculant corpus build --model your/model -o code.speculant src/*.py
speculant corpus build --model your/model --kind suffix -o log.mem *.jsonl
speculant corpus build --model your/model --kind mix-base -o our.base \\
    chats.jsonl.gz@2 docs/ --exclude test.jsonl --budget 64MB
speculant generate "def main" --model your/model --memory code.speculant
speculant corpus build --model your/model --kind vocabulary -o ids.json *.md
speculant generate "Why?" --model your/model --set vocabulary=ids.json
"""

BUDGET = 64_000_000
MIN_BUDGET = 64_000


class BuildCommand(Command):
    """The command, with --exclude taking all files up to the next option."""

    lists = ("--exclude",)


class CorpusKind(str, Enum):
    """The kind of file to build."""

    MIX = "mix"
    TRIGRAM = "trigram"
    SUFFIX = "suffix"
    SAM = "sam"
    MIX_BASE = "mix-base"
    VOCABULARY = "vocabulary"


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(cls=Group, help="Build memories and bases from texts.", epilog=EXAMPLES, rich_markup_mode=None)
    group.callback()(lambda: None)  # keeps `build` a subcommand
    group.command(
        "build", cls=BuildCommand, help=HELP, short_help="build a memory or base from texts", epilog=EXAMPLES
    )(bind(build))
    app.add_typer(group, name="corpus")


def build(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="files, folders, hf:ORG/NAME[:SPLIT]; for bases also SOURCE@WEIGHT"),
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="memory file to write")],
    kind: Annotated[
        CorpusKind,
        typer.Option(
            "--kind",
            metavar="NAME",
            help="mix (default), trigram (aded), suffix (rest), sam; mix-base: a frozen base for mix; vocabulary: "
            "ranked token ids, for heads that draft only frequent tokens",
        ),
    ] = CorpusKind.MIX,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="PATH|ID", help="tokenizer, instead of --model")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing memory file")] = False,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            metavar="BYTES",
            parser=parse(kinds.size(min=MIN_BUDGET, example="64MB")),
            help="maximum size of the file, such as 256MB; default: 64MB",
            rich_help_panel="Bases",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="FILE ...",
            help="skip documents that share 13 consecutive tokens with these files of text or rows",
            rich_help_panel="Bases",
        ),
    ] = None,
    license_: Annotated[
        str | None,
        typer.Option(
            "--license", metavar="TEXT", help="license of the texts, recorded in the file", rich_help_panel="Bases"
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source", metavar="TEXT", help="origin of the texts, recorded in the file", rich_help_panel="Bases"
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="discard the work of an interrupted build", rich_help_panel="Bases")
    ] = False,
    *,
    named: Annotated[ModelOptions, Take(only=("model",), panel="Options")],
) -> int:
    """Read the sources, write the file, and report it."""
    from speculant.cli.files import check_memory_output
    from speculant.corpus.documents import why_no_text
    from speculant.corpus.sources import split_weight

    start, model = time.perf_counter(), named.model
    excluded = [Path(path) for path in exclude or ()]
    if kind is not CorpusKind.MIX_BASE:
        options = {"--budget": budget, "--exclude": exclude, "--license": license_, "--source": source}
        check_unused({**options, "--restart": restart or None}, kind)
    if (model is None) == (tokenizer is None):
        raise UsageError(
            "name the memory's model by --model, or its tokenizer by --tokenizer: a memory fits one tokenizer only. "
            "--model bundled is the story model included in the package."
        )
    check_tokenizer(model, tokenizer)
    rejected = Rejected(say)
    sources = [find(text, rejected) for text in inputs]
    for path in excluded:
        why_no_text(path)  # fails early if it cannot be read
    check_memory_output(output, [*(split_weight(text)[0] for text in inputs), *excluded], force=force)
    check_sources(sources, kind)
    loaded, vocabulary = load_vocabulary(model, tokenizer)
    if kind is CorpusKind.MIX_BASE:
        from speculant.corpus.base import build_base
        from speculant.corpus.base_plan import BaseSettings
        from speculant.memory.fingerprint import tokenizer_fingerprint

        settings = BaseSettings(
            tokenizer=tokenizer_fingerprint(loaded, vocabulary),
            template=getattr(loaded, "chat_template", None),
            vocabulary=vocabulary,
            budget=budget or BUDGET,
            exclude=tuple(excluded),
            license=license_,
            source=source,
        )
        built = build_base(
            Path(output), sources, loaded, settings, rejected=rejected, console=terminal, restart=restart
        )
        facts = built_lines(built)
    else:
        facts = build_memory(Path(output), sources, kind, loaded, vocabulary, rejected)
    for fact in facts:
        print(fact)
    print(f"seconds     {time.perf_counter() - start:.1f}")
    if rejected.count:
        print(f"left out    {rejected.count} files or rows that could not be used")
    for each in sources:
        if each.left_out:
            print(f"left out    of {each.name}: {', '.join(f'{n} {why}' for why, n in each.left_out.items())} files")
    return 0


def find(text: str, rejected: Rejected) -> TextSource:
    """Find a source; see `corpus.sources.find_source`."""
    from speculant.corpus.hub import PREFIX
    from speculant.corpus.sources import find_source

    with waiting(f"asking the hub for {text.removeprefix(PREFIX)}") if text.startswith(PREFIX) else nullcontext():
        return find_source(text, rejected)


def build_memory(
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
        return builders[kind](read, path, tokenizer, vocabulary)


def check_unused(options: Mapping[str, object], kind: CorpusKind) -> None:
    """Refuse options that only apply to bases.

    Raises:
        UsageError: such an option was given.
    """
    for option, value in options.items():
        if value is not None:
            raise UsageError(
                f"{option} is for frozen bases, not for memories of kind {kind.value}. Add --kind mix-base."
            )


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
