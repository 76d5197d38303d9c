"""`speculant gguf`: converts a transformers model to a GGUF file for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.core.errors import UsageError
from speculant.core.hub import asking
from speculant.options import kinds, option
from speculant.options.model import ModelOptions

HELP = """\
Write a model and its tokenizer as a GGUF file, which llama.cpp runs.

Llama, Mistral, Qwen2 and Qwen3 models with a tokenizer of the Llama 2 kind can be written, with the checkpoint's
weights or in another format. Requires speculant[llamacpp]."""

EXAMPLES = """
speculant gguf your/model -o model.gguf           # the checkpoint's weights
speculant gguf your/model -o q8.gguf --format q8_0  # quantised by llama.cpp
speculant generate "Why?" --model small.gguf
"""
FORMATS = "f32, f16, bf16, q8_0, q6_k, q5_k, q4_k, q4_0"  # those of engines/llamacpp/quantize.py


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOptions:
    """What is written."""

    out: str = option.option(option.REQUIRED, "new file, ending in .gguf", kinds.FILE_NAME, aliases=("-o",))
    format: str | None = option.option(
        None, f"format of the weights: {FORMATS}; default: the checkpoint's own", kinds.name()
    )
    force: bool = option.option(False, "replace an existing GGUF file", kinds.FLAG)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gguf", cls=Command, help=HELP, epilog=EXAMPLES)(bind(gguf))


def gguf(
    options: ConversionOptions, named: Annotated[ModelOptions, Take(only=("model",), arguments={"model": "MODEL"})]
) -> int:
    """Check the options, load the model, write the file."""
    from speculant.api.gguf_format import check_gguf_format
    from speculant.api.loading import find_model
    from speculant.cli.gguf_loading import is_gguf_model
    from speculant.cli.loading import silence_loading
    from speculant.cli.terminal import importing, say, waiting

    path, model = Path(options.out), named.model
    check_gguf_output(path, force=options.force)
    if is_gguf_model(model):
        raise UsageError(f"{model} is already a GGUF file. Name the folder or hub id of a transformers model.")
    source = find_model(model)
    check_gguf_format(options.format)
    if not Path(source).exists():
        say(asking(source))
    with importing("PyTorch and transformers"):
        from speculant.api.gguf import convert_model

        silence_loading()
    with waiting(f"writing {path}"):
        convert_model(model, path, kind=options.format)
    print(f"{path}: {path.stat().st_size / 1e6:,.1f} MB. speculant generate PROMPT --model {path} runs it.")
    return 0


def check_gguf_output(path: Path, *, force: bool) -> None:
    """Check an output file for a model: named .gguf, writable, and new or, with `force`, a GGUF file.

    Raises:
        UsageError: it would destroy another file, or would not be recognised.
        FileError: it cannot be written.
    """
    from speculant.cli.files import check_writable
    from speculant.engines.llamacpp.file import begins_as_gguf

    check_writable(str(path))
    if path.suffix != ".gguf":
        raise UsageError(f"--out {path} does not end in .gguf, by which such files are recognised. Add it.")
    if path.exists() and not begins_as_gguf(path):
        raise UsageError(f"--out {path} exists and is not a GGUF file; it is not overwritten. Name another file.")
    if path.exists() and not force:
        raise UsageError(f"{path} is already a GGUF file. Name another file, or add --force to replace it.")
