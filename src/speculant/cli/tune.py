"""`speculant tune`: measures the cost of target passes on this machine, as the starting point of sizing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.core.errors import FileError
from speculant.options import kinds, option
from speculant.options.model import ModelOptions

HELP = """\
Measure the cost of passes over 0 to N drafted tokens on this machine, at a few text lengths.

The result is stored, so that decoding knows from the first round how many tokens to draft; otherwise the first rounds
find out."""

EXAMPLES = """
speculant tune your/model
speculant tune your/model --json curve.json   # for replay --step-cost
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """What is measured, and for how long."""

    nodes: int = option.option(64, "tokens of the largest draft; default: 64", kinds.whole(1, kinds.MAX_NODES))
    seconds: int = option.option(15, "time per text length; default: 15", kinds.whole(1, metavar="S"))
    json: str | None = option.option(
        None, "also write the curve to this file, for `replay --step-cost`", kinds.FILE_NAME
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune", cls=Command, help=HELP, epilog=EXAMPLES)(bind(tune))


def tune(options: CostOptions, model: Annotated[ModelOptions, Take(arguments={"model": "MODEL"})]) -> int:
    """Measure, print and store the cost."""
    from speculant.cli.env import environment
    from speculant.cli.files import JSON, check_result, write_json
    from speculant.cli.loading import load
    from speculant.cli.terminal import progress, say

    check_result("--json", options.json, JSON)
    loaded, tokenizer, used = load(model)
    from speculant.api.speculator import Speculator
    from speculant.api.tuning import PREFIXES, measure_step_cost, step_cost_file

    speculator = Speculator.from_transformers(loaded, tokenizer, method="none", fast=model.fast)
    say(f"measuring at {len(PREFIXES)} text lengths, up to {options.seconds} seconds each; threads: {used}.")
    with progress("measuring", len(PREFIXES), "lengths") as advance:
        curve = measure_step_cost(speculator.engine, maximum=options.nodes, seconds=options.seconds, advance=advance)
    print(table(curve))
    found = {"environment": environment(speculator.model), **curve}
    if options.json is not None:
        write_json(options.json, found)
    try:
        path = step_cost_file(speculator.engine)
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"the curve cannot be stored: {error}. Set XDG_CACHE_HOME to a writable folder.") from error
    write_json(str(path), found)
    say(f"kept in {path}; decoding with this model, dtype, device and number of threads starts from it.")
    return 0


def table(curve: dict[str, Any]) -> str:
    """Return the milliseconds per pass by nodes, with a column for each text length, and the cost in plain passes."""
    columns = curve["by_prefix"]
    lines = ["nodes" + "".join(f"{'after {} tokens'.format(column['prefix']):>24}" for column in columns)]
    for i, nodes in enumerate(curve["nodes"]):
        times = [(column["seconds"][i] * 1e3, column["seconds"][i] / column["seconds"][0]) for column in columns]
        lines.append(f"{nodes:5}" + "".join(f"{ms:14.2f} ms {ratio:5.2f}x" for ms, ratio in times))
    return "\n".join(lines)
