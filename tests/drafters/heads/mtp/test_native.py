"""Reading a few tensors of a model's checkpoint: FP8 blocks, and quantised weights that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from speculant.core.errors import ModelNotFoundError, UnsupportedError
from speculant.drafters.heads.mtp.native import dequantise, read_native, tensor_files


def test_each_block_has_its_scale() -> None:
    """Guards the formula, the last blocks, which are smaller, and experts that are stacked."""
    weight = torch.randn(2, 5, 7).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3, 2) + 0.5
    found = dequantise(weight, scales, (2, 4))
    for expert in range(2):
        for row in range(5):
            for column in range(7):
                wanted = float(weight[expert, row, column].float()) * float(scales[expert, row // 2, column // 4])
                assert float(found[expert, row, column]) == pytest.approx(wanted)


def test_only_named_tensors_are_read(tmp_path: Path) -> None:
    """Guards memory: of two files of an index only that with the tensor is opened; the other is not even there."""
    save_file({"mtp.fc.weight": torch.ones(2, 2), "model.embed_tokens.weight": torch.ones(3, 2)}, tmp_path / "b")
    weights = {"mtp.fc.weight": "b", "model.embed_tokens.weight": "b", "model.norm.weight": "a"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    files = tensor_files(tmp_path)
    assert files.keys() == weights.keys()
    assert read_native(tmp_path, files, ["mtp.fc.weight"], torch.float32).tensors.keys() == {"mtp.fc.weight"}
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        read_native(tmp_path, files, ["model.norm.weight"], torch.float32)


def test_other_quantised_weights_are_refused(tmp_path: Path) -> None:
    """Guards against numbers that mean something else: integers, and FP8 whose scales are of another kind."""
    save_file(
        {"mtp.a.qweight": torch.zeros(2, 2, dtype=torch.int32), "mtp.b.weight": torch.zeros(2).to(torch.float8_e4m3fn)},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "awq"}}))
    for name in ("mtp.a.qweight", "mtp.b.weight"):
        with pytest.raises(UnsupportedError, match=r"is quantised \(awq\), but only FP8 blocks are supported"):
            read_native(tmp_path, tensor_files(tmp_path), [name], torch.float32)
