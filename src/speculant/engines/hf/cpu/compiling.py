"""Compilation of the C++ code: natively for this processor, or for an instruction set level in a wheel.

Each level is a separate library, compiled from the same sources with other options. Sources select their code by
compiler macros, as in a native build, and need no dispatch. One library with the code of all levels would be unsafe:
the linker keeps a single copy of an inline function, which may be the one with instructions that the processor lacks.

No library is tuned for a particular processor: tuning decides, among other things, which products and sums GCC fuses,
so the same instruction set would give results that differ in the last bit.

A library is linked without an OpenMP runtime: it uses the one that torch has loaded, since two runtimes would compete
for the processor. Torch's is GCC's, so other compilers, whose code needs their own runtime, are refused.

This file uses only the standard library, because `setup.py` reads it where nothing else is installed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

FLAGS = ("-std=c++17", "-O3", "-mtune=generic", "-fopenmp", "-fPIC", "-w")
NATIVE = ("-march=native",)
LINKING = ("-shared", "-s", "-Wl,-Bsymbolic")  # functions call each other, not others of the same name
FOLDER = Path(__file__).parent
SOURCES = tuple(sorted(FOLDER.glob("*.cpp")))
HEADERS = tuple(sorted(FOLDER.glob("*.h")))

# Compiler options for instruction sets, by their names in /proc/cpuinfo.
OPTIONS = {
    "avx2": "-mavx2",
    "fma": "-mfma",
    "f16c": "-mf16c",
    "bmi1": "-mbmi",
    "bmi2": "-mbmi2",
    "avx_vnni": "-mavxvnni",
    "avx512f": "-mavx512f",
    "avx512bw": "-mavx512bw",
    "avx512cd": "-mavx512cd",
    "avx512dq": "-mavx512dq",
    "avx512vl": "-mavx512vl",
    "avx512_vnni": "-mavx512vnni",
    "avx512_bf16": "-mavx512bf16",
    "amx_tile": "-mamx-tile",
    "amx_int8": "-mamx-int8",
    "amx_bf16": "-mamx-bf16",
}


@dataclass(frozen=True, slots=True)
class InstructionLevel:
    """The instruction sets that one library of a wheel uses.

    Attributes:
        name: name of the level, used in the library's file name.
        sets: instruction sets, by their names in /proc/cpuinfo.
        gcc: first version of GCC that supports them all.
    """

    name: str
    sets: tuple[str, ...]
    gcc: int

    @property
    def options(self) -> tuple[str, ...]:
        """Compiler options of the level."""
        return tuple(OPTIONS[each] for each in self.sets)

    def is_supported(self, flags: Collection[str]) -> bool:
        """Return whether a processor with these flags can run the library."""
        return set(self.sets) <= set(flags)


_AVX2 = ("avx2", "fma", "f16c", "bmi1", "bmi2")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_VNNI = (*_AVX512, "avx512_vnni")
_BF16 = (*_VNNI, "avx512_bf16")
LEVELS = (  # a processor runs the first one that it supports
    InstructionLevel("amx", (*_BF16, "amx_tile", "amx_int8", "amx_bf16"), 11),
    InstructionLevel("avx512-bf16", _BF16, 10),
    InstructionLevel("avx512-vnni", _VNNI, 8),
    InstructionLevel("avx512", _AVX512, 7),
    InstructionLevel("avx-vnni", (*_AVX2, "avx_vnni"), 11),
    InstructionLevel("avx2", _AVX2, 7),
)


class BuildError(Exception):
    """The code cannot be compiled or loaded here; the message is the reason, phrased as part of a sentence."""


def source_digest() -> str:
    """Return a digest of the sources and of the flags common to all libraries."""
    texts = [source.read_text(encoding="utf-8") for source in (*SOURCES, *HEADERS)]
    return hashlib.blake2b("\n".join([*texts, *FLAGS, *LINKING]).encode(), digest_size=8).hexdigest()


def named_compiler() -> list[str]:
    """Return the compiler command: the value of CXX, or g++.

    Raises:
        ValueError: CXX is not a valid command line.
    """
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def compiler_version(compiler: Sequence[str]) -> str:
    """Return the output of the compiler's --version.

    Raises:
        BuildError: there is no such compiler, or it is not GCC.
    """
    name = shlex.join(compiler)
    if not shutil.which(compiler[0]):
        raise BuildError(f"there is no C++ compiler {name} (install g++, or name one in CXX)")
    version = _run([*compiler, "--version"])
    if "Free Software Foundation" not in version:
        raise BuildError(f"{name} is not GCC, whose OpenMP runtime comes with torch (install g++, or unset CXX)")
    return version


def check_level(compiler: Sequence[str], level: InstructionLevel) -> None:
    """Check that the compiler supports the instruction sets of a level.

    Raises:
        BuildError: it does not.
    """
    try:
        _run([*compiler, *level.options, "-fsyntax-only", "-x", "c++", os.devnull])
    except BuildError as error:
        raise BuildError(
            f"the level {level.name} needs GCC {level.gcc} or later ({error}); "
            f"name another compiler in CXX, or levels without {level.name}"
        ) from None


def compile_library(
    compiler: Sequence[str], options: Sequence[str], library: Path, done: Callable[[], object] = lambda: None
) -> None:
    """Compile the sources to a library.

    Args:
        compiler: the compiler command.
        options: processor options, `NATIVE` or those of a level.
        library: the output file, replaced atomically when complete; its folder is created.
        done: called after each source.

    Raises:
        BuildError: the compiler failed.
        OSError: the folder cannot be written to.
    """
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        # Compiled and linked separately: linking with -fopenmp would bind the file to a second OpenMP runtime.
        objects, linked = [str(Path(folder, f"{source.stem}.o")) for source in SOURCES], str(Path(folder, "layers.so"))
        commands = [
            [*compiler, *FLAGS, *options, "-c", str(source), "-o", compiled]
            for source, compiled in zip(SOURCES, objects, strict=True)
        ]
        with ThreadPoolExecutor() as pool:  # the compiler runs in processes of its own
            for _ in pool.map(_run, commands):
                done()
        _run([*compiler, *LINKING, *objects, "-o", linked])
        os.replace(linked, library)  # another process may be building the same file


def _run(command: Sequence[str]) -> str:
    # In one language, because the version is part of the file's name.
    english = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=english)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BuildError(f"{command[0]} failed: {lines[-1]}")
    return done.stdout
