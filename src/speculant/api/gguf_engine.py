"""Selects the engine for a GGUF file: Speculant's own passes if they support it and are faster, else llama.cpp.

Measured on an AVX512-VNNI processor, Speculant's own pass over one row of quantised weights takes 0.7 to 0.9 of
llama.cpp's time, and over eight rows 0.2 to 0.3 (benchmarks/passes.md). So `auto` is a rule: own passes on CPUs with
AVX2 or more, for quantised or float32 weights that fit in memory. llama.cpp reads float16 and bfloat16 files directly,
maps weights that do not fit in memory, and offloads layers to accelerators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from speculant.core.errors import OutOfMemoryError, UnsupportedError, UsageError
from speculant.engines.hf.quantized.gguf.loading import PlannedModel, plan_model
from speculant.options.model import ENGINES

AUTO, OWN, LLAMACPP = ENGINES
_FAST = ("AVX2", "AVX512", "AMX")  # prefixes of PyTorch's CPU capability names
_HALF = ("F16", "BF16")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GgufEngine:
    """The engine that runs a file.

    Attributes:
        planned: the model to load for Speculant's own passes; None for llama.cpp.
        reason: the choice and its reason, in one line.
    """

    planned: PlannedModel | None
    reason: str


def choose_engine(
    path: str | Path,
    *,
    engine: str = AUTO,
    dtype: str | None = None,
    attention: str | None = None,
    own: Mapping[str, Any] | None = None,
    llamacpp: Mapping[str, Any] | None = None,
    needed: str = "",
    shown: Callable[[str], str] = str,
) -> GgufEngine:
    """Choose the engine for a file; its weights are not read.

    Args:
        path: path of the file.
        engine: one of `ENGINES`.
        dtype, attention: settings of Speculant's own passes; None for the defaults.
        own: further options of Speculant's own passes, by name; None means the default.
        llamacpp: options specific to llama.cpp, likewise.
        needed: why Speculant's own passes are required; "" if they are not.
        shown: returns the user-visible name of an option.

    Raises:
        ModelNotFoundError, FileError, ModelError: the file does not exist, cannot be read or is damaged.
        UnsupportedError: the requested engine cannot run it, or neither can.
        UsageError: options of both engines, or options that the engine does not have.
    """
    if engine not in ENGINES:
        raise UsageError(f"{shown('engine')} must be one of {', '.join(ENGINES)}, not {engine!r}.")
    options = {"dtype": dtype, "attention": attention, **(own or {})}
    asked = [shown(name) for name, value in options.items() if value is not None]
    of_llamacpp = [shown(name) for name, value in (llamacpp or {}).items() if value is not None]
    _check_options(engine, asked, of_llamacpp, needed)
    if engine == LLAMACPP or of_llamacpp:
        why = "" if engine == LLAMACPP else f": {of_llamacpp[0]} is an option of it"
        return GgufEngine(planned=None, reason=f"decoding with llama.cpp{why}.")
    free = engine == AUTO and not asked and not needed
    try:
        planned = plan_model(path, dtype=dtype, attention=attention)
    except UnsupportedError as error:
        if not free:
            raise
        return GgufEngine(planned=None, reason=_instead(_cause(error)))
    why = find_slower(planned) if free else ""
    if why and find_spec("llama_cpp") is not None:
        return GgufEngine(planned=None, reason=_instead(why))
    way_out = f"; {shown('engine')} llamacpp for llama.cpp's" if free else ""
    return GgufEngine(planned=planned, reason=f"decoding with Speculant's own passes{way_out}.")


def find_slower(planned: PlannedModel) -> str:
    """Return why llama.cpp is the better choice for a file here; "" if it is not."""
    import torch

    plan = planned.plan
    if not torch.backends.cpu.get_cpu_capability().startswith(_FAST):
        return "this processor has no AVX2, which Speculant's own products need to be fast"
    halves = sum(each.size for each in plan.floats.values() if each.kind in _HALF and len(each.shape) > 1)
    if 2 * halves > plan.read_bytes and plan.dtype is torch.float32:
        return "it reads 16-bit floats as they are; --dtype bfloat16 is for Speculant's own passes over them"
    try:
        plan.check_memory()
    except OutOfMemoryError as error:
        return _cause(error)
    if broken := _kernel_error():
        return f"Speculant's own products cannot be compiled here ({broken})"
    return "it was built for an accelerator" if _offloads() else ""


def _kernel_error() -> str:
    """Return why the compiled code is not available; "" if it is."""
    from speculant.engines.hf.cpu.build import BuildError, load_native

    try:
        load_native()
    except BuildError as error:
        return str(error)
    return ""


def _offloads() -> bool:
    """Return whether llama.cpp is installed with accelerator support."""
    if find_spec("llama_cpp") is None:
        return False
    from speculant.engines.llamacpp.library import load_library

    try:
        return bool(load_library().api.llama_supports_gpu_offload())
    except UnsupportedError:
        return False


def _check_options(engine: str, own: list[str], llamacpp: list[str], needed: str) -> None:
    if own and (engine == LLAMACPP or llamacpp):
        why = f"{llamacpp[0]} is an option of llama.cpp, and" if llamacpp else "with llama.cpp's passes,"
        raise UsageError(f"{why} {own[0]} is for Speculant's own passes. Leave one of them out.")
    if llamacpp and (engine == OWN or needed):
        raise UsageError(
            f"{llamacpp[0]} is an option of llama.cpp, which Speculant's own passes do not have. Leave it out."
        )
    if engine == LLAMACPP and needed:
        raise UnsupportedError(f"{needed}, which llama.cpp does not offer. Leave the engine out.")


def _instead(why: str) -> str:
    if find_spec("llama_cpp") is None:
        raise UnsupportedError(
            f"{why}; and llama.cpp, which may run the file, is not installed: pip install 'speculant[llamacpp]'."
        )
    return f"decoding with llama.cpp: {why}."


def _cause(error: Exception) -> str:
    """Return an error's message without its remedy."""
    return str(error).partition(". Use ")[0].partition("; install ")[0]
