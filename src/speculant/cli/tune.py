"""`speculant tune`: measure what a target pass costs here, for sizing to begin with."""

from __future__ import annotations

import argparse
from typing import Any

from speculant.cli.env import environment
from speculant.cli.options import Subparsers, add_loading_options, quieten, whole
from speculant.cli.output import check_writable, say, write_json
from speculant.core.errors import FileError

DESCRIPTION = """\
Measure what a pass of the model over 0 to N drafted tokens costs on this machine, at a few lengths of text, and keep
it: decoding then knows from the first round how many tokens to draft. Without it the first rounds find out."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser("tune", help="measure what a target pass costs here", description=DESCRIPTION)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a folder or a hub id; default: the bundled model")
    group = parser.add_argument_group("model")
    add_loading_options(group)
    group = parser.add_argument_group("measuring")
    group.add_argument("--nodes", metavar="N", type=whole(1), default=64, help="of the largest draft; default: 64")
    group.add_argument(
        "--seconds", metavar="S", type=whole(1), default=15, help="to spend at each length of text; default: 15"
    )
    group.add_argument("--json", metavar="FILE", help="write the curve here too, as `replay --step-cost` reads it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print, keep."""
    if args.json:
        check_writable(args.json)
    quieten()
    from tqdm import tqdm

    from speculant.api.speculator import Speculator
    from speculant.api.tuning import PREFIXES, measure_step_cost, step_cost_file

    speculator = Speculator.from_pretrained(
        args.model, dtype=args.dtype, device=args.device, attention=args.attn, fast=args.fast, method="none"
    )
    with tqdm(total=len(PREFIXES), desc="measuring", unit="length", leave=False, disable=None) as bar:
        curve = measure_step_cost(speculator.engine, most=args.nodes, seconds=args.seconds, advance=bar.update)
    print(table(curve))
    found = {"environment": environment(speculator.model), **curve}
    if args.json:
        write_json(args.json, found)
    try:
        path = step_cost_file(speculator.engine, speculator.fast)
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"the curve cannot be kept: {error}. Set XDG_CACHE_HOME to a folder of yours.") from error
    write_json(str(path), found)
    say(f"kept in {path}; decoding with this model, dtype, device and number of threads begins with it.")
    return 0


def table(curve: dict[str, Any]) -> str:
    """Return milliseconds of a pass by nodes, a column for each length of text, and what they cost in plain passes."""
    columns = curve["by_prefix"]
    lines = ["nodes" + "".join(f"{'after {} tokens'.format(column['prefix']):>24}" for column in columns)]
    for i, nodes in enumerate(curve["nodes"]):
        times = [(column["seconds"][i] * 1e3, column["seconds"][i] / column["seconds"][0]) for column in columns]
        lines.append(f"{nodes:5}" + "".join(f"{ms:14.2f} ms {ratio:5.2f}x" for ms, ratio in times))
    return "\n".join(lines)
