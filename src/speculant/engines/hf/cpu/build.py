"""The library's C++ code, compiled for this processor when it is first needed, then kept.

The compiled file is in the user's cache folder under a name made from the source, the flags, the compiler with its
version and the processor, so a change of any of them compiles again. It is linked without an OpenMP runtime: it uses
the one that torch has loaded, since two of them would compete for the processor. That one is GCC's, so other compilers
are refused: their code asks for their own runtime.

`linear_bf16.cpp` gets flags of its own where the processor has AVX512-BF16 instructions; elsewhere it contains nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from speculant.core.folders import cache_folder

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-w")
AVX512_BF16 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16")
LINKING = ("-shared", "-Wl,-Bsymbolic")  # its functions call each other, not others of the same names
FOLDER = Path(__file__).parent
SOURCES = tuple(
    FOLDER / f"{name}.cpp"
    for name in (
        "linear",
        "linear_bf16",
        "layer",
        "attention",
        "head_step",
        "head_draft",
        "checksum",
        "quantized",
        "gguf_blocks",
        "quantized_rows",
        "experts",
    )
)
HEADERS = tuple(
    FOLDER / f"{name}.h"
    for name in (
        "vectors",
        "tiles",
        "attention",
        "layer",
        "head_step",
        "quantized",
        "quantized_vectors",
        "quantized_scales",
        "quantized_activations",
        "quantized_kernel",
        "quantized_amx",
    )
)

# Arguments and results: pointers, sizes, numbers and unsigned 64-bit numbers.
KINDS = {"p": ctypes.c_void_p, "s": ctypes.c_int64, "i": ctypes.c_int, "u": ctypes.c_uint64}
SIGNATURES = {  # of the functions that are called from Python: arguments and result, "" for none
    "linear": ("pppsssii", ""),
    "linear_bf16": ("pppsssi", ""),
    "has_linear_bf16": ("", "i"),
    "most_rows": ("i", "i"),
    "attention": ("pi", ""),
    "before_attention": ("ppppi", ""),
    "after_attention": ("ppppssi", ""),
    "layer": ("ppppppi", ""),
    "layers": ("pspi", ""),
    "head_step": ("ppsppi", ""),
    "head_draft": ("pppspsi", ""),
    "norm": ("ppps", ""),
    "split_heads": ("pppppp", ""),
    "add_norm": ("ppppps", ""),
    "gate": ("ppppsi", ""),
    "checksum": ("psi", "u"),
    "quantized_linear": ("ppppsii", ""),
    "quantized_linears": ("pppipsii", ""),
    "quantized_rows": ("ppsp", ""),
    "pack_gguf_blocks": ("ippsspppppi", "i"),
    "experts": ("pppppssi", ""),
}


class BuildError(Exception):
    """The code cannot be compiled or loaded here; the message gives the reason, as part of a sentence."""


def load_native() -> ctypes.CDLL:
    """Return the compiled code; compile it first if need be (some seconds, with a message in the log).

    Raises:
        BuildError: there is no GCC, it failed, or the compiled file cannot be loaded.
    """
    if sys.platform != "linux":
        raise BuildError(f"its code has not been tried on {platform.system()}")
    try:
        compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
        identity = "\n".join([source_digest(), *compiler, _version(compiler), processor()])
        library = cache_folder() / f"layers-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}.so"
        loaded = _load(library) if library.exists() else None
        if loaded is None:
            with tqdm(total=len(SOURCES), desc="compiling for this processor", leave=False, disable=None) as bar:
                _compile(compiler, library, bar)
            _check_owner(library)
            loaded = ctypes.CDLL(str(library))
    except (OSError, ValueError) as error:
        raise BuildError(f"its code cannot be built or loaded: {error}") from error
    for name, (arguments, result) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = KINDS.get(result), [KINDS[kind] for kind in arguments]
    return loaded


def source_digest() -> str:
    """Return a digest of the source and of the flags that it is compiled with."""
    texts = [source.read_text(encoding="utf-8") for source in (*SOURCES, *HEADERS)]
    return hashlib.blake2b("\n".join([*texts, *FLAGS, *AVX512_BF16, *LINKING]).encode(), digest_size=8).hexdigest()


def flags(source: Path) -> tuple[str, ...]:
    """Return the compiler's flags for one source file on this processor."""
    has_bf16 = "avx512_bf16" in processor().split()
    return (*FLAGS, *AVX512_BF16) if source.stem == "linear_bf16" and has_bf16 else FLAGS


def _version(compiler: list[str]) -> str:
    """Return the output of the compiler's --version."""
    name = shlex.join(compiler)
    if not shutil.which(compiler[0]):
        raise BuildError(f"there is no C++ compiler {name} (install g++, or name one in CXX)")
    version = _run([*compiler, "--version"])
    if "Free Software Foundation" not in version:
        raise BuildError(f"{name} is not GCC, whose OpenMP runtime comes with torch (install g++, or unset CXX)")
    return version


def _load(library: Path) -> ctypes.CDLL | None:
    """Return a library that was compiled before; None if it does not load, as with other system libraries."""
    _check_owner(library)
    try:
        return ctypes.CDLL(str(library))
    except OSError:
        return None


def _check_owner(library: Path) -> None:
    if library.stat().st_uid != os.getuid():
        raise BuildError(f"{library} belongs to another user; set XDG_CACHE_HOME to a folder of yours")


def _compile(compiler: list[str], library: Path, bar: tqdm) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        # Compiled and linked separately: linking with -fopenmp would bind the file to a second OpenMP runtime.
        objects, linked = [str(Path(folder, f"{source.stem}.o")) for source in SOURCES], str(Path(folder, "layers.so"))
        commands = [
            [*compiler, *flags(source), "-c", str(source), "-o", compiled]
            for source, compiled in zip(SOURCES, objects, strict=True)
        ]
        with ThreadPoolExecutor() as pool:  # the compiler runs in processes of its own
            for _ in pool.map(_run, commands):
                bar.update()
        _run([*compiler, *LINKING, *objects, "-o", linked])
        os.replace(linked, library)  # another process may be building the same file


def _run(command: list[str]) -> str:
    # In one language, because the version is part of the file's name.
    english = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=english)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BuildError(f"{command[0]} failed: {lines[-1]}")
    return done.stdout


def processor() -> str:
    """Return the processor's name and instruction sets, on which `-march=native` depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
