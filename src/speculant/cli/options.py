"""The options that several commands share, and the speculator they describe."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from speculant.cli.compiling import compiling_said
from speculant.cli.output import say
from speculant.core.errors import FileError, MemoryFileError, UnsupportedError
from speculant.registry import find_method

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_LARGEST = 2**63 - 1


def whole(least: int) -> Callable[[str], int]:
    """Return an argument type: a whole number of at least `least`."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= _LARGEST:
            raise argparse.ArgumentTypeError(f"must be {least} or more, not {text}")
        return value

    return number


def node_count(text: str) -> int | str:
    """Read how many nodes a draft may have."""
    return text if text == "auto" else whole(0)(text)


def share(text: str) -> float:
    """Read a number above 0 and up to 1; transformers takes larger ones without a word and ignores them."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, not {text}")
    return value


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add --model, --dtype, --device, --attn and --fast."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", metavar="PATH|ID", help="a folder or a hub id; default: the bundled story model")
    add_loading_options(group)


def add_loading_options(group: argparse._ArgumentGroup) -> None:
    """Add --dtype, --device, --attn and --fast, which say how a model is loaded and run."""
    group.add_argument("--dtype", help="float32, bfloat16, float16 or auto; default: float32 on a CPU, else auto")
    group.add_argument("--device", help="cpu, cuda, cuda:1, mps, or auto to spread the model; default: what there is")
    group.add_argument("--attn", metavar="NAME", help="attention: sdpa or eager verify trees; default: the model's")
    group.add_argument(
        "--fast",
        action=argparse.BooleanOptionalAction,
        help="run passes with code of our own, on CPUs, as graphs on CUDA; default: on CPUs, where it pays",
    )


def add_drafting_options(parser: argparse.ArgumentParser) -> None:
    """Add --method, --nodes, --memory and --memory-limit."""
    group = parser.add_argument_group("drafting")
    group.add_argument("--method", metavar="NAME", default="mix", help="see `speculant methods`; default: mix")
    group.add_argument(
        "--nodes",
        metavar="N|auto",
        type=node_count,
        help="most tokens per draft; default: auto, as many as pay in each round",
    )
    group.add_argument("--memory", metavar="FILE", help="begin with this memory if it exists, and save it there")
    group.add_argument(
        "--memory-limit", metavar="MB", type=whole(1), default=256, help="most the memory may take; default: 256"
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what text is wanted."""
    group = parser.add_argument_group("text")
    group.add_argument("--max-new-tokens", metavar="N", type=whole(1), default=256, help="default: 256")
    group.add_argument(
        "--temperature", metavar="T", type=float, default=0.0, help="0 for greedy (the default), above 0 to sample"
    )
    group.add_argument("--top-p", metavar="P", type=share, help="sample from the likeliest tokens that make up P")
    group.add_argument("--top-k", metavar="K", type=whole(0), help="sample from the K likeliest tokens")
    group.add_argument("--seed", metavar="N", type=whole(0), help="makes sampling repeatable")
    group.add_argument("--stop", metavar="TEXT", action="append", help="end the text after this; may be repeated")


def text_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return what `add_sampling_options` read as the options of `Speculator.stream`."""
    return {name: getattr(args, name) for name in ("max_new_tokens", "temperature", "top_p", "top_k", "seed", "stop")}


def build_speculator(args: argparse.Namespace) -> Speculator:
    """Load the model and wrap it; `args.memory` becomes None if that file cannot be used.

    Raises:
        SpeculantError: the method or the model cannot be used.
    """
    method = find_method(args.method)  # a misspelled name should not cost the loading of a model
    if args.memory is not None and not method.memory:
        raise UnsupportedError(f"the method '{method.name}' keeps no memory; leave out --memory, or use --method mix.")
    quieten()
    if args.model is not None and not Path(args.model).exists():
        say(f"there is no folder {args.model} here; the hub is asked for it, which may take a while.")
    from speculant.api.speculator import Speculator

    with compiling_said():
        speculator = Speculator.from_pretrained(
            args.model,
            dtype=args.dtype,
            device=args.device,
            attention=args.attn,
            method=args.method,
            nodes=args.nodes,
            memory_limit=args.memory_limit << 20,
            fast=args.fast,
        )
        if args.memory is not None and not recall(speculator, args.memory):
            args.memory = None
    return speculator


def recall(speculator: Speculator, memory: str) -> bool:
    """Begin with a memory file if it exists; say so and go on without if it cannot be used, since text needs none.

    Returns:
        Whether what is learned may be saved there: a file that was not understood is not to be overwritten.
    """
    try:
        if Path(memory).exists():
            speculator.load(memory)
    except (MemoryFileError, FileError, UnsupportedError) as error:
        say(f"warning: {error} Drafting begins with an empty memory; the file is left as it is, nothing is saved.")
        return False
    return True


def quieten() -> None:
    """Keep the progress bars and the advice of transformers and the hub's client out of the output."""
    from transformers.utils import logging as transformers_logging

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
