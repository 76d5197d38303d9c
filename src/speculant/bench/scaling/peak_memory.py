"""How much memory a process or its accelerator has held at most since a moment."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """The most bytes that a device has held: on CUDA what torch allocated, on a CPU the process's resident memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._told = device.type == "cuda"

    def begin(self) -> None:
        """Measure from now on."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._device.type == "cpu":
            with contextlib.suppress(OSError):  # other systems, and some containers, have no such file
                _CLEAR.write_text("5", encoding="ascii")
                self._told = True

    def read(self) -> int | None:
        """Return the most bytes since then, or None where the system does not tell."""
        if not self._told:
            return None
        return int(torch.cuda.max_memory_allocated(self._device)) if self._device.type == "cuda" else _resident()


def _resident() -> int | None:
    lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), None)
