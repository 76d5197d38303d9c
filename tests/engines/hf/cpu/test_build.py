"""The compiled code: which compilers make it, when it is made anew, and what is done with a file that is broken."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from models import tiny_model
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.cpu.build import KINDS, SIGNATURES, BuildError, load_native
from speculant.engines.hf.cpu.compiling import FLAGS, FOLDER, LEVELS

pytestmark = pytest.mark.slow  # each compiles the sources


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
    assert min(load_native().max_rows(0), load_native().max_rows(1)) > 0
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


def test_bf16_instructions_are_built_where_the_compiler_knows_them(tmp_path: Path) -> None:
    """Guards the kernel for AVX512-BF16 on machines without it: it compiles, to the instruction that it is made for."""
    source, (level,) = FOLDER / "linear_bf16.cpp", [level for level in LEVELS if level.name == "avx512-bf16"]
    command = ["g++", *FLAGS, *level.options, "-S", str(source), "-o", str(tmp_path / "code.s")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized" in done.stderr:
        pytest.skip(f"this compiler does not know AVX512-BF16: {done.stderr.splitlines()[0]}")
    assert not done.returncode, done.stderr
    assert "vdpbf16ps" in (tmp_path / "code.s").read_text(encoding="utf-8")


def test_the_bf16_kernel_is_right_in_emulation(tmp_path: Path) -> None:
    """Guards the kernel's layout of vectors and tiles, with its instruction computed in float; rows are independent."""
    library = tmp_path / "emulated.so"
    options = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-DSPECULANT_WIDTH=16", "-DSPECULANT_EMULATE_BF16"]
    subprocess.run(["g++", *options, str(FOLDER / "linear_bf16.cpp"), "-o", str(library)], check=True)
    emulated = ctypes.CDLL(str(library))
    emulated.linear_bf16.argtypes = [KINDS[kind] for kind in SIGNATURES["linear_bf16"][0]]
    check_bf16_product(emulated)


def test_the_bf16_kernel_is_right_on_its_processor() -> None:
    """Guards the instructions themselves."""
    native = load_native()
    if not native.has_linear_bf16():
        pytest.skip("this processor has no AVX512-BF16 instructions, so their kernel is only compiled and emulated")
    check_bf16_product(native)


def check_bf16_product(library: ctypes.CDLL) -> None:
    for outs, k in ((1, 1), (3, 7), (61, 32), (130, 700), (33, 1031), (64, 2100)):
        weight, x = torch.randn(outs, k).bfloat16(), torch.randn(40, k).bfloat16()
        exact, whole = x.double() @ weight.double().T, torch.empty(40, outs)
        library.linear_bf16(x.data_ptr(), weight.data_ptr(), whole.data_ptr(), 40, outs, k, 1)
        torch.testing.assert_close(whole.double(), exact, atol=1e-3, rtol=1e-4)
        for rows in (1, 2, 5, 6, 7, 13):
            part = torch.empty(rows, outs)
            library.linear_bf16(x.data_ptr(), weight.data_ptr(), part.data_ptr(), rows, outs, k, 1)
            assert torch.equal(part, whole[:rows])
