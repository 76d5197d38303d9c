"""The compiled code: which compilers make it, when it is made anew, and what is done with a file that is broken."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from models import tiny_model
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.cpu.build import BuildError, load_native


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return an empty cache folder; skip where the code cannot be built."""
    try:
        load_native()
    except BuildError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "speculant"


def compiler(path: Path, version: str) -> str:
    """Write a compiler that is g++ except for the version that it prints; return its name."""
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo \'{version}\' && exit\nexec g++ "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_other_compilers_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    """Guards threads: code of clang would bring along a second runtime for them."""
    monkeypatch.setenv("CXX", compiler(tmp_path / "c++", "Debian clang version 14.0.6"))
    with pytest.raises(BuildError, match="is not GCC"):
        load_native()
    assert not folder.exists()


def test_a_new_version_of_the_compiler_compiles_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path
) -> None:
    """Guards upgrades of the compiler under the same name."""
    for version in ("1.0", "1.1", "1.1"):
        monkeypatch.setenv("CXX", compiler(tmp_path / "c++", f"{version} Free Software Foundation"))
        load_native()
    assert len(list(folder.iterdir())) == 2


def test_options_may_stand_beside_the_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Guards CXX as builds use it, and one that no shell could read."""
    monkeypatch.setenv("CXX", "g++ -g0")
    load_native()
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setenv("CXX", 'g++ "')
    with pytest.raises(BuildError, match="quotation"):
        load_native()


def test_a_broken_file_is_compiled_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    """Guards a file cut short: it is replaced once instead of failing at every start."""
    load_native()
    (kept,) = folder.iterdir()
    broken = tmp_path / "other" / "speculant" / kept.name  # elsewhere, for this process has the whole one open
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"\x7fELF")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert load_native().most_rows(1) >= load_native().most_rows(0) > 0
    compiled = (broken.parent / kept.name).stat()
    load_native()
    assert (broken.parent / kept.name).stat().st_mtime_ns == compiled.st_mtime_ns


def test_its_functions_call_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    """Guards against libraries of the process that export functions of the same names."""
    source, library = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text("void linear(void) {}\nvoid attention(void) {}\n", encoding="utf-8")
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    model, ids = tiny_model("llama"), torch.tensor([[5, 9, 14, 3]])
    with torch.inference_mode():
        expected = model(ids).logits
        torch.testing.assert_close(prepare_model(model, True).model_for(model, 4)(ids).logits, expected)
    assert list(folder.iterdir())
