"""`speculant env`: describes the machine and the packages for a bug report or a measurement."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import typer

from speculant import __version__
from speculant.api.loading import default_device
from speculant.cli.binding import JsonFlag
from speculant.cli.commands import Command
from speculant.cli.terminal import importing

FLOATS = ("f32", "f16", "bf16")  # llama.cpp's types of unquantised weights
PACKAGES = ("transformers", "numba", "numpy")
HELP = "Describe this machine and the versions in use, for bug reports. The output names no user or folder."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("env", cls=Command, help=HELP, epilog="speculant env --json")(env)


def env(as_json: JsonFlag = False) -> int:
    """Print the environment."""
    found = environment()
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    width = max(map(len, found))
    for name, value in found.items():
        shown = ", ".join(value) or "none" if isinstance(value, list) else value
        print(f"{name.ljust(width)}  {shown}")
    return 0


def environment(model: Any = None) -> dict[str, Any]:
    """Return machine, versions, threads, dtype and device, without host, user or paths.

    Args:
        model: a loaded model whose dtype and device to report; None for the defaults.
    """
    with importing("PyTorch"):
        import torch
    device = default_device() if model is None else str(model.device)
    default_dtype = "float32" if device == "cpu" else "the checkpoint's own"
    return {
        "speculant": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        **{name: _version(name) for name in PACKAGES},
        "device": device,
        "dtype": default_dtype if model is None else str(model.dtype).removeprefix("torch."),
        **describe_weights(model),
    }


def describe_weights(model: Any) -> dict[str, Any]:
    """Return {"weights": counts of a quantised model's weights by kind}; {} for other models."""
    kinds: dict[str, int] | None = getattr(getattr(model, "config", None), "weight_kinds", None)
    return {} if kinds is None else {"weights": kinds}


def has_quantized_weights(model: Any) -> bool:
    """Return whether a loaded model has quantised weights, in llama.cpp or in modules of Speculant's own."""
    from speculant.engines.hf.quantized.modules import quantized_modules
    from speculant.engines.llamacpp.request_model import LlamaCppModel

    if isinstance(model, LlamaCppModel):
        return str(model.dtype) not in FLOATS
    return any(True for _ in quantized_modules(model))


def cpu_model() -> str:
    """Return the processor's name, or its architecture if the name is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
