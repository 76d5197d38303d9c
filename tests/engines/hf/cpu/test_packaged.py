"""Libraries of a wheel: which one a processor runs, and what is done where none of them can be used."""

from __future__ import annotations

import ctypes
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from speculant.engines.hf.cpu.build import load_native, processor_flags
from speculant.engines.hf.cpu.compiling import LEVELS, BuildError, check_level
from speculant.engines.hf.cpu.packaged import LIST, find_library, write_list

NAMES = [level.name for level in LEVELS]
SETS = {level.name: frozenset(level.sets) for level in LEVELS}


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    """Return a folder with a file for each level, none of which is a library."""
    files = [tmp_path / f"{name}.so" for name in NAMES]
    for file in files:
        file.write_text(file.stem, encoding="utf-8")
    write_list(tmp_path, files)
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_a_processor_runs_its_own_level(libraries: Path, name: str) -> None:
    """Guards the choice: all that the processor has is used, and nothing that it lacks."""
    assert find_library(libraries, SETS[name] | {"fpu", "sse"}) == libraries / f"{name}.so"


def test_levels_stand_in_order() -> None:
    """Guards the order: no level has all that a level behind it asks for and more."""
    for place, level in enumerate(LEVELS):
        assert not any(SETS[level.name] < SETS[later.name] for later in LEVELS[place + 1 :])


def test_levels_that_a_wheel_lacks_are_passed_over(libraries: Path) -> None:
    """Guards wheels for some levels."""
    write_list(libraries, [libraries / "avx2.so"])
    assert find_library(libraries, SETS["amx"]) == libraries / "avx2.so"


def test_a_checkout_has_no_libraries(tmp_path: Path) -> None:
    """Guards source checkouts: there is nothing to report."""
    assert find_library(tmp_path / "none", SETS["amx"]) is None


def test_an_older_processor_gets_a_reason(libraries: Path) -> None:
    """Guards processors without AVX2."""
    with pytest.raises(BuildError, match="no library for this processor, only for amx, "):
        find_library(libraries, SETS["avx2"] - {"fma"})


def cut(folder: Path) -> None:
    (folder / "avx2.so").write_text("avx", encoding="utf-8")


def remove(folder: Path) -> None:
    (folder / "avx2.so").unlink()


def break_list(folder: Path) -> None:
    (folder / LIST).write_text('{"libraries"', encoding="utf-8")


def empty_list(folder: Path) -> None:
    (folder / LIST).write_text("{}", encoding="utf-8")


def change_sources(folder: Path) -> None:
    text = (folder / LIST).read_text(encoding="utf-8")
    (folder / LIST).write_text(text.replace('"sources": "', '"sources": "0'), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "library avx2.so is damaged"),
        (remove, "library avx2.so cannot be read"),
        (break_list, f"package's {LIST} cannot be read"),
        (empty_list, f"package's {LIST} cannot be read"),
        (change_sources, "sources are not those of its libraries"),
    ],
)
def test_damage_is_noticed(libraries: Path, damage: Callable[[Path], None], reason: str) -> None:
    """Guards against loading a broken file, which could crash in the middle of a pass."""
    damage(libraries)
    with pytest.raises(BuildError, match=reason):
        find_library(libraries, SETS["avx2"])


def packaged(folder: Path, library: Path) -> Path:
    """Make a folder of one library, of a level that this processor supports."""
    if not SETS["avx2"] <= processor_flags():
        pytest.skip("this processor has no AVX2")
    folder.mkdir()
    shutil.copy(library, folder / "avx2.so")
    write_list(folder, [folder / "avx2.so"])
    return folder


def test_the_package_comes_first(
    compiled: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards machines without a compiler: it is not even looked for, and the log says what is used."""
    folder = packaged(tmp_path / "libraries", Path(compiled._name))
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    caplog.set_level(logging.INFO)
    assert Path(load_native(folder)._name) == folder / "avx2.so"
    assert "the package's avx2.so" in caplog.text


def test_a_damaged_package_is_replaced_by_compiling(
    compiled: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards the fallback, and both reasons where there is no compiler either."""
    folder = packaged(tmp_path / "libraries", Path(compiled._name))
    cut(folder)
    assert load_native(folder)._name == compiled._name
    assert "library avx2.so is damaged; the code for CPUs is compiled instead" in caplog.text
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    with pytest.raises(BuildError, match=r"no C\+\+ compiler .*; the package's library avx2.so is damaged"):
        load_native(folder)


def test_a_file_that_is_no_library_is_replaced_by_compiling(compiled: ctypes.CDLL, tmp_path: Path) -> None:
    """Guards libraries that the system's loader refuses although they are whole."""
    (tmp_path / "text").write_text("no library", encoding="utf-8")
    assert load_native(packaged(tmp_path / "libraries", tmp_path / "text"))._name == compiled._name


def test_a_compiler_that_lacks_instructions_is_named(tmp_path: Path) -> None:
    """Guards wheels made by an old compiler: the level, and the version that it needs, are named at once."""
    old = tmp_path / "g++"
    old.write_text("#!/bin/sh\necho \"error: unrecognized command line option '-mavxvnni'\" >&2\nexit 1\n")
    old.chmod(0o755)
    (level,) = [level for level in LEVELS if level.name == "avx-vnni"]
    with pytest.raises(BuildError, match=r"level avx-vnni needs GCC 11 or later .*unrecognized .* without avx-vnni"):
        check_level([str(old)], level)
