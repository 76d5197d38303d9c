"""Files of packed weights: what is saved is what is mapped, and damage is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant.engines.hf.quantized.packed_file import PackedFileError, load_packed, save_packed
from speculant.engines.hf.quantized.parts import Parts
from speculant.engines.hf.quantized.rounding import round_weight
from speculant.engines.hf.quantized.weight import GroupedValues, GroupScales, pack


def parts() -> Parts:
    """Return weights of both schemes, one with a table and one with sorted inputs, and floats of several dtypes."""
    torch.manual_seed(0)
    coded = GroupedValues(
        values=torch.randint(0, 16, (20, 64), dtype=torch.uint8),
        bits=4,
        group=16,
        scales=GroupScales(numbers=torch.rand(20, 4)),
        table=torch.randint(0, 24, (16,), dtype=torch.uint8),
        offset=12,
    )
    return Parts(
        weights={
            "a.weight": round_weight(torch.randn(48, 256), "int4"),
            "b.weight": round_weight(torch.randn(20, 96), "int8"),
            "c.weight": pack(coded),
        },
        floats={
            "norm.weight": torch.rand(7),
            "half": torch.rand(3).bfloat16(),
            "count": torch.tensor(5),
            "none": torch.zeros(0),
        },
        orders={"b.weight": torch.randperm(96)},
    )


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """Guards every part, the facts, and the places of matrices in the file, at multiples of a cache line."""
    path, saved = tmp_path / "packed.safetensors", parts()
    save_packed(path, saved, {"before": 5})
    found = load_packed(path)
    assert found.facts == {"before": 5}
    assert found.parts.weights.keys() == saved.weights.keys()
    for name, weight in saved.weights.items():
        loaded = found.parts.weights[name]
        assert torch.equal(loaded.dequantize(), weight.dequantize())
        assert loaded.tensors().keys() == weight.tensors().keys()
        assert loaded.values.data_ptr() % 64 == 0
    for tensors in ("floats", "orders"):
        ours, theirs = getattr(saved, tensors), getattr(found.parts, tensors)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(each, theirs[name]) for name, each in ours.items())


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the former file and the folder where the disk is full."""
    path = tmp_path / "packed.safetensors"
    path.write_text("former")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_packed(path, parts(), {})
    assert [each.name for each in tmp_path.iterdir()] == ["packed.safetensors"]
    assert path.read_text() == "former"


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of packed weights, which no test changes."""
    path = tmp_path_factory.mktemp("intact") / "packed.safetensors"
    save_packed(path, parts(), {"before": 5})
    return path


@settings(max_examples=200)
@given(data=st.data())
def test_damage_is_seen(intact: Path, data: st.DataObject) -> None:
    """Guards against cut and changed files: an error of its own kind, and no weights."""
    path, whole = intact.with_name("damaged.safetensors"), bytearray(intact.read_bytes())
    header = int.from_bytes(whole[:8], "little") + 8
    if data.draw(st.booleans(), label="cut"):
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    else:
        written = len(whole[:header].rstrip(b" "))  # blanks behind the header mean nothing
        place = data.draw(st.integers(0, written - 1) | st.integers(header, len(whole) - 1))
        whole[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    with pytest.raises((PackedFileError, OSError)):
        load_packed(path)
