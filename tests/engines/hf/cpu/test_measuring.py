"""Times of kernels: measured once, kept, and measured again where the file does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from caches import use_empty_cache
from speculant.engines.hf.cpu import measuring
from speculant.engines.hf.cpu.kernel_table import ROW_COUNTS
from speculant.engines.hf.cpu.products import Products


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Measure small layers too, little of each, and keep the times in an empty folder."""
    monkeypatch.setattr(measuring, "MIN_TOTAL", 0)
    monkeypatch.setattr(measuring, "OPERATIONS", 1)
    monkeypatch.setattr(measuring, "MAX_TRIALS", 1)
    return use_empty_cache(monkeypatch, tmp_path)


def test_times_are_kept(folder: Path, compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the waiting time, broken files, and that fewer rows never take longer than more."""
    products, layers = Products(compiled), [nn.Linear(64, 48), nn.Linear(64, 48), nn.Linear(16, 4)]
    found = measuring.kernel_times(layers, products, minimum=1000)
    assert set(found) == {(48, 64)}
    assert set(found[48, 64]) == set(products.available(torch.float32))
    for seconds in found[48, 64].values():
        assert len(seconds) == len(ROW_COUNTS)
        assert list(seconds) == sorted(seconds)
    (file,) = folder.glob("kernels-*.json")
    monkeypatch.setattr(measuring, "_measure", refusing)
    assert measuring.kernel_times(layers, products, minimum=1000) == found
    file.write_text("{", encoding="utf-8")
    with pytest.raises(AssertionError):
        measuring.kernel_times(layers, products, minimum=1000)


def refusing(*_: Any) -> Any:
    raise AssertionError


def test_small_models_are_not_measured(compiled: Any) -> None:
    """Guards the start of small models."""
    assert measuring.kernel_times([nn.Linear(512, 512)], Products(compiled), minimum=1) == {}
