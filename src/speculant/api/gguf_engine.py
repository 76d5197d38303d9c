"""Whose passes run a GGUF file: Speculant's own where they can and are faster, llama.cpp's where not.

Measured on an AVX512-VNNI processor, a pass of Speculant's own over one row of quantised weights takes 0.7 to 0.9 of
llama.cpp's time, and one over eight rows 0.2 to 0.3 (benchmarks/passes.md). So `auto` is a rule: own passes on CPUs
with AVX2 or more, for quantised or float32 weights, where the memory is there. llama.cpp reads files of float16 and
bfloat16 as they are, maps weights that do not fit into memory, and offloads layers to accelerators.
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
_FAST = ("AVX2", "AVX512", "AMX")  # beginnings of what PyTorch calls processors
_HALF = ("F16", "BF16")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GgufEngine:
    """Whose passes run a file.

    Attributes:
        planned: what is to be loaded for Speculant's own; None for llama.cpp.
        reason: which and why, in a line.
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
    """Choose whose passes run a file; nothing of its weights is read.

    Args:
        path: of the file.
        engine: one of `ENGINES`.
        dtype, attention: of Speculant's own passes; None for the defaults.
        own: further options of theirs, by name; None is a default.
        llamacpp: options that llama.cpp alone has, in the same way.
        needed: why it must be Speculant's own passes; "" if it need not.
        shown: how users know an option of a name.

    Raises:
        ModelNotFoundError, FileError, ModelError: there is no such file, or it is damaged.
        UnsupportedError: the engine that was asked for cannot run it, or neither can.
        UsageError: options of both were given, or options that the engine does not have.
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
    """Return why llama.cpp suits a file better here; "" if it does not."""
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
    """Return why there is no compiled code here; "" if there is."""
    from speculant.engines.hf.cpu.build import BuildError, load_native

    try:
        load_native()
    except BuildError as error:
        return str(error)
    return ""


def _offloads() -> bool:
    """Return whether llama.cpp is installed and runs layers on an accelerator."""
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
    """Return what an error says without its way out."""
    return str(error).partition(". Use ")[0].partition("; install ")[0]
