"""The library's C++ code, compiled for this very machine when it is first needed, then kept.

The compiled file lies in the user's cache folder under a name made from the source, the compiler with its version and
the processor, so a change of any of them compiles anew. It is built without a runtime of its own for threads: it finds
the one that torch has loaded, since two of them would take the processor from each other. That one is GCC's, so other
compilers are refused: what they make of the code asks for theirs.
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
from pathlib import Path

from speculant.core.folders import cache_folder

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-w")
SOURCES = tuple(Path(__file__).with_name(name) for name in ("linear.cpp", "layer.cpp", "attention.cpp"))
LINKING = ("-shared", "-Wl,-Bsymbolic")  # its functions call each other, not others of the same names
HEADERS = tuple(Path(__file__).with_name(name) for name in ("vectors.h", "attention.h"))

# Of what the functions take: pointers, sizes and numbers.
KINDS = {"p": ctypes.c_void_p, "s": ctypes.c_int64, "i": ctypes.c_int}
SIGNATURES = {
    "linear": "pppsssii",
    "attention": "pi",
    "enter": "ppppi",
    "leave": "ppppssi",
    "layer": "pppppi",
}


class BuildError(Exception):
    """The code cannot be compiled or loaded here; the message says why, as part of a sentence."""


def load_native() -> ctypes.CDLL:
    """Return the compiled code, compiling it first if need be (some seconds, said on standard error).

    Raises:
        BuildError: there is no GCC, it failed, or the outcome cannot be loaded.
    """
    if sys.platform != "linux":
        raise BuildError(f"its code has not been tried on {platform.system()}")
    try:
        compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
        texts = [source.read_text(encoding="utf-8") for source in (*SOURCES, *HEADERS)]
        identity = "\n".join([*texts, *compiler, _version(compiler), *FLAGS, *LINKING, processor()])
        library = cache_folder() / f"layers-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}.so"
        loaded = _load(library) if library.exists() else None
        if loaded is None:
            print("speculant: compiling its code for this processor, once ...", file=sys.stderr)  # noqa: T201
            _compile(compiler, library)
            _check_owner(library)
            loaded = ctypes.CDLL(str(library))
    except (OSError, ValueError) as error:
        raise BuildError(f"its code cannot be built or loaded: {error}") from error
    for name, kinds in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = None, [KINDS[kind] for kind in kinds]
    return loaded


def _version(compiler: list[str]) -> str:
    """Return what the compiler says of itself."""
    name = shlex.join(compiler)
    if not shutil.which(compiler[0]):
        raise BuildError(f"there is no C++ compiler {name} (install g++, or name one in CXX)")
    said = _run([*compiler, "--version"])
    if "Free Software Foundation" not in said:
        raise BuildError(f"{name} is not GCC, whose runtime for threads torch brings along (install g++, or unset CXX)")
    return said


def _load(library: Path) -> ctypes.CDLL | None:
    """Load what was compiled before; None if it no longer works, as after a crash or under other system libraries."""
    _check_owner(library)
    try:
        return ctypes.CDLL(str(library))
    except OSError:
        return None


def _check_owner(library: Path) -> None:
    if library.stat().st_uid != os.getuid():
        raise BuildError(f"{library} belongs to another user; set XDG_CACHE_HOME to a folder of yours")


def _compile(compiler: list[str], library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        # Compiled and linked apart: linking with -fopenmp would bind the file to a second runtime for threads.
        parts, whole = [str(Path(folder, f"{source.stem}.o")) for source in SOURCES], str(Path(folder, "layers.so"))
        for source, part in zip(SOURCES, parts, strict=True):
            _run([*compiler, *FLAGS, "-c", str(source), "-o", part])
        _run([*compiler, *LINKING, *parts, "-o", whole])
        os.replace(whole, library)  # another process may be building the same file


def _run(command: list[str]) -> str:
    # The version is part of the file's name and must not change with the user's language.
    english = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=english)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BuildError(f"{command[0]} failed: {lines[-1]}")
    return done.stdout


def processor() -> str:
    """Return the processor's name and abilities, on which `-march=native` depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
