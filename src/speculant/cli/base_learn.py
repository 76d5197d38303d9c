"""`speculant base learn`: the model answers prompts, and its answers become a frozen base."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speculant.cli.binding import Take, bind, parse
from speculant.cli.commands import Command
from speculant.cli.corpus_files import (
    BUDGET,
    MIN_BUDGET,
    CorpusKind,
    check_sources,
    check_tokenizer,
    find,
    load_vocabulary,
    write_base,
)
from speculant.cli.terminal import say
from speculant.core.errors import UsageError
from speculant.options import kinds
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions
from speculant.options.sampling import SamplingOptions

if TYPE_CHECKING:
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
NEW_TOKENS, TEMPERATURE, BATCH = 512, 0.8, 8


class LearnCommand(Command):
    """The command, with --answers and --prompts taking all files up to the next option."""

    lists = ("--answers", "--prompts")


def register_learn(group: typer.Typer) -> None:
    """Add the command to its group."""
    short = "build a base from a model's answers"
    group.command("learn", cls=LearnCommand, help=HELP, short_help=short, epilog=EXAMPLES)(bind(learn))


def learn(
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="base to write")],
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            metavar="N",
            parser=parse(kinds.number(0, above=True, metavar="N")),
            help="minutes to answer prompts",
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", metavar="N", parser=parse(kinds.whole(1)), help="tokens of answers to reach"),
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Option("--prompts", metavar="FILE ...", help="prompts, as for `generate`; default: the package's own"),
    ] = None,
    answers: Annotated[
        list[str] | None,
        typer.Option(
            "--answers", metavar="SOURCE ...", help="also learn these answers, as for `corpus build`; SOURCE@WEIGHT"
        ),
    ] = None,
    batch: Annotated[
        int,
        typer.Option("--batch", metavar="N", parser=parse(kinds.whole(1)), help="prompts answered at a time"),
    ] = BATCH,
    budget: Annotated[
        int,
        typer.Option(
            "--budget",
            metavar="BYTES",
            parser=parse(kinds.size(min=MIN_BUDGET, example="64MB")),
            help="maximum size of the base; default: 64MB",
        ),
    ] = BUDGET,
    license_: Annotated[
        str | None, typer.Option("--license", metavar="TEXT", help="license of the answers, recorded in the base")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing base")] = False,
    *,
    sampling: Annotated[
        SamplingOptions,
        Take(
            only=("max_new_tokens", "temperature", "top_p", "top_k", "seed"),
            defaults={"max_new_tokens": NEW_TOKENS, "temperature": TEMPERATURE},
            changes={
                "max_new_tokens": {"help": f"maximum tokens of an answer; default: {NEW_TOKENS}"},
                "temperature": {"help": f"default: {TEMPERATURE}; at 0 each prompt is answered once"},
                "seed": {"help": "seed of the answers and of the order of prompts; default: 0"},
            },
        ),
    ],
    drafting: Annotated[
        DraftingOptions, Take(only=("method", "settings", "draft_model", "head", "nodes", "memory_limit", "base"))
    ],
    model: ModelOptions,
) -> int:
    """Write answers for the requested time, build the base, and report both."""
    from speculant.cli.base_answers import write_answers
    from speculant.cli.files import check_memory_output
    from speculant.cli.loading import load_speculator, model_name
    from speculant.cli.loading_checks import check_drafting, check_named
    from speculant.cli.prompts import read_prompts
    from speculant.corpus.answering import AnsweringSettings
    from speculant.corpus.rejected import Rejected
    from speculant.corpus.sources import split_weight

    writes = minutes is not None or tokens is not None
    if not writes and not answers:
        raise UsageError("set --minutes or --tokens to let the model answer, or name --answers to learn.")
    if minutes is not None and tokens is not None:
        raise UsageError("--minutes and --tokens both end the answers. Leave one out.")
    if prompts and not writes:
        raise UsageError("--prompts would be ignored: add --minutes or --tokens, so that the model answers them.")
    if not writes:
        refuse_unused(sampling, drafting, model, batch)
    own, rejected = Path(output + SUFFIX), Rejected(say)
    given = [split_weight(each)[0] for each in answers or ()]
    # Existing answers are from an earlier run, which is continued.
    check_memory_output(output, [*given, *(prompts or ())], force=force or (writes and own.exists()))
    if any(own.exists() and Path(each).exists() and own.samefile(each) for each in given) and writes:
        raise UsageError(f"{own} receives the model's answers and is learned anyway. Leave it out of --answers.")
    sources = [find(each, rejected) for each in answers or ()]
    if not writes:
        check_tokenizer(model.model, None)
        return build(output, sources, *load_vocabulary(model.model, None), budget, license_, rejected)
    asked = [prompt for path in prompts or [package_prompts()] for prompt in read_prompts(path)]
    check_drafting(drafting)
    check_named(model, drafting)
    loaded = load_speculator(model, drafting)
    speculator, seed = loaded.speculator, sampling.seed or 0
    options = sampling.keywords()
    options.pop("seed")
    settings = AnsweringSettings(
        tokens=tokens,
        seconds=None if minutes is None else 60 * minutes,
        batch=batch,
        repeat=bool(sampling.temperature),
        seed=seed,
        options=options,
    )
    with ExitStack() as ending:
        ending.callback(speculator.close)
        vocabulary = speculator.engine.capabilities.vocabulary
        interrupt = write_answers(speculator, asked, own, vocabulary, settings)
        if not own.exists():
            raise interrupt or UsageError("the model wrote nothing within that time. Allow more.")
        sources = [find(str(own), rejected), *sources]
        source = f"answers of {model_name(model.model)}"
        build(output, sources, speculator.tokenizer, vocabulary, budget, license_, rejected, source)
    if interrupt is not None:
        raise interrupt
    return 0


def refuse_unused(sampling: SamplingOptions, drafting: DraftingOptions, model: ModelOptions, batch: int) -> None:
    """Refuse options for writing answers when none are written.

    Raises:
        UsageError: such an option was given.
    """
    unset = (
        SamplingOptions(max_new_tokens=NEW_TOKENS, temperature=TEMPERATURE),
        DraftingOptions(),
        ModelOptions(),
        BATCH,
    )
    if (sampling, drafting, replace(model, model=None), batch) != unset:
        raise UsageError(
            "without --minutes and --tokens the model is not loaded, so options of text, drafting and loading would be "
            "ignored. Leave them out, or add one of the two."
        )


def package_prompts() -> str:
    """Return the path of the prompts in the package."""
    return str(files("speculant.corpus") / PROMPTS)


def build(
    output: str,
    sources: list[TextSource],
    tokenizer: Any,
    vocabulary: int,
    budget: int,
    license_: str | None,
    rejected: Rejected,
    source: str | None = None,
) -> int:
    """Build the base and print a summary; see `write_base`."""
    check_sources(sources, CorpusKind.MIX_BASE)
    facts = write_base(
        Path(output),
        sources,
        tokenizer,
        vocabulary,
        rejected,
        budget=budget,
        license_=license_,
        source=source,
        restart=True,  # answers may have been added since an earlier build was interrupted
    )
    for fact in facts:
        print(fact)
    return 0
