"""GPTQ (Frantar et al. 2022, arXiv 2210.17323), as AutoGPTQ and GPTQModel write it: 4 and 8 bits.

| tensor | dtype and shape | holds |
|---|---|---|
| qweight | int32 [k * bits / 32, outs] | values, packed along the inputs |
| qzeros | int32 [groups, outs * bits / 32] | zero points, packed along the outputs; in format "gptq" (v1) less one |
| scales | float16 [groups, outs] | |
| g_idx | int32 [k] | the group of each input; sorted by importance where `desc_act` is set |

weight[n, i] = scales[g, n] * (value[n, i] - zero[g, n]) with g = g_idx[i]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.checkpoint_files import CheckpointFiles
from speculant.engines.hf.quantized.checkpoints.matrix import (
    PackedMatrix,
    find_group,
    group_values,
    order_inputs,
    unpack_words,
)

_ONES = {4: 0x11111111, 8: 0x01010101}  # 1 in each integer of a word


def read_gptq(files: CheckpointFiles, settings: Mapping[str, Any]) -> Iterator[PackedMatrix]:
    """Yield the matrices of a GPTQ checkpoint; see `Reader`."""
    version = settings.get("checkpoint_format") or settings.get("format") or "gptq"
    if version not in ("gptq", "gptq_v2"):
        raise UnsupportedError(f"GPTQ's format {version!r} is not supported; gptq and gptq_v2 are.")
    for tensor in files:
        base, _, part = tensor.rpartition(".")
        if part != "qweight":
            continue
        words, zeros, scales = (files.read(f"{base}.{each}") for each in ("qweight", "qzeros", "scales"))
        outs = words.shape[1]
        bits = 32 * zeros.shape[1] // outs
        if bits not in _ONES:
            raise UnsupportedError(
                f"{base} has {bits} bits per weight; only GPTQ weights of 4 and 8 bits are supported."
            )
        if version == "gptq":  # whole words, as it was written: a zero point of 0 borrowed a bit from the next one
            zeros = zeros + torch.tensor(_ONES[bits], dtype=torch.int32)
        values = unpack_words(words.t(), bits)
        size = find_group(values.shape[1], len(scales), settings.get("group_size"))
        names = [f"{base}.{each}" for each in ("qweight", "qzeros", "scales")]
        order = None
        if f"{base}.g_idx" in files:
            names.append(f"{base}.g_idx")
            order = order_inputs(base, files.read(names[-1]), size)
        yield PackedMatrix(
            name=f"{base}.weight",
            values=group_values(
                base,
                values if order is None else values[:, order],
                scales.t(),
                bits=bits,
                group=size,
                zeros=unpack_words(zeros, bits)[:, :outs].t(),
            ),
            tensors=tuple(names),
            order=order,
        )
