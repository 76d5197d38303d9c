"""Loads the library's C++ code: from the wheel, or compiled for this processor when it is first needed.

A wheel contains libraries for several instruction set levels (`packaged.py`); the highest one that the processor
supports is loaded. If there is none, as in a source checkout, or it is unusable, the code is compiled (`compiling.py`)
and kept in the user's cache folder under a name derived from the sources, the flags, the compiler and its version, and
the processor, so a change of any of them compiles again.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import sys
from pathlib import Path

from tqdm import tqdm

from speculant.core.folders import cache_folder
from speculant.engines.hf.cpu.compiling import (
    NATIVE,
    SOURCES,
    BuildError,
    compile_library,
    compiler_version,
    named_compiler,
    source_digest,
)
from speculant.engines.hf.cpu.packaged import PACKAGED, find_library

__all__ = ["KINDS", "SIGNATURES", "BuildError", "load_native", "processor", "source_digest"]

logger = logging.getLogger(__name__)

# Arguments and results: pointers, sizes, floats and unsigned 64-bit integers.
KINDS = {"p": ctypes.c_void_p, "s": ctypes.c_int64, "i": ctypes.c_int, "u": ctypes.c_uint64}
SIGNATURES = {  # functions called from Python: arguments and result, "" for none
    "linear": ("pppsssii", ""),
    "linear_bf16": ("pppsssi", ""),
    "has_linear_bf16": ("", "i"),
    "max_rows": ("i", "i"),
    "attention": ("psi", ""),
    "move_rows": ("pspss", ""),
    "before_attention": ("ppppsi", ""),
    "after_attention": ("ppppssi", ""),
    "layer": ("pppppspi", ""),
    "layers": ("pspi", ""),
    "copy_rows": ("psspsp", "i"),
    "head_step": ("ppsppi", ""),
    "head_draft": ("pppspsi", ""),
    "norm": ("ppps", ""),
    "split_heads": ("pppppps", ""),
    "add_norm": ("ppppps", ""),
    "gate": ("ppppsi", ""),
    "checksum": ("psi", "u"),
    "quantized_linear": ("ppppsii", ""),
    "quantized_linears": ("pppipsii", ""),
    "quantized_rows": ("ppsp", ""),
    "pack_gguf_blocks": ("ippsspppppi", "i"),
    "experts": ("pppppssi", ""),
}


def load_native(packaged: Path = PACKAGED) -> ctypes.CDLL:
    """Return the compiled code, compiling it first if necessary (some seconds). The log says which library it is.

    Args:
        packaged: folder of the libraries that came with the package.

    Raises:
        BuildError: there is no library for this processor, and GCC is missing or failed, or its output does not load.
    """
    if sys.platform != "linux":
        raise BuildError(f"its code has not been tried on {platform.system()}")
    loaded, reason = _load_packaged(packaged)
    if loaded is None:
        try:
            loaded = _load_compiled()
        except (OSError, ValueError, BuildError) as error:
            message = str(error) if isinstance(error, BuildError) else f"its code cannot be built or loaded: {error}"
            raise BuildError(f"{message}; {reason}" if reason else message) from error
    for name, (arguments, result) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = KINDS.get(result), [KINDS[kind] for kind in arguments]
    return loaded


def _load_packaged(folder: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the package's library, or None with the reason, which is empty if the package has no libraries."""
    try:
        library = find_library(folder, processor_flags())
        if library is None:
            return None, ""
        loaded = ctypes.CDLL(str(library))
    except (BuildError, OSError) as error:
        logger.warning("%s; the code for CPUs is compiled instead.", error)
        return None, str(error)
    logger.info("the code for CPUs is the package's %s.", library.name)
    return loaded, ""


def _load_compiled() -> ctypes.CDLL:
    """Return the code compiled for this processor, from the cache or compiled now."""
    compiler = named_compiler()
    identity = "\n".join([source_digest(), *NATIVE, *compiler, compiler_version(compiler), processor()])
    library = cache_folder() / f"layers-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}.so"
    loaded = _load(library) if library.exists() else None
    if loaded is None:
        with tqdm(total=len(SOURCES), desc="compiling for this processor", leave=False, disable=None) as bar:
            compile_library(compiler, NATIVE, library, bar.update)
        _check_owner(library)
        loaded = ctypes.CDLL(str(library))
    logger.info("the code for CPUs is %s, compiled for this processor.", library)
    return loaded


def _load(library: Path) -> ctypes.CDLL | None:
    """Return a library compiled earlier; None if it does not load, for example with other system libraries."""
    _check_owner(library)
    try:
        return ctypes.CDLL(str(library))
    except OSError:
        return None


def _check_owner(library: Path) -> None:
    if library.stat().st_uid != os.getuid():
        raise BuildError(f"{library} belongs to another user; set XDG_CACHE_HOME to a folder of yours")


def processor() -> str:
    """Return the processor's name and instruction sets, which determine the effect of `-march=native`."""
    lines = [f"{field}: {value}" for field, value in _cpu_fields() if field in ("model name", "flags", "Features")]
    return "\n".join(sorted(set(lines))) or platform.processor()


def processor_flags() -> frozenset[str]:
    """Return the instruction sets common to all cores, by their names in /proc/cpuinfo."""
    flags = [frozenset(value.split()) for field, value in _cpu_fields() if field == "flags"]
    return frozenset.intersection(*flags) if flags else frozenset()


def _cpu_fields() -> list[tuple[str, str]]:
    """Return the names and values in /proc/cpuinfo for all cores; an empty list without such a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
