"""`speculant compare`: the ratios of two benchmark results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.options import kinds, option
from speculant.options.printing import PrintOptions

HELP = """\
Print the ratios of B to A for each task and method in both.

Each is a result.json of `speculant bench`, or its folder. Compare tokens/s only between runs on the same machine with
the same settings; speed-ups are relative to plain decoding in their own run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedResults:
    """The results to compare: files of `speculant bench`, or its folders."""

    first: str = option.option(option.REQUIRED, "the first result", kinds.FILE_NAME)
    second: str = option.option(option.REQUIRED, "the second result", kinds.FILE_NAME)


def register(app: typer.Typer) -> None:
    """Add the command."""
    examples = "speculant compare before/ after/result.json"
    app.command("compare", cls=Command, help=HELP, epilog=examples)(bind(ratios))


def ratios(
    results: Annotated[ComparedResults, Take(arguments={"first": "A.json", "second": "B.json"})], printing: PrintOptions
) -> int:
    """Print the ratios."""
    from speculant.bench.report.comparison import compare, comparison_table, differences
    from speculant.bench.report.result_files import read_result
    from speculant.cli.terminal import print_table

    before, after = read_result(Path(results.first)), read_result(Path(results.second))
    rows, different = compare(before, after), differences(before, after)
    if printing.json:
        print(json.dumps({"rows": rows, "different": different}, indent=2))
        return 0
    print_table(comparison_table(rows), names=2)
    for name in different:
        print(f"different: {name}")
    return 0
