"""`speculant bench`: how fast each method is on a model, against plain decoding in the same process."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from speculant.cli.bench_settings import FORCED_TRIALS, NEW_TOKENS, TRIALS, Bench
from speculant.cli.commands import Command
from speculant.cli.options import (
    AttentionOption,
    DeviceOption,
    DtypeOption,
    FastOption,
    Loading,
    ModelArgument,
    ThreadsOption,
)
from speculant.cli.values import node_count, nonempty, whole

HELP = """\
Time methods against plain decoding in the same process.

With --forced the model runs every pass, but the next tokens come from recorded outputs: the true cost of any model,
with random weights from --config if need be, at the true acceptance of the recorded text. DIR gets result.json,
table.md and report.html; called again, an interrupted run goes on. Memory is empty at the start of each task and kept
within it."""

EXAMPLES = """
speculant bench your/model --tasks humaneval --methods none,mix --out results
speculant bench --forced traces/*.jsonl --config shape.json --out forced
speculant bench your/model --growth --out growth   # cost by length
"""


class BenchCommand(Command):
    """The command, whose --forced takes all files up to the next option."""

    lists = ("--forced",)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", cls=BenchCommand, help=HELP, epilog=EXAMPLES)(bench)


def bench(
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="where the results go", rich_help_panel="Output")],
    model: ModelArgument = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="forget what an earlier run left in DIR", rich_help_panel="Output")
    ] = False,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            metavar="NAME,...",
            help="spec-bench, humaneval, gsm8k, mbpp, or .jsonl files of prompts",
            rich_help_panel="What is decoded",
        ),
    ] = None,
    forced: Annotated[
        list[str] | None,
        typer.Option(
            "--forced",
            metavar="TRACES",
            help="follow these recorded outputs (token ids), one file or more",
            rich_help_panel="What is decoded",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="PATH|ID",
            help="with --forced: the recordings' tokenizer, for --base and for rows of text",
            rich_help_panel="What is decoded",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="with --forced, --growth: random weights of this shape",
            rich_help_panel="What is decoded",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="where prompts lie; default: $SPECULANT_DATA/prompts",
            rich_help_panel="What is decoded",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            parser=whole(1),
            help="only the first N items of each task",
            rich_help_panel="What is decoded",
        ),
    ] = None,
    growth: Annotated[
        bool,
        typer.Option(
            "--growth",
            help="also, or only: how cost grows, to 8192 tokens and 256 nodes",
            rich_help_panel="What is decoded",
        ),
    ] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            metavar="N",
            parser=whole(1),
            help=f"per answer to --tasks; default: {NEW_TOKENS}",
            rich_help_panel="What is decoded",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="NAME,...",
            help="of `speculant methods`, hf:generate, hf:prompt-lookup, hf:assisted, llamacpp; default: none,mix, and "
            "that of --head",
            rich_help_panel="How",
        ),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            metavar="MODULE:CLASS",
            help="a drafter of your own, timed too; modules of this folder are found, too",
            rich_help_panel="How",
        ),
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option(
            "--draft-model",
            "--assistant",
            metavar="PATH|ID",
            parser=nonempty("name a folder or a hub id, or leave the option out"),
            help="a smaller model with the same vocabulary, for the methods that draft with one and hf:assisted",
            rich_help_panel="How",
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            metavar="PATH|ID",
            parser=nonempty("name a folder or a hub id, or leave the option out"),
            help="a trained head of the model, for the methods that draft with one; default: the bundled model's",
            rich_help_panel="How",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[METHOD.]NAME=VALUE",
            help="a setting of one of the methods, see `speculant methods NAME`; may be repeated",
            rich_help_panel="How",
        ),
    ] = None,
    nodes: Annotated[
        Any,
        typer.Option(
            "--nodes",
            metavar="N|auto",
            parser=node_count,
            help="most tokens per draft; default: auto",
            rich_help_panel="How",
        ),
    ] = None,
    memory_limit: Annotated[
        int,
        typer.Option(
            "--memory-limit",
            metavar="MB",
            parser=whole(1, 2**43, unit=" megabytes"),
            help="of each method; default: 256",
            rich_help_panel="How",
        ),
    ] = 256,
    base: Annotated[
        list[str] | None,
        typer.Option(
            "--base",
            metavar="FILE",
            help="a frozen base for the methods that take any, up to three; bundled: that of the story model; "
            "default: none",
            rich_help_panel="How",
        ),
    ] = None,
    temperature: Annotated[
        str,
        typer.Option("--temperature", metavar="T,...", help="one or more; default: 0, greedy", rich_help_panel="How"),
    ] = "0",
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", parser=whole(0), help="of sampling; default: 0", rich_help_panel="How"),
    ] = None,
    batch: Annotated[
        str,
        typer.Option(
            "--batch",
            metavar="N,...",
            help="requests in a pass, one or more sizes such as 1,4,8; default: 1",
            rich_help_panel="How",
        ),
    ] = "1",
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            metavar="N",
            parser=whole(1),
            help=f"how often everything is timed; default: {TRIALS}, in forced runs {FORCED_TRIALS}",
            rich_help_panel="How",
        ),
    ] = None,
    inflate: Annotated[
        str | None,
        typer.Option(
            "--inflate",
            metavar="LAYERS[xMLP]",
            help="pad the model to that many layers, and MLPs of that width, without changing its outputs",
            rich_help_panel="How",
        ),
    ] = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    attention: AttentionOption = None,
    fast: FastOption = None,
    threads: ThreadsOption = None,
) -> int:
    """Check, time, write."""
    asked = Bench(
        loading=Loading(model=model, dtype=dtype, device=device, attention=attention, fast=fast, threads=threads),
        tasks=tasks,
        forced=forced or [],
        tokenizer=tokenizer,
        config=config,
        data=data,
        limit=limit,
        growth=growth,
        max_new_tokens=max_new_tokens,
        methods=methods,
        drafter=drafter,
        draft_model=draft_model,
        head=head,
        settings=tuple(settings or ()),
        nodes=nodes,
        memory_limit=memory_limit,
        bases=tuple(base or ()),
        temperature=temperature,
        seed=seed or 0,
        batch=batch,
        trials=trials,
        inflate=inflate,
        out=out,
        restart=restart,
    )
    from speculant.cli.bench_checks import check

    check(asked, seeded=seed is not None)
    from speculant.cli.bench_run import run

    return run(asked)
