"""Huge pages: which ranges of memory they take, and that weights stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from speculant.engines.hf.cpu import huge_pages
from speculant.engines.hf.cpu.huge_pages import MIN_BYTES, PAGE, use_huge_pages, whole_pages


def test_neighbours_are_joined() -> None:
    """Guards small weights: several of them share a page, and what is at an end and fills none is left alone."""
    start = 10 * PAGE
    near = [(start + 5, start + PAGE), (start + PAGE + 64, start + 3 * PAGE + 9)]
    assert list(whole_pages(near[::-1])) == [(11 * PAGE, 13 * PAGE)]
    far = [(start, start + 2 * PAGE), (start + 9 * PAGE, start + 10 * PAGE), (start + 20 * PAGE, start + 20 * PAGE + 9)]
    assert list(whole_pages(far)) == far[:2]
    assert list(whole_pages([])) == []


def test_a_range_within_another_ends_nothing() -> None:
    """Guards tied weights and views."""
    assert list(whole_pages([(PAGE, 4 * PAGE), (PAGE, 2 * PAGE), (4 * PAGE, 5 * PAGE)])) == [(PAGE, 5 * PAGE)]


def test_weights_stay_what_they_are() -> None:
    """Guards contents and addresses."""
    weights = [torch.arange(MIN_BYTES // 8).float() for _ in range(3)]
    before = [(weight.clone(), weight.data_ptr()) for weight in weights]
    moved = use_huge_pages(weights)
    assert 0 <= moved <= sum(weight.nbytes for weight in weights) + 3 * PAGE
    assert all(torch.equal(w, copy) and w.data_ptr() == place for w, (copy, place) in zip(weights, before, strict=True))


def test_mapped_files_stay_mapped(tmp_path: Path) -> None:
    """Guards checkpoints that are mapped: the kernel refuses, which is no error."""
    (tmp_path / "weights").write_bytes(bytes(range(256)) * (MIN_BYTES // 128))
    storage = torch.UntypedStorage.from_file(str(tmp_path / "weights"), False, 2 * MIN_BYTES)
    weight = torch.empty(0, dtype=torch.uint8).set_(storage)
    use_huge_pages([weight])
    assert torch.equal(weight[-256:], torch.arange(256).byte())


@pytest.mark.parametrize("setting", ["always madvise [never]\n", None])
def test_the_administrator_decides(setting: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards systems where huge pages are off, or unknown."""
    if setting:
        (tmp_path / "enabled").write_text(setting, encoding="ascii")
    monkeypatch.setattr(huge_pages, "SETTING", tmp_path / "enabled")
    assert use_huge_pages([torch.zeros(MIN_BYTES)]) == 0


def test_time_is_bounded() -> None:
    """Guards machines whose memory is fragmented."""
    assert use_huge_pages([torch.zeros(MIN_BYTES)], seconds=-1) == 0
