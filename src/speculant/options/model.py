"""How a model is loaded and run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from speculant.options import kinds, option

BUNDLED = "bundled"
MODEL_HELP = "folder, hub id or .gguf file; default: bundled, the story model included in the package"
ENGINES = ("auto", "speculant", "llamacpp")
ACTIVATIONS = ("int8", "float")

_option = partial(option.option, panel="Model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How a model is loaded and run.

    Attributes:
        model: a folder, a hub id or a GGUF file; None for the bundled model.
        dtype, device, attention, quantize, packed_cache, activations, fast: as in `Speculator.from_pretrained`.
        engine: whose passes run a GGUF file, one of `ENGINES`.
        threads: number of CPU threads; None for a number that fits the model.
    """

    model: str | None = _option(
        None,
        MODEL_HELP,
        kinds.text(f"name a folder or a hub id, or leave the option out for the {BUNDLED} model", metavar="PATH|ID"),
    )
    dtype: str | None = _option(
        None, "float32, bfloat16, float16 or auto; default: float32 on a CPU, else auto", kinds.name()
    )
    device: str | None = _option(
        None,
        "cpu, cuda, cuda:1, mps, or auto to spread the model over devices; default: an accelerator if there is one",
        kinds.name(),
    )
    attention: str | None = _option(
        None,
        "attention implementation; sdpa and eager can verify trees; default: the model's",
        kinds.name(),
        flag="--attn",
    )
    quantize: Literal["int8", "int4"] | None = _option(
        None,
        "quantise a float checkpoint on loading, on CPUs: int8 or int4; default: no",
        kinds.choice("int8", "int4"),
    )
    packed_cache: bool | None = _option(
        None,
        "keep packed quantised weights in the cache folder, which the next start maps; default: on",
        kinds.FLAG,
        tristate=True,
    )
    fast: bool | None = _option(
        None,
        "run passes with Speculant's kernels on CPUs, as CUDA graphs on GPUs; default: on CPUs, where faster",
        kinds.FLAG,
        tristate=True,
    )
    engine: str = _option(
        "auto",
        "engine for GGUF files: speculant, llamacpp, or auto for Speculant's passes where faster; default: auto",
        kinds.choice(*ENGINES),
    )
    activations: str | None = _option(
        None,
        "activations of quantised weights: int8 rounds them as llama.cpp does, float keeps them; default: int8",
        kinds.choice(*ACTIVATIONS),
    )
    threads: int | None = _option(
        None, "CPU threads; default: by the model's size, or OMP_NUM_THREADS", kinds.whole(1, 4096)
    )
