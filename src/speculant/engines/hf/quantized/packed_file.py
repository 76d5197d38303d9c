"""Stores quantised weights in a safetensors file, which is mapped when loaded, so that nothing is rounded twice.

Parts of a packed matrix are tensors named `<parameter>.<part>`, floats are tensors under their own names. The header's
metadata hold the layout's version, the matrices' sizes and a checksum of each tensor, and a digest of these. Data begin
at a multiple of 4096 bytes, and tensors whose size is a multiple of 64 come first, so that the kernels read whole cache
lines.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.core.errors import ModelError
from speculant.engines.hf.quantized.parts import Parts
from speculant.engines.hf.quantized.weight import GroupScales, QuantizedWeight
from speculant.memory.aside import write_aside

LAYOUT = 1
_PAGE, _LINE = 4096, 64
_KEY, _DIGEST = "speculant", "speculant_digest"  # metadata keys
_DTYPES = {
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.bool: "BOOL",
}


class PackedFileError(ModelError):
    """A file of packed weights is damaged, or has another layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFile:
    """The contents of a file.

    Attributes:
        parts: weights and floats, mapped from the file.
        facts: other data written with them, as parsed JSON.
    """

    parts: Parts
    facts: Mapping[str, Any]


def save_packed(path: Path, parts: Parts, facts: Mapping[str, Any]) -> None:
    """Write the parts of a model; an existing file is replaced when the new one is complete.

    Args:
        path: path of the file; its folder exists.
        parts: parts of the model.
        facts: other data to store, as JSON.

    Raises:
        OSError: it cannot be written; no partial file remains.
    """
    tensors = _flatten(parts)
    order = sorted(tensors, key=lambda name: (_size(tensors[name]) % _LINE != 0, -tensors[name].element_size()))
    kept = {
        "layout": LAYOUT,
        "facts": dict(facts),
        "matrices": {name: _shape(weight) for name, weight in parts.weights.items()},
        "orders": list(parts.orders),
        "checksums": {name: _checksum(tensors[name]) for name in order},
    }
    text = json.dumps(kept)
    header: dict[str, Any] = {"__metadata__": {_KEY: text, _DIGEST: _digest(text)}}
    place = 0
    for name in order:
        tensor, size = tensors[name], _size(tensors[name])
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [place, place + size]}
        place += size
    written = json.dumps(header).encode()
    written += b" " * (-(len(written) + 8) % _PAGE)
    with write_aside(path) as file:
        file.write(struct.pack("<Q", len(written)) + written)
        for name in order:
            file.write(_bytes(tensors[name]))


def load_packed(path: Path) -> PackedFile:
    """Map and check a file.

    Raises:
        PackedFileError: it is damaged, truncated, or has another layout.
        OSError: it cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if _digest(metadata[_KEY]) != metadata[_DIGEST]:
                raise PackedFileError(f"{path} is damaged: its header has changed")
            kept = json.loads(metadata[_KEY])
            if kept.get("layout") != LAYOUT:
                raise PackedFileError(f"{path} has the layout {kept.get('layout')} instead of {LAYOUT}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dict)
        checksums = kept["checksums"]
        wrong = [name for name in checksums if name not in tensors or _checksum(tensors[name]) != checksums[name]]
        if wrong or len(tensors) != len(checksums):
            raise PackedFileError(f"{path} is damaged: {(wrong or ['its list of tensors'])[0]} has changed")
        weights = {name: _weight(name, shape, tensors) for name, shape in kept["matrices"].items()}
        orders = {name: tensors.pop(f"{name}.order") for name in kept["orders"]}
        return PackedFile(parts=Parts(weights=weights, floats=tensors, orders=orders), facts=kept["facts"])
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise PackedFileError(f"{path} is damaged: {error}") from error


def _flatten(parts: Parts) -> dict[str, Tensor]:
    tensors = {
        f"{name}.{part}": each for name, weight in parts.weights.items() for part, each in weight.tensors().items()
    }
    tensors |= {f"{name}.order": each for name, each in parts.orders.items()}
    return {name: each.detach().contiguous() for name, each in (tensors | dict(parts.floats)).items()}


def _shape(weight: QuantizedWeight) -> dict[str, int]:
    names = ("outs", "k", "bits", "group", "offset")
    return {name: getattr(weight, name) for name in names}


def _weight(name: str, shape: Mapping[str, int], tensors: dict[str, Tensor]) -> QuantizedWeight:
    """Take the parts of a matrix from all tensors."""
    minima = tensors.pop(f"{name}.minima", None)
    return QuantizedWeight(
        **shape,
        values=tensors.pop(f"{name}.values"),
        scales=GroupScales(numbers=tensors.pop(f"{name}.scales"), factors=tensors.pop(f"{name}.scale_factors", None)),
        minima=None
        if minima is None
        else GroupScales(numbers=minima, factors=tensors.pop(f"{name}.min_factors", None)),
        table=tensors.pop(f"{name}.table", None),
    )


def _bytes(tensor: Tensor) -> Any:
    """Return a tensor's bytes, UInt8[size]."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _checksum(tensor: Tensor) -> str:
    """Return a tensor's dtype, shape, and the sum of its 64-bit words modulo 2**64, computed at memory speed."""
    data = _bytes(tensor)
    whole = len(data) // 8 * 8
    rest = int.from_bytes(data[whole:].tobytes(), "little")
    words = int(data[:whole].view(np.uint64).sum(dtype=np.uint64))
    return f"{_DTYPES[tensor.dtype]} {[*tensor.shape]} {(words + rest) % 2**64:x}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
