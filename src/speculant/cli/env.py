"""`speculant env`: describes the machine and the packages for a bug report or a measurement."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from speculant import __version__
from speculant.api.loading import default_device
from speculant.cli.binding import bind
from speculant.cli.commands import Command
from speculant.cli.terminal import importing
from speculant.options.printing import PrintOptions

if TYPE_CHECKING:
    from speculant.core.engine_kind import ModelDescription

PACKAGES = ("transformers", "numba", "numpy")
HELP = "Describe this machine and the versions in use, for bug reports. The output names no user or folder."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("env", cls=Command, help=HELP, epilog="speculant env --json")(bind(env))


def env(printing: PrintOptions) -> int:
    """Print the environment."""
    found = environment()
    if printing.json:
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
    facts = None if model is None else _facts(model)
    device = default_device() if facts is None else facts.device
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
        "dtype": default_dtype if facts is None else facts.dtype,
        **({"weights": dict(facts.weights)} if facts and facts.weights else {}),
    }


def _facts(model: Any) -> ModelDescription:
    from speculant.api.engines import describe_model  # imported here, so that `speculant --help` answers at once

    return describe_model(model)


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
