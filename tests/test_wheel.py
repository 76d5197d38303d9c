"""Wheels with compiled code: built from a source distribution, installed where there is no compiler."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest
import torch

import speculant
from speculant.engines.hf.cpu.build import processor_flags
from speculant.engines.hf.cpu.compiling import LEVELS

pytestmark = pytest.mark.slow  # compiles all sources
ROOT = Path(__file__).parent.parent
INSIDE = "speculant/engines/hf/cpu"
PASS = """
import hashlib, logging, sys
import torch
logging.basicConfig(level=logging.INFO, format="%(message)s")
sys.path.insert(0, sys.argv[1])
from models import tiny_model
from speculant.engines.hf.cpu.accelerate import prepare_model
digest = hashlib.sha256()
for dtype in (torch.float32, torch.bfloat16):
    model = tiny_model("llama").to(dtype)
    ids = torch.arange(1, 24)[None]
    prepared = prepare_model(model, True)
    print(*prepared.notes)
    with torch.inference_mode():
        for rows in (1, 5, 23):
            logits = prepared.model_for(model, rows)(ids[:, :rows]).logits
            digest.update(logits.float().numpy().tobytes())
print(len(prepared.layers), "layers;", digest.hexdigest())
"""


def run(command: list[str], **environment: str) -> str:
    """Return the output of a command, both kinds; fail with it."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert not done.returncode, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    tree = folder / "tree"
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.nb?", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    build = f"import os, setuptools.build_meta as b; os.chdir({str(tree)!r}); print(b.build_sdist({str(folder)!r}))"
    run([sys.executable, "-c", build])
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (unpacked,) = folder.glob("speculant-*/")
    return unpacked


@pytest.fixture(scope="module")
def python(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the wheel for the best level of this processor and for AVX2."""
    supported = [level.name for level in LEVELS if level.is_supported(processor_flags())]
    if not supported or not shutil.which("g++"):
        pytest.skip("compiled code is packaged with g++ and for processors with AVX2")
    folder = tmp_path_factory.mktemp("wheel")
    levels = ",".join(dict.fromkeys([supported[0], "avx2"]))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", f"--config-settings=--build-option=--levels={levels}"]
    run([*pip, "wheel", "-q", *options, "--wheel-dir", str(folder), str(source)])
    (wheel,) = folder.glob("speculant-*-py3-none-manylinux_2_*_x86_64.whl")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    run([*pip, "--python", str(python), "install", "-q", "--no-deps", "--no-compile", str(wheel)])
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")  # torch and the like
    return python


def pass_of(python: Path | str, home: Path, **environment: str) -> str:
    """Return what PASS prints, with caches below `home`."""
    return run([str(python), "-c", PASS, str(ROOT / "tests")], XDG_CACHE_HOME=str(home), **environment)


def installed(python: Path) -> Path:
    (folder,) = python.parent.parent.glob(f"lib/python*/site-packages/{INSIDE}")
    return folder


def test_the_wheel_needs_no_compiler(python: Path, tmp_path: Path) -> None:
    """Guards users without g++: passes run the package's code, with the results of a native build to the last bit."""
    (tmp_path / "bin").mkdir()
    alone = {"PATH": str(tmp_path / "bin"), "PYTHONPATH": ""}
    packaged = pass_of(python, tmp_path / "packaged", **alone)
    assert "the code for CPUs is the package's" in packaged
    assert not list((tmp_path / "packaged").rglob("layers-*.so"))
    source = str(Path(speculant.__file__).parent.parent)
    native = pass_of(sys.executable, tmp_path / "native", PYTHONPATH=source)
    assert "compiled for this processor" in native
    assert packaged.splitlines()[-1] == native.splitlines()[-1]
    assert "2 layers" in native


def test_every_level_has_the_functions(python: Path) -> None:
    """Guards the list of sources: a library lacks none that the loader asks for."""
    assert torch.get_num_threads() > 0  # torch brings the OpenMP runtime
    libraries = sorted((installed(python) / "libraries").glob("*.so"))
    assert libraries
    for library in libraries:
        assert ctypes.CDLL(str(library)).max_rows(0) > 0


def test_a_damaged_library_without_a_compiler_leaves_plain_passes(python: Path, tmp_path: Path) -> None:
    """Guards the note of the last resort, which names what is broken and what is missing."""
    library = next(iter((installed(python) / "libraries").glob("avx5*.so")), installed(python) / "libraries/avx2.so")
    whole = library.read_bytes()
    try:
        library.write_bytes(whole[: len(whole) // 2])
        (tmp_path / "bin").mkdir()
        printed = pass_of(python, tmp_path, PATH=str(tmp_path / "bin"), PYTHONPATH="")
    finally:
        library.write_bytes(whole)
    assert f"library {library.name} is damaged" in printed
    assert "there is no C++ compiler g++" in printed
    assert "0 layers" in printed


def test_without_levels_there_is_no_compiled_code(source: Path, tmp_path: Path) -> None:
    """Guards `pip install .`: it takes no compiler and fits every platform."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q"]
    run([*pip, "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)], PATH="/nowhere")
    assert list(tmp_path.glob("speculant-*-py3-none-any.whl"))
