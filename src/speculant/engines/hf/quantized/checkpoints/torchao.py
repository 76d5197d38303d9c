"""torchao's int4 and int8 weights in safetensors, as transformers saves them.

A weight `x.weight` is stored as tensors `x._weight_qdata`, `x._weight_scale`, ...; the header's metadata name its
class.

| class | tensors |
|---|---|
| Int4Tensor | qdata int8 [outs, k / 2], signed halves; scale and zero_point [groups, outs]: weight = value * scale + zero_point |
| Int8Tensor | qdata int8 [outs, k], scale [outs, groups], perhaps zero_point: weight = (value - zero_point) * scale |
| IntxUnpackedToInt8Tensor | the same, also for values of 4 bits |
"""  # noqa: E501

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.checkpoint_files import CheckpointFiles
from speculant.engines.hf.quantized.checkpoints.matrix import PackedMatrix, group_values, unpack_halves
from speculant.engines.hf.quantized.weight import GroupedValues

_PLAIN = ("Tensor", "torch.Tensor")
_SMALL = ("int1", "int2", "int3", "int4")  # dtypes that fit in 4 bits


def read_torchao(files: CheckpointFiles, _settings: Mapping[str, Any]) -> Iterator[PackedMatrix]:
    """Yield the matrices of a torchao checkpoint; see `Reader`."""
    found = False
    for name, text in files.metadata.items():
        facts = _facts(text)
        if facts is None or facts.get("_type") in _PLAIN:
            continue
        found = True
        kind, (path, _, weight) = str(facts["_type"]), name.rpartition(".")
        prefix = f"{path}._{weight}_"
        names = tuple(each for each in files if each.startswith(prefix))
        parts = {each.removeprefix(prefix): each for each in names}
        if kind not in ("Int4Tensor", "Int8Tensor", "IntxUnpackedToInt8Tensor") or "act_pre_scale" in parts:
            kind += " with a scale of its inputs" if "act_pre_scale" in parts else ""
            raise UnsupportedError(
                f"{name} is a torchao {kind}, which is not supported; Int4Tensor, Int8Tensor and "
                "IntxUnpackedToInt8Tensor are."
            )
        values = _read(name, kind, facts.get("_data", {}), {part: files.read(each) for part, each in parts.items()})
        yield PackedMatrix(name=name, values=values, tensors=names)
    if not found:
        raise UnsupportedError("the checkpoint's metadata name no torchao weights; save it with safetensors.")


def _read(name: str, kind: str, facts: Mapping[str, Any], parts: Mapping[str, Any]) -> GroupedValues:
    data, scales, zeros = parts["qdata"], parts["scale"], parts.get("zero_point")
    if kind == "Int4Tensor" and zeros is not None:
        values = unpack_halves(data) ^ 8  # signed halves, plus 8
        group = int(facts["block_size"][-1])
        return group_values(name, values, scales.t(), bits=4, group=group, offset=8, minima=zeros.t())
    if facts["block_size"][0] != 1:
        scales = scales.reshape(1, -1)
        if len(data) != facts["block_size"][0]:
            raise UnsupportedError(f"{name} has a scale per block of outputs, which is not supported.")
    scales = scales.reshape(scales.shape[0], -1)
    group = int(facts["block_size"][-1])
    small = str((facts.get("target_dtype") or {}).get("_data")) in _SMALL
    offset = 8 if small else 128
    values = (data.short() + offset).to(torch.uint8)
    zeros = None if zeros is None else zeros.reshape(scales.shape).expand(len(data), -1)
    scales = scales.expand(len(data), -1)
    return group_values(name, values, scales, bits=4 if small else 8, group=group, zeros=zeros, offset=offset)


def _facts(text: str) -> dict[str, Any] | None:
    """Parse a weight's metadata; None if it is not a weight's."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "_type" in found else None
