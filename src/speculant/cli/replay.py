"""`speculant replay`: what drafting would bring on recorded answers, without running a model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from speculant.cli.commands import Command
from speculant.cli.options import DEFAULT_METHOD, MemoryLimitOption
from speculant.cli.replay_settings import Order, Replay
from speculant.cli.values import node_limits, whole
from speculant.core.errors import UsageError

HELP = """\
Play recorded answers as if the model were giving them now, and report what each method would have got accepted.

Memory is empty at the start of each file and method. Rows hold token ids, {"prompt_ids", "output_ids"}, or text for
--tokenizer: {"messages": [...]}, whose last answer is the output, or {"prompt", "output"}. No model is run."""

EXAMPLES = """
speculant replay log.jsonl --tokenizer your/model   # your own chat logs
speculant replay log.jsonl --tokenizer your/model --html gain.html
speculant replay traces/*.jsonl --method mix,aded,lookup --json out.json
speculant replay log.jsonl --chain --tree --nodes 5,20  # as in vLLM; as trees
speculant replay traces/*.jsonl --unite recorded:eagle  # united with a head
"""

NODES = "64"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay", cls=Command, help=HELP, epilog=EXAMPLES)(replay)


def replay(
    traces: Annotated[
        list[str], typer.Argument(metavar="FILE", help=".jsonl files with a row per line, or .json lists")
    ],
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="PATH|ID", help="the model's tokenizer, for rows of text")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", parser=whole(1), help="processes; default: as many as there are cores"),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="NAME,...",
            help="see `speculant methods`; peer:draftretriever and peer:arctic, if installed; default: mix",
            rich_help_panel="Drafting",
        ),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            metavar="MODULE:CLASS",
            help="a drafter of your own beside --method, or alone; modules of this folder are found, too",
            rich_help_panel="Drafting",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[METHOD.]NAME=VALUE",
            help="a setting of one of the methods, see `speculant methods NAME`; may be repeated",
            rich_help_panel="Drafting",
        ),
    ] = None,
    nodes: Annotated[
        Any,
        typer.Option(
            "--nodes",
            metavar="N,...",
            parser=node_limits,
            help=f"most tokens per draft, one or more numbers such as 5,20,64; default: {NODES}",
            rich_help_panel="Drafting",
        ),
    ] = NODES,
    chain: Annotated[
        bool,
        typer.Option("--chain", help="drafts are chains, which is all that vLLM verifies", rich_help_panel="Drafting"),
    ] = False,
    tree: Annotated[
        bool,
        typer.Option("--tree", help="drafts are trees; the default. With --chain, both", rich_help_panel="Drafting"),
    ] = False,
    unite: Annotated[
        str | None,
        typer.Option(
            "--unite",
            metavar="recorded:NAME",
            help="also replay the methods united with a head whose acceptance the files recorded; for mix and suffix",
            rich_help_panel="Drafting",
        ),
    ] = None,
    keep_memory: Annotated[
        bool,
        typer.Option(
            "--keep-memory/--no-keep-memory",
            help="over the requests of a file; the default",
            rich_help_panel="Drafting",
        ),
    ] = True,
    memory_limit: MemoryLimitOption = 256,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            "--corpus",
            metavar="FILE",
            help="begin with this memory, where a method takes its kind; may be repeated",
            rich_help_panel="Drafting",
        ),
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(
            "--base",
            metavar="FILE",
            help="a frozen base for the methods that take any, up to three; bundled: that of the story model; "
            "default: none",
            rich_help_panel="Drafting",
        ),
    ] = None,
    order: Annotated[
        Order, typer.Option("--order", metavar="file|shuffled", help="default: file", rich_help_panel="Requests")
    ] = Order.FILE,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", parser=whole(0), help="of --order shuffled; default: 0", rich_help_panel="Requests"
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            parser=whole(1),
            help="only the first N requests of each file",
            rich_help_panel="Requests",
        ),
    ] = None,
    step_cost: Annotated[
        str | None,
        typer.Option(
            "--step-cost",
            metavar="FILE",
            help='what a target pass costs, {"nodes", "seconds"}: adds the speed-up to expect',
            rich_help_panel="Output",
        ),
    ] = None,
    by_category: Annotated[
        bool, typer.Option("--by-category", help="show the categories of each file too", rich_help_panel="Output")
    ] = False,
    json: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="write the figures as JSON; - prints them in place of the table",
            rich_help_panel="Output",
        ),
    ] = None,
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="write a page with charts", rich_help_panel="Output"),
    ] = None,
) -> int:
    """Read, play, and show what came of it."""
    if seed is not None and order is not Order.SHUFFLED:
        raise UsageError("--seed would be ignored: requests keep the file's order. Add --order shuffled.")
    named = method if method is not None else DEFAULT_METHOD if drafter is None else ""
    methods = list(dict.fromkeys(name.strip() for name in named.split(",") if name.strip()))
    if drafter is not None:
        from speculant.cli.loading import find_drafter

        methods.append(find_drafter(drafter).name)
    from speculant.cli.replay_run import run

    return run(
        Replay(
            traces=list(dict.fromkeys(traces)),
            tokenizer=tokenizer,
            methods=methods,
            settings=tuple(settings or ()),
            nodes=nodes,
            shapes=(*(["tree"] if tree or not chain else []), *(["chain"] if chain else [])),
            unite=unite or "",
            keep_memory=keep_memory,
            memory_limit=memory_limit,
            corpora=corpus or [],
            bases=tuple(base or ()),
            order=order,
            seed=seed or 0,
            limit=limit,
            step_cost=step_cost,
            by_category=by_category,
            json=json,
            html=html,
            jobs=jobs,
        )
    )
