"""The library's C++ code, compiled for this very machine when it is first needed, then kept.

The compiled file lies in the user's cache folder under a name made from the source, the compiler and the processor,
so a change of any of them compiles anew. It is built without a runtime of its own for threads: it finds the one that
torch has loaded, since two of them would take the processor from each other.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from speculant.folders import cache_folder

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-w")
SOURCE = Path(__file__).with_name("linear.cpp")


class BuildError(Exception):
    """The code cannot be compiled or loaded here; the message says why, as part of a sentence."""


def load_native() -> ctypes.CDLL:
    """Return the compiled `linear.cpp`, compiling it first if need be (two seconds, said on standard error).

    Raises:
        BuildError: there is no compiler, it failed, or the outcome cannot be loaded.
    """
    if sys.platform != "linux":
        raise BuildError(f"its code has not been tried on {platform.system()}")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise BuildError("there is no C++ compiler (install g++, or name one in CXX)")
    identity = "\n".join([SOURCE.read_text(encoding="utf-8"), compiler, *FLAGS, processor()])
    name = f"linear-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}.so"
    try:
        library = cache_folder() / name
        if not library.exists():
            print("speculant: compiling its code for this processor, once ...", file=sys.stderr)  # noqa: T201
            _compile(compiler, library)
        if library.stat().st_uid != os.getuid():
            raise BuildError(f"{library} belongs to another user; set XDG_CACHE_HOME to a folder of yours")
        loaded = ctypes.CDLL(str(library))
    except OSError as error:
        raise BuildError(f"its code cannot be built or loaded: {error}") from error
    loaded.linear.restype = None
    loaded.linear.argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3, *[ctypes.c_int] * 2]
    return loaded


def _compile(compiler: str, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        # Compiled and linked apart: linking with -fopenmp would bind the file to a second runtime for threads.
        parts, whole = str(Path(folder, "linear.o")), str(Path(folder, "linear.so"))
        for command in ([compiler, *FLAGS, "-c", str(SOURCE), "-o", parts], [compiler, "-shared", parts, "-o", whole]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["no message"]
                raise BuildError(f"{compiler} failed: {lines[-1]}")
        os.replace(whole, library)  # another process may be building the same file


def processor() -> str:
    """Return the processor's name and abilities, on which `-march=native` depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
