"""MXFP4 experts of GPT-OSS, as OpenAI publishes them: E2M1 numbers with a power of two per 32 inputs.

| tensor of `model.layers.N.mlp.experts` | dtype and shape | holds |
|---|---|---|
| gate_up_proj_blocks, down_proj_blocks | uint8 [E, outs, k / 32, 16] | two codes per byte, the lower half first |
| gate_up_proj_scales, down_proj_scales | uint8 [E, outs, k / 32] | exponents plus 127 |

Rows of gate_up_proj alternate between gate and up. All other weights are floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from speculant.engines.hf.quantized.checkpoint_files import CheckpointFiles
from speculant.engines.hf.quantized.checkpoints.e2m1 import group_e2m1, read_exponents
from speculant.engines.hf.quantized.checkpoints.matrix import PackedMatrix, unpack_halves

_BLOCKS, _SCALES = "_blocks", "_scales"


def read_mxfp4(files: CheckpointFiles, _settings: Mapping[str, Any]) -> Iterator[PackedMatrix]:
    """Yield the matrices of each layer's experts, with the outputs of all experts concatenated; see `Reader`."""
    for tensor in files:
        if not tensor.endswith(_BLOCKS):
            continue
        base = tensor.removesuffix(_BLOCKS)
        path, _, projection = base.rpartition(".")
        blocks, scales = files.read(tensor), files.read(base + _SCALES)
        both = projection == "gate_up_proj"
        for place, name in enumerate(("gate_proj", "up_proj") if both else (projection,)):
            own = slice(place, None, 2) if both else slice(None)
            codes = unpack_halves(blocks[:, own].flatten(2).flatten(0, 1))
            exponents = read_exponents(scales[:, own].flatten(0, 1))
            values = group_e2m1(f"{path}.{name}", codes, exponents)
            yield PackedMatrix(name=f"{path}.{name}", values=values, tensors=(tensor, base + _SCALES))
