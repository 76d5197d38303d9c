"""Wheels with compiled code: `make wheel`, or `pip wheel . --config-settings=--build-option=--levels=all`.

Without `--levels` a wheel contains no compiled code, and code is compiled where it is first used.
"""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.errors import OptionError, PlatformError

sys.path.insert(0, str(Path(__file__).parent / "src"))
from speculant.engines.hf.cpu.compiling import (
    LEVELS,
    BuildError,
    check_level,
    compile_library,
    compiler_version,
    named_compiler,
)
from speculant.engines.hf.cpu.packaged import PACKAGED, write_list

SOURCE = Path(__file__).parent / "src"


class Wheel(bdist_wheel):
    """A wheel with a library for each level; it fits any Python 3, since no library uses Python's interface."""

    user_options = [*bdist_wheel.user_options, ("levels=", None, "levels of instruction sets to compile for, or all")]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.levels = ""
        self.libraries: list[Path] = []

    def finalize_options(self) -> None:
        known = {level.name: level for level in LEVELS}
        names = known if self.levels == "all" else [name.strip() for name in self.levels.split(",") if name.strip()]
        if unknown := [name for name in names if name not in known]:
            raise OptionError(f"there is no level {unknown[0]}; there are {', '.join(known)}, or all of them by all")
        self.chosen = [known[name] for name in names]
        if self.chosen:
            self.distribution.has_ext_modules = lambda: True  # files go to where a platform's are installed
        super().finalize_options()

    def run(self) -> None:
        if self.chosen:
            self._compile()
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", platform_tag(self.libraries)) if self.libraries else super().get_tag()

    def _compile(self) -> None:
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise PlatformError("compiled code is packaged on Linux and x86-64 alone; leave out --levels")
        folder = Path(self.get_finalized_command("build").build_lib) / PACKAGED.relative_to(SOURCE.resolve())
        try:
            compiler = named_compiler()
            compiler_version(compiler)
            for level in self.chosen:
                check_level(compiler, level)
            for level in self.chosen:
                self.announce(f"compiling for {level.name}", level=2)
                library = folder / f"{level.name}.so"
                compile_library(compiler, level.options, library)
                self.libraries.append(library)
        except (BuildError, ValueError) as error:
            raise PlatformError(f"the code cannot be compiled: {error}") from error
        write_list(folder, self.libraries)


# Policies of manylinux (PEP 600): the newest versions of symbols that systems of each are sure to have.
POLICIES = {
    "manylinux_2_17": {"GLIBC": (2, 17), "GLIBCXX": (3, 4, 19), "CXXABI": (1, 3, 7)},
    "manylinux_2_28": {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)},
    "manylinux_2_34": {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13)},
}


def platform_tag(libraries: list[Path]) -> str:
    """Return the tag of the oldest systems that have every versioned symbol which the libraries ask for."""
    needed: dict[str, tuple[int, ...]] = {}
    for library in libraries:
        for kind, version in re.findall(rb"\0(GLIBC|GLIBCXX|CXXABI)_([\d.]+)(?=\0)", library.read_bytes()):
            numbers = tuple(int(number) for number in version.split(b"."))
            needed[kind.decode()] = max(needed.get(kind.decode(), ()), numbers)
    for name, newest in POLICIES.items():
        if all(numbers <= newest[kind] for kind, numbers in needed.items()):
            return f"{name}_x86_64"
    raise PlatformError(f"the libraries need symbols that are too new for a wheel: {needed}")


setup(cmdclass={"bdist_wheel": Wheel})
