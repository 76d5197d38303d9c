"""The header of a GGUF file: its metadata, and the places of its tensors, all checked before use.

A file consists of, in little-endian order: the magic, the version, the numbers of tensors and of keys (uint64); per key
a string, a type and a value; per tensor its name, dimensions (innermost first), kind and offset; and then, from the
next multiple of the alignment on, the tensors (github.com/ggml-org/ggml, docs/gguf.md). Nothing is read past the end of
the file, and no length is trusted beyond the bytes that the file has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from speculant.core.errors import ModelError, UnsupportedError
from speculant.engines.hf.quantized.gguf.kinds import REMOVED, block_sizes

Value: TypeAlias = "bool | int | float | str | list[Value]"

VERSIONS = (2, 3)
MAX_DIMENSIONS = 4  # of tensors, as in ggml
MAX_TEXT = 1 << 24  # bytes of a string
MAX_ARRAY = 1 << 22
MAX_DEPTH = 4  # of arrays within arrays
DEFAULT_ALIGNMENT = 32

_NUMBERS = MappingProxyType(  # numpy's names by type number
    {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
)
_BOOL, _TEXT, _ARRAY = 7, 8, 9
_SHORTEST_KEY, _SHORTEST_TENSOR = 8 + 4 + 1, 8 + 4 + 4 + 8  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A tensor as described by the header.

    Attributes:
        kind: its name in ggml, such as "Q4_K".
        shape: outermost dimension first, as in PyTorch.
        start, size: byte range in the file.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A checked header: metadata by key, and tensors by name in the file's order."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]


def read_header(data: memoryview, path: Path) -> Header:
    """Read and check the header of a file.

    Args:
        data: all bytes of the file, mapped.
        path: path of the file, for messages.

    Raises:
        ModelError: the file is damaged, truncated, or of another version.
        UnsupportedError: it is big-endian, or has tensors of a kind that ggml itself no longer supports.
    """
    cursor = _Cursor(data, path)
    cursor.take(4, "its magic")
    _check_version(cursor)
    tensors, keys = cursor.integer(8, "the number of tensors"), cursor.integer(8, "the number of keys")
    if keys * _SHORTEST_KEY + tensors * _SHORTEST_TENSOR > len(data) - cursor.at:
        raise cursor.damage(f"its header counts {tensors} tensors and {keys} keys, for which it is too small")
    metadata: dict[str, Value] = {}
    for _ in range(keys):
        key = cursor.text("a key of its metadata")
        if key in metadata or not key:
            raise cursor.damage(
                f"its metadata has the key {key!r:.80} twice" if key else "a key of its metadata is empty"
            )
        metadata[key] = cursor.value(cursor.integer(4, f"the type of {key!r:.80}"), key)
    kinds = block_sizes()
    infos = [_read_info(cursor, kinds) for _ in range(tensors)]
    return Header(metadata=metadata, tensors=_place(cursor, infos, _alignment(cursor, metadata)))


class _Cursor:
    """A read position in the bytes of a file."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self._data, self._path, self.at = data, path, 0

    @property
    def size(self) -> int:
        """The size of the whole file in bytes."""
        return len(self._data)

    def damage(self, what: str) -> ModelError:
        """Return the error for a damaged file."""
        return ModelError(f"{self._path} is damaged: {what}. Download or convert it again.")

    def make_unsupported(self, what: str) -> UnsupportedError:
        """Return the error for an unsupported file."""
        return UnsupportedError(f"{self._path} cannot be read: {what}.")

    def take(self, count: int, what: str) -> memoryview:
        """Read the next bytes."""
        if count > len(self._data) - self.at:
            raise self.damage(f"it ends at byte {len(self._data)}, within {what}")
        self.at += count
        return self._data[self.at - count : self.at]

    def integer(self, size: int, what: str) -> int:
        """Read an unsigned integer of 4 or 8 bytes."""
        return int.from_bytes(self.take(size, what), "little")

    def length(self, max: int, what: str) -> int:
        """Read the length of a string or an array."""
        found = self.integer(8, what)
        if found > max:
            raise self.damage(f"the length of {what} is {found}, above {max}")
        return found

    def text(self, what: str) -> str:
        """Read a string."""
        encoded = self.take(self.length(MAX_TEXT, what), what)
        try:
            return str(encoded, "utf-8")
        except UnicodeDecodeError:
            raise self.damage(f"{what}, at byte {self.at - len(encoded)}, is not UTF-8") from None

    def value(self, kind: int, key: str, depth: int = 0) -> Value:
        """Read a metadata value."""
        what = f"the value of {key!r:.80}"
        if kind in _NUMBERS or kind == _BOOL:
            return self.numbers(kind, 1, what)[0]
        if kind == _TEXT:
            return self.text(what)
        if kind != _ARRAY:
            raise self.damage(f"{what} is of the unknown type {kind}")
        if depth == MAX_DEPTH:
            raise self.damage(f"{what} has arrays nested deeper than {MAX_DEPTH}")
        inner, length = self.integer(4, what), self.length(MAX_ARRAY, what)
        if inner in _NUMBERS or inner == _BOOL:
            return self.numbers(inner, length, what)
        if inner == _TEXT:
            return [self.text(what) for _ in range(length)]
        return [self.value(inner, key, depth + 1) for _ in range(length)]

    def numbers(self, kind: int, count: int, what: str) -> list[Value]:
        """Read numbers or booleans of one type."""
        dtype = np.dtype(_NUMBERS.get(kind, "<u1"))
        found = np.frombuffer(self.take(count * dtype.itemsize, what), dtype)
        if kind == _BOOL:
            if count and found.max() > 1:
                raise self.damage(f"{what} is neither true nor false")
            found = found.astype(bool)
        values: list[Value] = found.tolist()
        return values


