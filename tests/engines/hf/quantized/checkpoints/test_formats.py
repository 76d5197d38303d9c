"""Quantised checkpoints of other tools: each format's own packing, written here anew, and what is read from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.checkpoint_files import open_checkpoint
from speculant.engines.hf.quantized.checkpoints.formats import find_format
from speculant.engines.hf.quantized.checkpoints.matrix import PackedMatrix
from speculant.engines.hf.quantized.weight import pack

OUTS, K = 24, 256
NAME = "model.layers.0.mlp.up_proj"


def read(
    folder: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], metadata: dict[str, str] | None = None
) -> list[PackedMatrix]:
    """Return the matrices of a checkpoint of these tensors."""
    save_file(
        {name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors", metadata=metadata
    )
    found = find_format(settings)
    assert found is not None
    assert found.read is not None
    with open_checkpoint(str(folder)) as files:
        return list(found.read(files, settings))


def check(matrix: PackedMatrix, expected: np.ndarray) -> None:
    """Check a matrix to the last bit, as it was read and once it is packed."""
    assert matrix.name == f"{NAME}.weight"
    for found in (matrix.values.dequantize(), pack(matrix.values).dequantize()):
        np.testing.assert_array_equal(found.numpy(), expected.astype(np.float32))


def words(numbers: np.ndarray, bits: int, *, axis: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Return unsigned integers packed into int32 along an axis, one by one; `order` names those of a word."""
    lines = np.moveaxis(numbers, axis, -1)
    count = 32 // bits
    packed = np.zeros((lines.shape[0], -(-lines.shape[1] // count)), np.uint64)
    for row in range(lines.shape[0]):
        for word in range(packed.shape[1]):
            for place in range(count):
                source = word * count + (place if order is None else order[place])
                if source < lines.shape[1]:
                    packed[row, word] |= np.uint64(int(lines[row, source]) << bits * place)
    whole = packed.astype(np.uint32).view(np.int32)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(whole, -1, axis)))


def numbers(bits: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Return integers of so many bits."""
    return np.random.default_rng(seed).integers(0, 1 << bits, shape)


def scales_of(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """Return positive scales."""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 0.02 + 0.001).to(dtype)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 128, -1])
def test_gptq(tmp_path: Path, bits: int, version: str, symmetric: bool, group: int) -> None:
    """Guards both packings, the zero points' offset of v1, groups of any size, and a zero point of 0."""
    size = K if group < 0 else group
    values, zeros = numbers(bits, K, OUTS), numbers(bits, K // size, OUTS, seed=2)
    if symmetric:
        zeros[:] = 1 << bits - 1
    else:
        zeros[0, 0] = 0
    scales = scales_of(K // size, OUTS)
    kept = words(zeros, bits, axis=1)
    if version == "gptq":
        kept = kept - torch.tensor({4: 0x11111111, 8: 0x01010101}[bits], dtype=torch.int32)
    tensors = {
        f"{NAME}.qweight": words(values, bits, axis=0),
        f"{NAME}.qzeros": kept,
        f"{NAME}.scales": scales,
        f"{NAME}.g_idx": torch.arange(K, dtype=torch.int32) // size,
    }
    settings = {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": version}
    [matrix] = read(tmp_path, tensors, settings)
    wide = np.repeat(zeros, size, axis=0), np.repeat(scales.numpy().astype(np.float32), size, axis=0)
    check(matrix, ((values - wide[0]) * wide[1]).T)
    assert matrix.order is None
    assert (matrix.values.minima is None) == symmetric
    assert set(matrix.tensors) == set(tensors)


def test_gptq_sorted_by_importance(tmp_path: Path) -> None:
    """Guards `desc_act`: the matrix takes its inputs in the order in which the groups lie side by side."""
    order = torch.randperm(K, generator=torch.Generator().manual_seed(4))
    groups = torch.empty(K, dtype=torch.int32)
    groups[order] = (torch.arange(K) // 64).int()
    values, zeros, scales = numbers(4, K, OUTS), numbers(4, 4, OUTS, seed=2), scales_of(4, OUTS)
    tensors = {
        f"{NAME}.qweight": words(values, 4, axis=0),
        f"{NAME}.qzeros": words(zeros, 4, axis=1),
        f"{NAME}.scales": scales,
        f"{NAME}.g_idx": groups,
    }
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "gptq_v2", "desc_act": True}
    [matrix] = read(tmp_path, tensors, settings)
    expected = ((values - zeros[groups]) * scales.float().numpy()[groups]).T.astype(np.float32)
    assert matrix.order is not None
    np.testing.assert_array_equal(matrix.values.dequantize().numpy(), expected[:, matrix.order])
    tensors[f"{NAME}.g_idx"] = torch.zeros(K, dtype=torch.int32)
    with pytest.raises(UnsupportedError, match="unequal sizes"):
        read(tmp_path, tensors, settings)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_awq(tmp_path: Path, group: int) -> None:
    """Guards the order of the outputs in a word, for values and zero points."""
    values, zeros, scales = numbers(4, K, OUTS), numbers(4, K // group, OUTS, seed=2), scales_of(K // group, OUTS)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {
        f"{NAME}.qweight": words(values, 4, axis=1, order=order),
        f"{NAME}.qzeros": words(zeros, 4, axis=1, order=order),
        f"{NAME}.scales": scales,
    }
    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    [matrix] = read(tmp_path, tensors, settings)
    wide = np.repeat(zeros, group, axis=0), np.repeat(scales.numpy().astype(np.float32), group, axis=0)
    check(matrix, ((values - wide[0]) * wide[1]).T)
    with pytest.raises(UnsupportedError, match="gemv"):
        read(tmp_path, tensors, settings | {"version": "gemv"})


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 128, None])
@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_integers(tmp_path: Path, bits: int, group: int | None, symmetric: bool) -> None:
    """Guards pack-quantized weights: values along the inputs, zero points along the outputs, scales in bfloat16."""
    size = group or K
    half = 1 << bits - 1
    values, zeros = numbers(bits, OUTS, K), numbers(bits, OUTS, K // size, seed=2)
    scales = scales_of(OUTS, K // size, dtype=torch.bfloat16)
    tensors = {
        f"{NAME}.weight_packed": words(values, bits, axis=1),
        f"{NAME}.weight_scale": scales,
        f"{NAME}.weight_shape": torch.tensor([OUTS, K]),
    }
    if symmetric:
        zeros[:] = half
    else:
        tensors[f"{NAME}.weight_zero_point"] = words(zeros, bits, axis=0)
    settings = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": bits, "group_size": group}, "targets": ["Linear"]}},
    }
    [matrix] = read(tmp_path, tensors, settings)
    wide = np.repeat(zeros, size, axis=1), np.repeat(scales.float().numpy(), size, axis=1)
    check(matrix, (values - wide[0]) * wide[1])


def test_compressed_bytes(tmp_path: Path) -> None:
    """Guards int8 weights with a scale per channel, as w8a8 checkpoints have them, and what is left to transformers."""
    values, scales = numbers(8, OUTS, K) - 128, scales_of(OUTS, 1, dtype=torch.float32)
    tensors = {f"{NAME}.weight": torch.from_numpy(values).to(torch.int8), f"{NAME}.weight_scale": scales}
    settings = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {}}
    [matrix] = read(tmp_path, tensors, settings)
    check(matrix, values * scales.numpy())
    assert find_format(settings | {"format": "float-quantized"}) is None
    assert find_format({"quant_method": "bitsandbytes"}) is None
    assert find_format(settings, "cuda") is None


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_compressed_floats_of_four_bits(tmp_path: Path, kind: str) -> None:
    """Guards E2M1 numbers with float8 scales and one for all, or with powers of two."""
    size = 16 if kind == "nvfp4" else 32
    meaning = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    codes = numbers(4, OUTS, K)
    tensors = {f"{NAME}.weight_packed": torch.from_numpy((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8))}
    if kind == "nvfp4":
        small = scales_of(OUTS, K // size, dtype=torch.float32).mul(1000).to(torch.float8_e4m3fn)
        whole = torch.tensor([813.5])
        tensors |= {f"{NAME}.weight_scale": small, f"{NAME}.weight_global_scale": whole}
        scales = (small.float() / whole).numpy()
    else:
        exponents = numbers(3, OUTS, K // size) + 118
        tensors[f"{NAME}.weight_scale"] = torch.from_numpy(exponents.astype(np.uint8))
        scales = np.exp2(exponents - 127).astype(np.float32)
    settings = {"quant_method": "compressed-tensors", "format": f"{kind}-pack-quantized", "config_groups": {}}
    [matrix] = read(tmp_path, tensors, settings)
    np.testing.assert_array_equal(
        pack(matrix.values).dequantize().numpy(), meaning[codes] * np.repeat(scales, size, axis=1)
    )


@pytest.mark.parametrize("kind", ["Int4Tensor", "Int8Tensor", "IntxUnpackedToInt8Tensor"])
def test_torchao(tmp_path: Path, kind: str) -> None:
    """Guards the classes whose tensors are plain, by what the file's metadata say of them."""
    group = K if kind == "Int8Tensor" else 64
    bits = 8 if kind == "Int8Tensor" else 4
    values = numbers(bits, OUTS, K) - (1 << bits - 1)
    scales, zeros = scales_of(OUTS, K // group, dtype=torch.bfloat16), scales_of(OUTS, K // group).to(torch.bfloat16)
    facts: dict[str, Any] = {"block_size": [1, group]}
    prefix = f"{NAME}._weight_"
    wide = np.repeat(scales.float().numpy(), group, axis=1)
    if kind == "Int4Tensor":
        halves = values & 15
        data = torch.from_numpy((halves[:, ::2] | halves[:, 1::2] << 4).astype(np.uint8)).view(torch.int8)
        tensors = {f"{prefix}qdata": data, f"{prefix}scale": scales.t(), f"{prefix}zero_point": zeros.t()}
        expected = values.astype(np.float32) * wide + np.repeat(zeros.float().numpy(), group, axis=1)
    else:
        whole = numbers(3, OUTS, K // group) - 4
        tensors = {f"{prefix}qdata": torch.from_numpy(values).to(torch.int8), f"{prefix}scale": scales}
        tensors[f"{prefix}zero_point"] = torch.from_numpy(whole).to(torch.int8)
        facts["target_dtype"] = {"_type": "torch.dtype", "_data": f"int{bits}"}
        expected = (values - np.repeat(whole, group, axis=1)) * wide
    metadata = {
        f"{NAME}.weight": json.dumps({"_type": kind, "_data": facts}),
        "model.norm.weight": json.dumps({"_type": "Tensor"}),
        "tensor_names": json.dumps([f"{NAME}.weight", "model.norm.weight"]),
    }
    [matrix] = read(tmp_path, tensors, {"quant_method": "torchao"}, metadata)
    check(matrix, expected)
    assert matrix.values.bits == bits
    metadata[f"{NAME}.weight"] = json.dumps({"_type": "Int4TilePackedTo4dTensor", "_data": {}})
    with pytest.raises(UnsupportedError, match="Int4TilePackedTo4dTensor"):
        read(tmp_path, tensors, {"quant_method": "torchao"}, metadata)


def test_groups_without_a_layout_are_refused(tmp_path: Path) -> None:
    """Guards the message, which names the matrix."""
    tensors = {
        f"{NAME}.weight_packed": words(numbers(4, OUTS, K), 4, axis=1),
        f"{NAME}.weight_scale": scales_of(OUTS, 32),
        f"{NAME}.weight_shape": torch.tensor([OUTS, K]),
    }
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}
    with pytest.raises(UnsupportedError, match=r"up_proj has groups of 8 inputs"):
        read(tmp_path, tensors, settings)
