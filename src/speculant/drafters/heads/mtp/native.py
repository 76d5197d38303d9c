"""The MTP tensors of a model's own checkpoint: found by name in its index or headers, and read without the others."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from speculant.core.errors import ModelNotFoundError, UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, first_line, read_config
from speculant.drafters.heads.mtp.layouts import plain_name

_INDEX = "model.safetensors.index.json"
_SCALES = "_scale_inv"  # next to each FP8 weight, one number per block
_BLOCK = (128, 128)


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of every tensor in a checkpoint, by name; {} without safetensors. No weights are read.

    Raises:
        ModelNotFoundError: the index or a header is damaged.
    """
    index = folder / _INDEX
    try:
        if index.exists():
            held: dict[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
            return {name: folder / file for name, file in held.items()}
        found = dict[str, Path]()
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as opened:
                found |= dict.fromkeys(opened.keys(), file)
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise ModelNotFoundError(f"the tensors in {folder} cannot be listed: {first_line(error)}") from error


def read_native(folder: Path, files: Mapping[str, Path], names: Collection[str], dtype: torch.dtype) -> Checkpoint:
    """Read some tensors of a checkpoint, by plain names and in floating point.

    Args:
        folder: folder of the checkpoint.
        files: result of `tensor_files`.
        names: names of the tensors to read.
        dtype: dtype to which FP8 tensors are converted.

    Raises:
        ModelNotFoundError: a file is missing or damaged.
        UnsupportedError: they are quantised in a way other than FP8 blocks.
    """
    found = dict[str, Tensor]()
    for file in sorted({files[name] for name in names}):
        try:
            with safe_open(file, framework="pt") as opened:
                found |= {plain_name(name): opened.get_tensor(name) for name in names if files[name] == file}
        except (OSError, SafetensorError) as error:
            raise ModelNotFoundError(f"{file} cannot be read: {first_line(error)}") from error
    config = read_config(folder)
    quantised = config.get("quantization_config") or {}
    block = tuple(quantised.get("weight_block_size") or _BLOCK)
    tensors = {}
    for name, each in found.items():
        if name.endswith(_SCALES):
            continue
        if (scales := found.get(name + _SCALES)) is not None:
            tensors[name] = dequantise(each, scales, block).to(dtype)
        elif not each.is_floating_point() or each.itemsize < 2 or name.endswith(("_scale", "_zero_point")):
            kind = quantised.get("quant_method") or str(each.dtype).removeprefix("torch.")
            raise UnsupportedError(f"{name} is quantised ({kind}), but only FP8 blocks are supported.")
        else:
            tensors[name] = each
    return Checkpoint(str(folder), config, tensors)


def dequantise(weight: Tensor, scales: Tensor, block: tuple[int, ...]) -> Tensor:
    """Return the values Float32[..., m, n] of an FP8 weight with one scale per block [a, b].

    Args:
        weight: Float8[..., m, n].
        scales: Float32[..., ceil(m / a), ceil(n / b)].
        block: a and b.
    """
    rows, columns = weight.shape[-2:]
    wide = scales.float().repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    return weight.float() * wide[..., :rows, :columns]
