"""`speculant corpus`: builds memories and frozen bases from texts, as a starting point for drafters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from speculant.cli.binding import Take, bind, parse
from speculant.cli.commands import Command, Group
from speculant.cli.corpus_files import (
    BUDGET,
    MIN_BUDGET,
    CorpusKind,
    check_sources,
    check_tokenizer,
    find,
    load_vocabulary,
    write_base,
    write_memory,
)
from speculant.cli.terminal import say
from speculant.core.errors import UsageError
from speculant.corpus.rejected import Rejected
from speculant.options import kinds
from speculant.options.model import ModelOptions

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


class BuildCommand(Command):
    """The command, with --exclude taking all files up to the next option."""

    lists = ("--exclude",)


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
        refuse_unused({**options, "--restart": restart or None}, kind)
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
        facts = write_base(
            Path(output),
            sources,
            loaded,
            vocabulary,
            rejected,
            budget=budget or BUDGET,
            exclude=tuple(excluded),
            license_=license_,
            source=source,
            restart=restart,
        )
    else:
        facts = write_memory(Path(output), sources, kind, loaded, vocabulary, rejected)
    for fact in facts:
        print(fact)
    print(f"seconds     {time.perf_counter() - start:.1f}")
    return 0


def refuse_unused(options: Mapping[str, object], kind: CorpusKind) -> None:
    """Refuse options that only apply to bases.

    Raises:
        UsageError: such an option was given.
    """
    for option, value in options.items():
        if value is not None:
            raise UsageError(
                f"{option} is for frozen bases, not for memories of kind {kind.value}. Add --kind mix-base."
            )
