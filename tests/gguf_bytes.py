"""GGUF files written byte by byte, so that tests can write wrong ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from speculant.engines.hf.quantized.gguf.kinds import KINDS, block_sizes, row_bytes

FORMS = {"u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i"),
         "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d")}  # fmt: skip

HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2),
          "Q6_K": (208,), "MXFP4": ()}  # fmt: skip


def random_blocks(kind: str, outs: int, k: int, seed: int = 0, *, alike: bool = False) -> torch.Tensor:
    """Return blocks of random bytes, uint8 [outs, bytes]: every pattern of values, with finite scales.

    Args:
        alike: whether all scales have the same exponent.
    """
    generator, layout = torch.Generator().manual_seed(seed), KINDS[kind]
    blocks = torch.randint(0, 256, (outs, k // layout.inputs, layout.size), dtype=torch.uint8, generator=generator)
    for at in HALVES.get(kind, (0,)):  # where the float16 numbers of a block stand
        high = blocks[..., at + 1]
        high[(high & 124) == 124] ^= 64  # exponents of 31 are infinities and NaN
        if alike:
            high &= 0x83
            high |= 32
    if alike and kind == "MXFP4":
        blocks[..., 0] = 121
    return blocks.reshape(outs, row_bytes(kind, k))


def text(value: str | bytes) -> bytes:
    """Return a string as files have it."""
    encoded = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def value(form: str, content: Any) -> bytes:
    """Return a value with its type: a form of `FORMS`, "text", or "[form]" for an array."""
    if form == "text":
        return struct.pack("<I", 8) + text(content)
    if form.startswith("["):
        inner = [value(form[1:-1], each) for each in content]
        kind = value(form[1:-1], [] if form[1] == "[" else "" if form == "[text]" else 0)[:4]
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(inner)) + b"".join(each[4:] for each in inner)
    code, packed = FORMS[form]
    return struct.pack("<I", code) + struct.pack(packed, content)


def gguf_bytes(
    metadata: Mapping[str | bytes, tuple[str, Any]] | None = None,
    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]] | None = None,
    *,
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
    offsets: Mapping[str, int] | None = None,
) -> bytes:
    """Return a file: metadata by key as (form, value), tensors by name as (kind, shape, bytes).

    Args:
        counts: of tensors and keys, if they are to be wrong; `offsets` likewise.
    """
    metadata, tensors = dict(metadata or {}), tensors or {}
    if alignment != 32:
        metadata["general.alignment"] = ("u32", alignment)
    codes = {name: code for code, (name, _, _) in block_sizes().items()}
    header = b"GGUF" + struct.pack("<I2Q", version, *(counts or (len(tensors), len(metadata))))
    header += b"".join(text(key) + value(*content) for key, content in metadata.items())
    body = b""
    for name, (kind, shape, data) in tensors.items():
        at = (offsets or {}).get(name, len(body))
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), codes[kind], at)
        body += data + bytes(-len(data) % alignment)
    return header + bytes(-len(header) % alignment) + body


def small_gguf() -> bytes:
    """Return a valid file with every type of metadata, and tensors of several kinds."""
    metadata = {f"a.{form}": (form, 1) for form in FORMS} | {
        "general.architecture": ("text", "llama"),
        "tokens": ("[text]", ["a", "é", ""]),
        "types": ("[i32]", [1, -2, 3]),
        "flags": ("[bool]", [True, False]),
        "nested": ("[[u8]]", [[1, 2], [], [3]]),
    }
    tensors = {
        "norm": ("F32", (4,), struct.pack("<4f", 1, 2, 3, 4)),
        "half": ("F16", (2, 3), torch.arange(6).half().numpy().tobytes()),
        "brain": ("BF16", (3,), struct.pack("<3H", 0x3F80, 0x4000, 0xC040)),
        "q8": ("Q8_0", (3, 64), random_blocks("Q8_0", 3, 64).numpy().tobytes()),
        "q4": ("Q4_K", (2, 256), random_blocks("Q4_K", 2, 256).numpy().tobytes()),
        "experts": ("MXFP4", (2, 3, 32), random_blocks("MXFP4", 6, 32).numpy().tobytes()),
    }
    return gguf_bytes(metadata, tensors)


def write_shards(folder: Path, count: int = 3) -> list[Path]:
    """Write a model in several files, each with one tensor; return their paths."""
    paths = []
    for number in range(count):
        metadata: dict[str | bytes, tuple[str, Any]] = {
            "split.no": ("u16", number), "split.count": ("u16", count), "split.tensors.count": ("i32", count),
        }  # fmt: skip
        if number == 0:
            metadata["general.architecture"] = ("text", "llama")
        tensors = {f"t{number}": ("F32", (1,), struct.pack("<f", number))}
        paths.append(folder / f"model-{number + 1:05}-of-{count:05}.gguf")
        paths[-1].write_bytes(gguf_bytes(metadata, tensors))
    return paths


def corrupt(data: bytes, chance: random.Random) -> bytes:
    """Return a file with bytes flipped, cut off, or replaced by others of it."""
    kind, found = chance.randrange(4), bytearray(data)
    if kind == 0:
        return data[: chance.randrange(4, len(data))]
    if kind == 1:
        start, size = chance.randrange(4, len(data)), chance.randrange(1, 40)
        taken = chance.randrange(len(data))
        found[start : start + size] = data[taken : taken + chance.randrange(40)]
        return bytes(found)
    for _ in range(chance.choice((1, 1, 3, 20))):
        found[chance.randrange(4, 900)] = chance.choice((0, 1, 127, 255, chance.randrange(256)))
    return bytes(found)
