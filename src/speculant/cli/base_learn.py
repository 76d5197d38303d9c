"""`speculant base learn`: the model answers prompts, and its answers become a frozen base."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.cli.corpus_files import check_sources, check_tokenizer, find, load_vocabulary, write_base
from speculant.cli.corpus_settings import BATCH, BuiltFile, CorpusKind, LearnOptions
from speculant.cli.terminal import say
from speculant.core.errors import UsageError
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions
from speculant.options.sampling import SamplingOptions

if TYPE_CHECKING:
    from speculant.corpus.answering import AnsweringSettings
    from speculant.corpus.rejected import Rejected
    from speculant.corpus.sources import TextSource

HELP = """\
Let a model answer prompts, and build a frozen base from its answers.

On narrow tasks, the model's own text is worth several times as much other text; in open conversation, hardly more. The
prompts are the package's own, on many subjects, or yours, which should be like those to come; a model without a chat
template continues them as plain text. Answers are sampled, so that prompts can be repeated, and appended to FILE.jsonl:
the same command continues an interrupted run, and a larger --tokens adds answers. After Ctrl-C the base is built from
the answers so far.

--answers takes existing answers, such as a server's log, in the formats of `speculant corpus build`; without --minutes
and --tokens the base is built from them alone, and no model is loaded."""

EXAMPLES = """
speculant base learn --model your/model --minutes 30 -o own.base
speculant base learn --model your/model --prompts chats.jsonl \\
    --tokens 200000 -o own.base
speculant base learn --model your/model --answers log.jsonl -o own.base
speculant base learn --model your/model --tokens 200000 \\
    --answers other.jsonl.gz@0.2 -o both.base
"""
PROMPTS = "prompts.txt"  # in the package
SUFFIX = ".jsonl"  # suffix of the answers, after the name of the base
NEW_TOKENS, TEMPERATURE = 512, 0.8

FILE = Take(
    panel="Options",
    changes={
        "output": {"help": "base to write"},
        "budget": {"help": "maximum size of the base; default: 64MB"},
        "license": {"help": "license of the answers, recorded in the base"},
        "force": {"help": "replace an existing base"},
    },
)
SAMPLING = Take(
    only=("max_new_tokens", "temperature", "top_p", "top_k", "seed"),
    defaults={"max_new_tokens": NEW_TOKENS, "temperature": TEMPERATURE},
    changes={
        "max_new_tokens": {"help": f"maximum tokens of an answer; default: {NEW_TOKENS}"},
        "temperature": {"help": f"default: {TEMPERATURE}; at 0 each prompt is answered once"},
        "seed": {"help": "seed of the answers and of the order of prompts; default: 0"},
    },
)


class LearnCommand(Command):
    """The command, with --answers and --prompts taking all files up to the next option."""

    lists = ("--answers", "--prompts")


def register_learn(group: typer.Typer) -> None:
    """Add the command to its group."""
    short = "build a base from a model's answers"
    group.command("learn", cls=LearnCommand, help=HELP, short_help=short, epilog=EXAMPLES)(bind(learn))


def learn(
    file: Annotated[BuiltFile, FILE],
    options: LearnOptions,
    sampling: Annotated[SamplingOptions, SAMPLING],
    drafting: Annotated[
        DraftingOptions, Take(only=("method", "settings", "draft_model", "head", "nodes", "memory_limit", "base"))
    ],
    model: ModelOptions,
) -> int:
    """Write answers for the requested time, build the base, and report both."""
    from speculant.cli.base_answers import write_answers
    from speculant.cli.loading import load_speculator, model_name
    from speculant.cli.loading_checks import check_drafting, check_named
    from speculant.cli.prompts import read_prompts
    from speculant.corpus.rejected import Rejected

    if not options.writes:
        refuse_unused(options, sampling, drafting, model)
    own, rejected = Path(file.output + SUFFIX), Rejected(say)
    check_places(file, options, own)
    sources = [find(each, rejected) for each in options.answers]
    if not options.writes:
        check_tokenizer(model.model, None)
        return build(file, sources, *load_vocabulary(model.model, None), rejected)
    asked = [prompt for path in options.prompts or [package_prompts()] for prompt in read_prompts(path)]
    check_drafting(drafting)
    check_named(model, drafting)
    with closing(load_speculator(model, drafting).speculator) as speculator:
        vocabulary = speculator.engine.capabilities.vocabulary
        interrupt = write_answers(speculator, asked, own, vocabulary, answering_settings(options, sampling))
        if not own.exists():
            raise interrupt or UsageError("the model wrote nothing within that time. Allow more.")
        sources = [find(str(own), rejected), *sources]
        build(file, sources, speculator.tokenizer, vocabulary, rejected, f"answers of {model_name(model.model)}")
    if interrupt is not None:
        raise interrupt
    return 0


def refuse_unused(
    options: LearnOptions, sampling: SamplingOptions, drafting: DraftingOptions, model: ModelOptions
) -> None:
    """Refuse options for writing answers when none are written.

    Raises:
        UsageError: such an option was given.
    """
    unset = (
        BATCH,
        SamplingOptions(max_new_tokens=NEW_TOKENS, temperature=TEMPERATURE),
        DraftingOptions(),
        ModelOptions(),
    )
    if (options.batch, sampling, drafting, replace(model, model=None)) != unset:
        raise UsageError(
            "without --minutes and --tokens the model is not loaded, so options of text, drafting and loading would be "
            "ignored. Leave them out, or add one of the two."
        )


def check_places(file: BuiltFile, options: LearnOptions, own: Path) -> None:
    """Check that no file that is read would be overwritten.

    Args:
        file: the base.
        options: what is learned.
        own: file of the model's answers.

    Raises:
        UsageError: one would, or the model's own answers are named as others.
    """
    from speculant.cli.files import check_memory_output
    from speculant.corpus.sources import split_weight

    given = [split_weight(each)[0] for each in options.answers]
    # Existing answers are from an earlier run, which is continued.
    force = file.force or (options.writes and own.exists())
    check_memory_output(file.output, [*given, *options.prompts], force=force)
    if options.writes and any(own.exists() and Path(each).exists() and own.samefile(each) for each in given):
        raise UsageError(f"{own} receives the model's answers and is learned anyway. Leave it out of --answers.")


def answering_settings(options: LearnOptions, sampling: SamplingOptions) -> AnsweringSettings:
    """Return how the model answers."""
    from speculant.corpus.answering import AnsweringSettings

    return AnsweringSettings(
        tokens=options.tokens,
        seconds=None if options.minutes is None else 60 * options.minutes,
        batch=options.batch,
        repeat=bool(sampling.temperature),
        seed=sampling.seed or 0,
        options={name: value for name, value in sampling.keywords().items() if name != "seed"},
    )


def package_prompts() -> str:
    """Return the path of the prompts in the package."""
    return str(files("speculant.corpus") / PROMPTS)


def build(
    file: BuiltFile,
    sources: list[TextSource],
    tokenizer: Any,
    vocabulary: int,
    rejected: Rejected,
    source: str | None = None,
) -> int:
    """Build the base and print a summary; see `write_base`."""
    check_sources(sources, CorpusKind.MIX_BASE)
    # Answers may have been added since an earlier build was interrupted.
    for fact in write_base(file, sources, tokenizer, vocabulary, rejected, source=source, restart=True):
        print(fact)
    return 0
