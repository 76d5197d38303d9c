"""`speculant quantize`: rounds a model's weights to 8 or 4 bits, into a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.core.errors import FileError
from speculant.core.hub import asking
from speculant.options import kinds, option
from speculant.options.model import ModelOptions

HELP = """\
Write a model with quantised weights into a new folder, which loads on CPUs like any other model.

GPTQ, AWQ, compressed-tensors and torchao checkpoints are packed without requantising. Without this command, --quantize
rounds a model on loading and keeps the result in the cache folder."""

EXAMPLES = """
speculant quantize your/model --to small                    # int8
speculant quantize your/model --to small --quantize int4 --sample notes.txt
speculant generate "Why?" --model small
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizingOptions:
    """What is written, and measured."""

    to: str = option.option(option.REQUIRED, "new folder", kinds.name(metavar="FOLDER"))
    sample: str | None = option.option(
        None, "text on which to measure the change; default: a built-in one", kinds.FILE_NAME
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quantize", cls=Command, help=HELP, epilog=EXAMPLES)(bind(quantize))


def quantize(
    options: QuantizingOptions,
    named: Annotated[ModelOptions, Take(only=("model", "quantize"), arguments={"model": "MODEL"})],
) -> int:
    """Check the options, load, quantise and write."""
    from speculant.api.loading import find_model
    from speculant.cli.loading import model_source, silence_loading
    from speculant.cli.terminal import importing, say, waiting

    source = find_model(model_source(named.model))
    text = None if options.sample is None else _read(Path(options.sample))
    if not Path(source).exists():
        say(asking(source))
    with importing("PyTorch and transformers"):
        from speculant.api.quantize import quantize_model

        silence_loading()
    with waiting(f"quantising {named.model or 'the bundled model'}"):
        summary = quantize_model(source, options.to, scheme=named.quantize, sample=text)
    say(str(summary))
    print(f"speculant generate PROMPT --model {options.to} runs it.")
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"--sample {path} cannot be read: {error}.") from error
