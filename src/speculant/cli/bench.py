"""`speculant bench`: measures the speed of each method on a model against plain decoding in the same process."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from speculant.cli.bench_settings import BenchOptions
from speculant.cli.binding import SEVERAL_METHODS, Take, bind
from speculant.cli.commands import Command
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions

DRAFTING = Take(
    only=("drafter", "draft_model", "head", "settings", "nodes", "max_depth", "memory_limit", "base"),
    panel="How",
    changes=dict(SEVERAL_METHODS)
    | {
        "drafter": {"help": "also time your own drafter; modules in the current folder are found"},
        "draft_model": {
            "help": "smaller model with the same vocabulary, for methods that need one and hf:assisted",
            "aliases": ("--assistant",),
            "several": False,
        },
        "head": {"help": "trained head for the model, for methods that need one; default: the bundled model's"},
    },
    defaults={"base": ()},
)
HELP = """\
Time methods against plain decoding in the same process.

With --forced, the model runs every pass but the next tokens come from recorded outputs: the true cost of any model,
even with random weights from --config, at the true acceptance of the recorded text. DIR gets result.json, table.md
and report.html; the same command continues an interrupted run. Memory starts empty for each task and is kept within
it."""

EXAMPLES = """
speculant bench your/model --tasks humaneval --methods none,mix --out results
speculant bench --forced traces/*.jsonl --config shape.json --out forced
speculant bench your/model --growth --out growth   # cost by length
"""


class BenchCommand(Command):
    """The command, with --forced taking all files up to the next option."""

    lists = ("--forced",)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", cls=BenchCommand, help=HELP, epilog=EXAMPLES)(bind(bench))


def bench(
    *,
    options: BenchOptions,
    drafting: Annotated[DraftingOptions, DRAFTING],
    model: Annotated[ModelOptions, Take(arguments={"model": "MODEL"})],
) -> int:
    """Check the options, run the benchmark, write the results."""
    asked = replace(options, loading=model, drafting=drafting)
    from speculant.cli.bench_checks import check

    check(asked)
    from speculant.cli.bench_run import run

    return run(asked)
