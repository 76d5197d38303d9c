"""How much memory is free, on the machine or on a device."""

from __future__ import annotations

from pathlib import Path

import torch


def free_memory(device: torch.device) -> int:
    """Return how many bytes can still be allocated for a device."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return available_memory()


def available_memory() -> int:
    """Return how many bytes this process can still allocate, on the machine and in its control group.

    A group's usage includes the kernel's page cache, which is freed when a process needs the room.
    """
    free = _number(Path("/proc/meminfo"), "MemAvailable:") * 1024
    group = Path("/sys/fs/cgroup")
    limit, used = (_number(group / name) for name in ("memory.max", "memory.current"))
    files = sum(_number(group / "memory.stat", label) for label in ("inactive_file", "active_file"))
    return min(free, max(limit - max(used - files, 0), 0)) if limit else free


def _number(path: Path, label: str = "") -> int:
    """Return the number after a label in one of the kernel's files; 0 if there is none."""
    try:
        words = path.read_text(encoding="utf-8").split()
        return int(words[words.index(label) + 1] if label else words[0])
    except (OSError, ValueError, IndexError):
        return 0
