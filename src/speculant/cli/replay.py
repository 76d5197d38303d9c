"""`speculant replay`: estimates the gain of drafting on recorded answers, without running a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from speculant.cli.binding import SEVERAL_METHODS, Take, bind
from speculant.cli.commands import Command
from speculant.cli.replay_settings import ReplayOptions
from speculant.options.drafting import DraftingOptions

DRAFTING = Take(
    only=("drafter", "settings", "max_depth", "memory_limit", "base"),
    changes=dict(SEVERAL_METHODS)
    | {
        "drafter": {
            "help": "your own drafter, alone or in addition to --method; modules in the current folder are found"
        },
    },
    defaults={"base": ()},
)

HELP = """\
Replay recorded answers, and report how many tokens of each method would have been accepted. No model is run.

Memory starts empty for each file and method. Rows hold token ids, {"prompt_ids", "output_ids"}, or text for
--tokenizer: {"messages": [...]}, whose last answer is the output, or {"prompt", "output"}."""

EXAMPLES = """
speculant replay log.jsonl --tokenizer your/model   # your own chat logs
speculant replay log.jsonl --tokenizer your/model --html gain.html
speculant replay traces/*.jsonl --method mix,aded,lookup --json out.json
speculant replay log.jsonl --chain --tree --nodes 5,20  # chains, and trees
speculant replay traces/*.jsonl --unite recorded:eagle  # combined with a head
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay", cls=Command, help=HELP, epilog=EXAMPLES)(bind(replay))


def replay(
    *,
    options: Annotated[ReplayOptions, Take(arguments={"traces": "FILE"})],
    drafting: Annotated[DraftingOptions, DRAFTING],
) -> int:
    """Read the recordings, replay them, and show the results."""
    from speculant.cli.replay_run import run

    return run(replace(options, drafting=drafting))
