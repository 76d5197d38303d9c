"""Peak memory of the process or of its accelerator."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """The peak memory of a device: on CUDA the memory allocated by torch, on a CPU the process's resident memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known = device.type == "cuda"

    def reset(self) -> None:
        """Reset the peak."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._device.type == "cpu":
            with contextlib.suppress(OSError):  # systems other than Linux, and some containers, have no such file
                _CLEAR.write_text("5", encoding="ascii")
                self._known = True

    def read(self) -> int | None:
        """Return the peak bytes since `reset`; None if the system does not report them."""
        if not self._known:
            return None
        return int(torch.cuda.max_memory_allocated(self._device)) if self._device.type == "cuda" else _resident()


def _resident() -> int | None:
    lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), None)
