"""`speculant methods`: the drafting methods there are."""

from __future__ import annotations

import argparse
import json

from speculant.cli.options import Subparsers
from speculant.registry import METHODS, Method


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser("methods", help="list the drafting methods", description="List the methods.")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the registry."""
    methods = list(METHODS.values())
    print(json.dumps([_to_json(method) for method in methods], indent=2) if args.json else table(methods))
    return 0


def table(methods: list[Method]) -> str:
    """Return an aligned table; summaries stand on lines of their own, so that it fits a terminal."""
    rows = [("name", "family", "exactness", "source")]
    rows += [(method.name, method.family, method.exactness, method.source) for method in methods]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    indent = " " * (widths[0] + 2)
    parts = [lines[0], *(f"{line}\n{indent}{method.summary}" for line, method in zip(lines[1:], methods, strict=True))]
    return "\n".join(parts)


def _to_json(method: Method) -> dict[str, str | bool]:
    return {
        "name": method.name,
        "family": method.family,
        "exactness": method.exactness,
        "summary": method.summary,
        "source": method.source,
        "memory": method.memory is not None,
    }
