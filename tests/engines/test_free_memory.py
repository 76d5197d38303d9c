"""Free memory, as the machine, the control group or the device tells it."""

from __future__ import annotations

import pytest
import torch

from speculant.engines.free_memory import available_memory, free_memory


def test_free_memory_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the files of the kernel that tell it, and that a GPU's memory is not the machine's."""
    assert available_memory() > 0
    assert free_memory(torch.device("cpu")) > 0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (7, 9))
    assert free_memory(torch.device("cuda:1")) == 7


def test_files_that_the_kernel_keeps_count_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards machines that have read large files: their groups' usage counts what the kernel would give up."""
    numbers = {"MemAvailable:": 1 << 30, "memory.max": 1000, "memory.current": 900, "active_file": 300}
    monkeypatch.setattr(
        "speculant.engines.free_memory._number", lambda path, label="": numbers.get(label or path.name, 0)
    )
    assert available_memory() == 400