def _check_version(cursor: _Cursor) -> None:
    version = cursor.integer(4, "its version")
    if version in VERSIONS:
        return
    if version & 0xFFFF == 0 and version:
        raise cursor.make_unsupported("it is big-endian. Convert the model again, for little-endian machines")
    if version == 1:
        raise cursor.make_unsupported("it is of version 1 of GGUF. Convert the model again")
    raise cursor.damage(f"its version is {version}; known are {' and '.join(map(str, VERSIONS))}")


def _alignment(cursor: _Cursor, metadata: Mapping[str, Value]) -> int:
    found = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(found, int) or found < 1 or found & (found - 1):
        raise cursor.damage(f"its alignment is {found}, not a power of two")
    return found


def _read_info(cursor: _Cursor, kinds: Mapping[int, tuple[str, int, int]]) -> TensorInfo:
    """Read the next tensor entry; its start is still relative to the start of all tensors."""
    name = cursor.text("the name of a tensor")
    what = f"the tensor {name!r:.80}"
    dimensions = cursor.integer(4, what)
    if dimensions > MAX_DIMENSIONS:
        raise cursor.damage(f"{what} has {dimensions} dimensions, above {MAX_DIMENSIONS}")
    shape = tuple(cursor.integer(8, what) for _ in range(dimensions))[::-1]
    code, start = cursor.integer(4, what), cursor.integer(8, what)
    if code in REMOVED:
        raise cursor.make_unsupported(
            f"{what} is of the kind {REMOVED[code]}, which was removed. Convert the model again"
        )
    if code not in kinds:
        raise cursor.damage(f"{what} is of the kind {code}, which is unknown here")
    kind, inputs, size = kinds[code]
    numbers = math.prod(shape)
    if not numbers or (shape[-1] if shape else 1) % inputs:
        raise cursor.damage(f"{what} has the shape {list(shape)}, which is not possible for {kind}")
    return TensorInfo(name=name, kind=kind, shape=shape, start=start, size=numbers // inputs * size)


def _place(cursor: _Cursor, infos: list[TensorInfo], alignment: int) -> Mapping[str, TensorInfo]:
    """Return tensors by name with their starts in the file; the first is at the next multiple of the alignment."""
    first, found, end = -(-cursor.at // alignment) * alignment, dict[str, TensorInfo](), 0
    for info in infos:
        if info.name in found:
            raise cursor.damage(f"it has two tensors {info.name!r:.80}")
        if info.start % alignment:
            raise cursor.damage(
                f"the tensor {info.name!r:.80} begins at {info.start}, not at a multiple of {alignment}"
            )
        found[info.name] = replace(info, start=first + info.start)
    for info in sorted(found.values(), key=lambda info: info.start):
        if info.start < end:
            raise cursor.damage(f"the tensor {info.name!r:.80} overlaps another")
        end = info.start + info.size
        if end > cursor.size:
            raise cursor.damage(f"it ends at byte {cursor.size}, and the tensor {info.name!r:.80} at byte {end}")
    return found
