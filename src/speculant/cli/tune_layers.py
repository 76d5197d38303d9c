"""`speculant tune-layers`: searches for the layers and sublayers that the method `layer-skip` should skip."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from speculant.cli.binding import Take, bind, parse
from speculant.cli.commands import Command
from speculant.options import kinds
from speculant.options.model import ModelOptions

HELP = """\
Find the decoder layers, or attention and MLP sublayers, that layer-skip should skip, on a few typical prompts.

Each prompt is decoded once. Every set is then judged by the share of these tokens that the rest of the model predicts,
and by the share of the weights that it reads. Requires optuna: pip install 'speculant[search]'."""

EXAMPLES = """
speculant tune-layers your/model --prompts typical.jsonl
speculant tune-layers your/model --prompts typical.jsonl --sublayers
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune-layers", cls=Command, help=HELP, epilog=EXAMPLES)(bind(tune_layers))


def tune_layers(
    prompts: Annotated[
        str | None,
        typer.Option("--prompts", metavar="FILE", help="typical prompts, as for `generate --prompts`"),
    ] = None,
    max_new_tokens: Annotated[
        int,
        typer.Option(
            "--max-new-tokens",
            metavar="N",
            parser=parse(kinds.whole(2)),
            help="tokens to decode per prompt; default: 64",
        ),
    ] = 64,
    trials: Annotated[
        int,
        typer.Option("--trials", metavar="N", parser=parse(kinds.whole(1)), help="sets to try; default: 200"),
    ] = 200,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", parser=parse(kinds.whole(0)), help="seed of the search; default: 0")
    ] = 0,
    sublayers: Annotated[
        bool, typer.Option("--sublayers", help="skip attention and MLP of layers separately, not only whole layers")
    ] = False,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="also write the result to this file")
    ] = None,
    *,
    model: Annotated[ModelOptions, Take(arguments={"model": "MODEL"})],
) -> int:
    """Search and print the result."""
    from speculant.cli.env import environment
    from speculant.cli.files import JSON, check_result, write_json
    from speculant.cli.loading import load
    from speculant.cli.loading_checks import check_named
    from speculant.cli.prompts import read_prompts
    from speculant.cli.terminal import progress, say
    from speculant.core.errors import UsageError
    from speculant.core.packages import check_packages

    if prompts is None:
        raise UsageError("name a file of a few typical prompts by --prompts.")
    check_result("--json", json, JSON)
    given = [prompt[0] if isinstance(prompt, tuple) else prompt for prompt in read_prompts(prompts)]
    check_named(model)
    check_packages(["optuna"], what="the search of layers to skip", extra="search")
    loaded, tokenizer, _ = load(model, needed="the search leaves layers out")
    from speculant.api.layer_tuning import search_skipped_layers
    from speculant.api.speculator import Speculator

    speculator = Speculator.from_transformers(loaded, tokenizer, method="none", fast=model.fast)
    say(f"decoding {len(given)} prompts, then trying {trials} sets.")
    with progress("searching", trials, "sets") as advance:
        best = search_skipped_layers(
            speculator,
            given,
            tokens=max_new_tokens,
            trials=trials,
            seed=seed,
            sublayers=sublayers,
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
    if json is not None:
        write_json(json, {"environment": environment(speculator.model), "setting": best.setting, **asdict(best)})
    return 0
