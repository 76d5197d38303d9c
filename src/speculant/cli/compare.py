"""`speculant compare`: the ratios of two benchmark results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from speculant.cli.binding import JsonFlag
from speculant.cli.commands import Command

HELP = """\
Print the ratios of B to A for each task and method in both.

Each is a result.json of `speculant bench`, or its folder. Compare tokens/s only between runs on the same machine with
the same settings; speed-ups are relative to plain decoding in their own run."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    examples = "speculant compare before/ after/result.json"
    app.command("compare", cls=Command, help=HELP, epilog=examples)(ratios)


def ratios(
    first: Annotated[str, typer.Argument(metavar="A.json", help="the first result")],
    second: Annotated[str, typer.Argument(metavar="B.json", help="the second result")],
    as_json: JsonFlag = False,
) -> int:
    """Print the ratios."""
    from speculant.bench.report.comparison import compare, comparison_table, differences
    from speculant.bench.report.result_files import read_result
    from speculant.cli.terminal import print_table

    before, after = read_result(Path(first)), read_result(Path(second))
    rows, different = compare(before, after), differences(before, after)
    if as_json:
        print(json.dumps({"rows": rows, "different": different}, indent=2))
        return 0
    print_table(comparison_table(rows), names=2)
    for name in different:
        print(f"different: {name}")
    return 0
