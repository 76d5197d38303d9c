"""`speculant tune-layers`: searches for the layers and sublayers that the method `layer-skip` should skip."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.options import kinds, option
from speculant.options.model import ModelOptions

HELP = """\
Find the decoder layers, or attention and MLP sublayers, that layer-skip should skip, on a few typical prompts.

Each prompt is decoded once. Every set is then judged by the share of these tokens that the rest of the model predicts,
and by the share of the weights that it reads. Requires optuna: pip install 'speculant[search]'."""

EXAMPLES = """
speculant tune-layers your/model --prompts typical.jsonl
speculant tune-layers your/model --prompts typical.jsonl --sublayers
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """On what the layers are searched, and for how long."""

    prompts: str | None = option.option(None, "typical prompts, as for `generate --prompts`", kinds.FILE_NAME)
    max_new_tokens: int = option.option(64, "tokens to decode per prompt; default: 64", kinds.whole(2))
    trials: int = option.option(200, "sets to try; default: 200", kinds.whole(1))
    seed: int = option.option(0, "seed of the search; default: 0", kinds.whole(0))
    sublayers: bool = option.option(
        False, "skip attention and MLP of layers separately, not only whole layers", kinds.FLAG
    )
    json: str | None = option.option(None, "also write the result to this file", kinds.FILE_NAME)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune-layers", cls=Command, help=HELP, epilog=EXAMPLES)(bind(tune_layers))


def tune_layers(options: SearchOptions, model: Annotated[ModelOptions, Take(arguments={"model": "MODEL"})]) -> int:
    """Search and print the result."""
    from speculant.cli.env import environment
    from speculant.cli.files import JSON, check_result, write_json
    from speculant.cli.loading import load
    from speculant.cli.loading_checks import check_named
    from speculant.cli.prompts import read_prompts
    from speculant.cli.terminal import progress, say
    from speculant.core.errors import UsageError
    from speculant.core.packages import check_packages

    if options.prompts is None:
        raise UsageError("name a file of a few typical prompts by --prompts.")
    check_result("--json", options.json, JSON)
    given = [prompt[0] if isinstance(prompt, tuple) else prompt for prompt in read_prompts(options.prompts)]
    check_named(model)
    check_packages(["optuna"], what="the search of layers to skip", extra="search")
    loaded, tokenizer, _ = load(model, needed="the search leaves layers out")
    from speculant.api.layer_tuning import search_skipped_layers
    from speculant.api.speculator import Speculator

    speculator = Speculator.from_transformers(loaded, tokenizer, method="none", fast=model.fast)
    say(f"decoding {len(given)} prompts, then trying {options.trials} sets.")
    with progress("searching", options.trials, "sets") as advance:
        best = search_skipped_layers(
            speculator,
            given,
            tokens=options.max_new_tokens,
            trials=options.trials,
            seed=options.seed,
            sublayers=options.sublayers,
            advance=advance,
        )
    print(f"--method layer-skip --set {shlex.quote(f'skipped={best.setting}')}")
    if best.whole:
        say(f"attention and MLP of this model's layers cannot be skipped separately: {best.whole}.")
    say(
        f"these are skipped; the others predict {best.acceptance:.0%} of the tokens for {best.cost:.0%} of a "
        f"pass: {best.speed:.2f} times the speed of plain decoding is expected, with a draft length of {best.length}."
    )
    if best.speed <= 1:
        say("so layer-skip will not be faster than plain decoding with this model.")
    if options.json is not None:
        found = {"environment": environment(speculator.model), "setting": best.setting, **asdict(best)}
        write_json(options.json, found)
    return 0
