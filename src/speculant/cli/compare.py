"""`speculant compare`: the ratios of two benchmark results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from speculant.cli.options import Subparsers

DESCRIPTION = """\
Print what B is to A, per task and method that both have. Each is a result.json of `speculant bench`, or its folder.
tokens/s of two runs can be compared only where machine and settings are the same; speed-ups are each over plain
decoding of their own run."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser("compare", help="compare two benchmark results", description=DESCRIPTION)
    parser.add_argument("before", metavar="A.json", help="the first result")
    parser.add_argument("after", metavar="B.json", help="the second result")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the ratios."""
    from speculant.bench.report.comparison import compare, comparison_table, differences
    from speculant.bench.report.replay_table import aligned
    from speculant.bench.report.result_files import read_result

    before, after = read_result(Path(args.before)), read_result(Path(args.after))
    rows, different = compare(before, after), differences(before, after)
    if args.json:
        print(json.dumps({"rows": rows, "different": different}, indent=2))
        return 0
    print(aligned(comparison_table(rows)))
    for name in different:
        print(f"different: {name}")
    return 0
