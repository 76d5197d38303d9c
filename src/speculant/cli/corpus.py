"""`speculant corpus`: builds memories and frozen bases from texts, as a starting point for drafters."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command, Group
from speculant.cli.corpus_files import (
    check_sources,
    check_tokenizer,
    find,
    load_vocabulary,
    write_base,
    write_memory,
)
from speculant.cli.corpus_settings import BuildOptions, BuiltFile, CorpusKind
from speculant.cli.terminal import say
from speculant.core.errors import UsageError
from speculant.corpus.rejected import Rejected
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
    file: BuiltFile,
    options: Annotated[BuildOptions, Take(arguments={"inputs": "SOURCE"})],
    named: Annotated[ModelOptions, Take(only=("model",), panel="Options")],
) -> int:
    """Read the sources, write the file, and report it."""
    from speculant.cli.files import check_memory_output
    from speculant.corpus.documents import why_no_text
    from speculant.corpus.sources import split_weight

    start, rejected = time.perf_counter(), Rejected(say)
    options.check(file)
    if (named.model is None) == (options.tokenizer is None):
        raise UsageError(
            "name the memory's model by --model, or its tokenizer by --tokenizer: a memory fits one tokenizer only. "
            "--model bundled is the story model included in the package."
        )
    check_tokenizer(named.model, options.tokenizer)
    sources = [find(text, rejected) for text in options.inputs]
    excluded = tuple(map(Path, options.exclude))
    for path in excluded:
        why_no_text(path)  # fails early if it cannot be read
    read: list[str | Path] = [*(split_weight(text)[0] for text in options.inputs), *excluded]
    check_memory_output(file.output, read, force=file.force)
    check_sources(sources, options.kind)
    tokenizer, vocabulary = load_vocabulary(named.model, options.tokenizer)
    if options.kind is CorpusKind.MIX_BASE:
        facts = write_base(
            file,
            sources,
            tokenizer,
            vocabulary,
            rejected,
            exclude=excluded,
            source=options.source,
            restart=options.restart,
        )
    else:
        facts = write_memory(Path(file.output), sources, options.kind, tokenizer, vocabulary, rejected)
    for fact in facts:
        print(fact)
    print(f"seconds     {time.perf_counter() - start:.1f}")
    return 0
