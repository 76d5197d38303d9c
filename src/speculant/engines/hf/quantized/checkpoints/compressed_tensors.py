"""compressed-tensors, as llm-compressor and vLLM's tools write them.

| format | tensors of a layer |
|---|---|
| pack-quantized (4 or 8 bits) | weight_packed int32 [outs, k * bits / 32], weight_scale [outs, groups], weight_shape; where zeros are not 0, weight_zero_point int32 [outs * bits / 32, groups]; where inputs are sorted, weight_g_idx [k] |
| int-quantized, naive-quantized (8 bits) | weight int8 [outs, k], weight_scale [outs, groups], perhaps weight_zero_point int8 |
| nvfp4-pack-quantized, mxfp4-pack-quantized | weight_packed uint8 [outs, k / 2] of E2M1 numbers, weight_scale [outs, k / 16 or 32] as float8 or as exponents (uint8), perhaps weight_global_scale |

Packed integers are signed ones plus 2^(bits - 1). The format's settings for activations are ignored: they are rounded
as in `QuantizedLinear`.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.checkpoint_files import CheckpointFiles
from speculant.engines.hf.quantized.checkpoints.e2m1 import group_e2m1, read_exponents
from speculant.engines.hf.quantized.checkpoints.matrix import (
    PackedMatrix,
    find_group,
    group_values,
    order_inputs,
    unpack_halves,
    unpack_words,
)

FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized")
_PARTS = ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape", "weight_global_scale")


def is_readable(settings: Mapping[str, Any]) -> bool:
    """Return whether all of a checkpoint is in readable formats."""
    groups = settings.get("config_groups") or {}
    formats = {each.get("format") or settings.get("format") for each in groups.values()} or {settings.get("format")}
    sparse = (settings.get("sparsity_config") or {}).get("format", "dense")
    return formats <= {*FORMATS} and sparse == "dense" and not settings.get("transform_config")


def read_compressed_tensors(files: CheckpointFiles, settings: Mapping[str, Any]) -> Iterator[PackedMatrix]:
    """Yield the matrices of a compressed-tensors checkpoint; see `Reader`."""
    groups = (settings.get("config_groups") or {}).values()
    sizes = tuple({(each.get("weights") or {}).get("group_size") for each in groups})
    for tensor in files:
        base, _, part = tensor.rpartition(".")
        if part == "weight_packed":
            packed = files.read(tensor)
            small = packed.dtype is torch.uint8
            yield _read_e2m1(files, base, packed) if small else _read_words(files, base, packed, sizes)
        elif part == "weight" and f"{base}.weight_scale" in files:
            yield _read_bytes(files, base, files.read(tensor), sizes)


def _read_words(files: CheckpointFiles, base: str, words: Tensor, sizes: tuple[Any, ...]) -> PackedMatrix:
    outs, k = (int(each) for each in files.read(f"{base}.weight_shape"))
    bits = next((each for each in (4, 8) if -(-k * each // 32) == words.shape[1]), None)
    if bits is None:
        raise UnsupportedError(
            f"{base} has {words.shape[1]} words for {k} inputs; only weights of 4 and 8 bits are supported."
        )
    scales = files.read(f"{base}.weight_scale")
    zeros, offset = None, 1 << bits - 1
    if f"{base}.weight_zero_point" in files:
        zeros = unpack_words(files.read(f"{base}.weight_zero_point").t(), bits)[:, :outs].t()
        offset = 0  # values and zero points have the same offset from signed integers
    values, size = unpack_words(words, bits)[:, :k], find_group(k, scales.shape[1], *sizes)
    order = order_inputs(base, files.read(f"{base}.weight_g_idx"), size) if f"{base}.weight_g_idx" in files else None
    return _matrix(
        files,
        base,
        group_values(
            base,
            values if order is None else values[:, order],
            scales,
            bits=bits,
            group=size,
            zeros=zeros,
            offset=offset,
        ),
        order,
    )


def _read_bytes(files: CheckpointFiles, base: str, values: Tensor, sizes: tuple[Any, ...]) -> PackedMatrix:
    scales = files.read(f"{base}.weight_scale")
    if values.dtype is not torch.int8 or values.ndim != 2:
        raise UnsupportedError(f"{base} has weights of {values.dtype}; only those of 8-bit integers are supported.")
    outs, k = values.shape
    scales = scales.reshape(-1, 1) if scales.ndim < 2 else scales
    if len(scales) not in (1, outs):
        raise UnsupportedError(
            f"{base} has {len(scales)} rows of scales for {outs} outputs: scales per block of weights are not "
            "supported."
        )
    zeros = files.read(f"{base}.weight_zero_point") if f"{base}.weight_zero_point" in files else None
    shifted = (values.short() + 128).to(torch.uint8)
    zeros = None if zeros is None else zeros.reshape(scales.shape).expand(outs, -1)
    size = find_group(k, scales.shape[1], *sizes)
    matrix = group_values(base, shifted, scales.expand(outs, -1), bits=8, group=size, zeros=zeros, offset=128)
    return _matrix(files, base, matrix)


def _read_e2m1(files: CheckpointFiles, base: str, packed: Tensor) -> PackedMatrix:
    scales = files.read(f"{base}.weight_scale")
    wide = read_exponents(scales) if scales.dtype is torch.uint8 else scales.float()
    if f"{base}.weight_global_scale" in files:
        wide = wide / files.read(f"{base}.weight_global_scale").float()
    return _matrix(files, base, group_e2m1(base, unpack_halves(packed), wide))


def _matrix(files: CheckpointFiles, base: str, values: Any, order: Tensor | None = None) -> PackedMatrix:
    used = tuple(name for name in (f"{base}.{part}" for part in ("weight", *_PARTS)) if name in files)
    return PackedMatrix(name=f"{base}.weight", values=values, tensors=used, order=order)
