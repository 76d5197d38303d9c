"""Memory-mapped GGUF files: metadata, and tensors that are read on demand.

A model may be split into files named `name-00001-of-00003.gguf` and so on; any of them opens the model.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from speculant.core.errors import FileError, ModelError, ModelNotFoundError, UnsupportedError
from speculant.engines.hf.quantized.gguf.header import Header, Value, read_header
from speculant.engines.hf.quantized.gguf.kinds import FLOATS, KINDS
from speculant.engines.hf.quantized.gguf.packing import unpack_packed
from speculant.engines.hf.quantized.weight import QuantizedWeight
from speculant.engines.llamacpp.file import check_file

T = TypeVar("T", bound=Value)

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux: files may be larger than the memory


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """A tensor of a GGUF file.

    Attributes:
        kind: its name in ggml, such as "Q4_K".
        shape: outermost dimension first, as in PyTorch.
        path: path of its file.
        start, size: byte range in the file.
        file: the mapped file.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    path: Path
    start: int
    size: int
    file: mmap.mmap

    @property
    def data(self) -> Tensor:
        """Return the tensor's bytes, uint8 [size], mapped."""
        return torch.frombuffer(self.file, dtype=torch.uint8, offset=self.start, count=self.size)

    @property
    def is_quantized(self) -> bool:
        """Whether the values are stored in blocks with scales."""
        return self.kind not in FLOATS

    def part(self, index: int) -> GgufTensor:
        """Return one slice along the first dimension, such as an expert's matrix."""
        size = self.size // self.shape[0]
        start = self.start + range(self.shape[0])[index] * size
        return GgufTensor(self.name, self.kind, self.shape[1:], self.path, start, size, self.file)

    def floats(self) -> Tensor:
        """Return the values of a float tensor in their own dtype, mapped from the file.

        Raises:
            UnsupportedError: the tensor is quantised.
        """
        if self.is_quantized:
            raise UnsupportedError(f"the tensor '{self.name}' of {self.path} is {self.kind}, not a tensor of floats.")
        data, (_, dtype) = self.data, FLOATS[self.kind]
        if self.start % dtype.itemsize:
            data = data.clone()
        return data.view(dtype).reshape(self.shape)

    def read_packed(self, *, order: Tensor | None = None, threads: int | None = None) -> QuantizedWeight:
        """Return a quantised matrix in the kernels' order; the file's pages are released from memory.

        Args:
            order: int64 [outs], the file row for each row of the result; None for the file's order.
            threads: number of threads; None for PyTorch's.

        Raises:
            UnsupportedError: there is no layout for its kind, or it is not a matrix.
        """
        outs, k = self.check_matrix()
        self._advise(mmap.MADV_WILLNEED)  # read ahead in full, if the file is not in memory yet
        weight = unpack_packed(self.data, self.kind, outs, k, order=order, threads=threads)
        self.release()
        return weight

    def check_matrix(self) -> tuple[int, int]:
        """Return the number of outputs and inputs of a quantised matrix.

        Raises:
            UnsupportedError: there is no layout for its kind, or it is not a matrix.
        """
        if self.kind not in KINDS:
            raise UnsupportedError(
                f"the tensor '{self.name}' of {self.path} is {self.kind}, which is not supported here; supported "
                f"quantised kinds: {', '.join(KINDS)}. Use a file in one of them, or llama.cpp (--engine llamacpp)."
            )
        if len(self.shape) != 2:
            raise UnsupportedError(
                f"the tensor '{self.name}' of {self.path} has the shape {list(self.shape)}; only quantised matrices "
                "are read here. Use llama.cpp (--engine llamacpp)."
            )
        outs, k = self.shape
        return outs, k

    def release(self) -> None:
        """Release the memory of the bytes to the system; they are read again when needed."""
        self._advise(mmap.MADV_DONTNEED)

    def _advise(self, advice: int) -> None:
        first = -(-self.start // mmap.PAGESIZE) * mmap.PAGESIZE  # pages of this tensor only
        size = (self.start + self.size) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if size > 0:
            self.file.madvise(advice, first, size)


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """A GGUF model, in one file or several.

    Attributes:
        path: path of the file, the first one of several.
        metadata: the first file's metadata by key.
        tensors: tensors by name, in file order.
    """

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]

    def read(self, key: str, kind: type[T]) -> T:
        """Return a metadata value.

        Raises:
            ModelError: it is missing, or has another type.
        """
        found = self.metadata.get(key)
        if not isinstance(found, kind) or isinstance(found, bool) != (kind is bool):
            what = "is missing" if found is None else f"is {found!r:.40}, not of the type {kind.__name__}"
            raise ModelError(f"{self.path} cannot be used: '{key}' {what}. Convert the model again.")
        return found


def open_gguf(path: str | Path) -> GgufFile:
    """Map a GGUF file, including the other files of a split model, and check their headers.

    Args:
        path: path of the file, or of any one of several.

    Raises:
        ModelNotFoundError: the file, or another one of the split model, does not exist.
        ModelError: it is not a GGUF file, damaged, truncated, or from another model than the others.
        UnsupportedError: its byte order, version or kind is not supported.
        FileError: it cannot be read.
    """
    path = Path(path)
    first, file = _open_one(path)
    count = _split_number(path, first, _COUNT, 1)
    if count <= 1:
        return GgufFile(path, first.metadata, _tensors(path, first, file))
    paths = _shards(path, count)
    opened = [_open_one(each) for each in paths]
    _check_shards(paths, [header for header, _ in opened])
    tensors: dict[str, GgufTensor] = {}
    for each, (header, mapped) in zip(paths, opened, strict=True):
        tensors |= _tensors(each, header, mapped)
    return GgufFile(paths[0], opened[0][0].metadata, tensors)


def _open_one(path: Path) -> tuple[Header, mmap.mmap]:
    check_file(path)
    try:
        with path.open("rb") as file:
            # Private and writable, since PyTorch has no read-only tensors; nothing is written.
            flags, protection = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            mapped = mmap.mmap(file.fileno(), 0, flags=flags, prot=protection)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {error}.") from error
    with memoryview(mapped) as data:
        return read_header(data, path), mapped


def _tensors(path: Path, header: Header, file: mmap.mmap) -> dict[str, GgufTensor]:
    return {
        name: GgufTensor(name, info.kind, info.shape, path, info.start, info.size, file)
        for name, info in header.tensors.items()
    }


def _split_number(path: Path, header: Header, key: str, default: int) -> int:
    found = header.metadata.get(key, default)
    if isinstance(found, bool) or not isinstance(found, int):
        raise ModelError(f"{path} is damaged: '{key}' is {found!r:.40}. Download or convert it again.")
    return found


def _shards(path: Path, count: int) -> list[Path]:
    """Return all files of a model, given one of them."""
    name = _SHARD.fullmatch(path.name)
    if name is None or int(name[3]) != count:
        raise ModelError(
            f"{path} is one of the {count} files of a model, which must be named like "
            f"name-00001-of-{count:05}.gguf. Rename all of them."
        )
    paths = [path.with_name(f"{name[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [each.name for each in paths if not each.exists()]
    if missing:
        rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelNotFoundError(
            f"{path} is one of the {count} files of a model, and {', '.join(missing[:3])}{rest} is missing in its "
            "folder. Download all of them."
        )
    return paths


def _check_shards(paths: list[Path], headers: list[Header]) -> None:
    """Check that files belong together.

    Raises:
        ModelError: they do not.
    """
    seen: dict[str, Path] = {}
    for number, (path, header) in enumerate(zip(paths, headers, strict=True)):
        found = _split_number(path, header, _NUMBER, -1), _split_number(path, header, _COUNT, -1)
        differs = [
            key for key, value in header.metadata.items()
            if key != _NUMBER and headers[0].metadata.get(key, value) != value
        ]  # fmt: skip
        twice = [name for name in header.tensors if name in seen]
        why = None
        if min(found) < 0:
            why = "its header does not say which of several files it is"
        elif found != (number, len(paths)):
            why = f"its header is that of file {found[0] + 1} of {found[1]}"
        elif differs:
            why = f"'{differs[0]}' differs from {paths[0].name}"
        elif twice:
            why = f"{seen[twice[0]].name} has the tensor '{twice[0]}' as well"
        if why is not None:
            raise ModelError(f"{path} is not of the same model as the other files: {why}. Download all of them again.")
        seen |= dict.fromkeys(header.tensors, path)
    expected = _split_number(paths[0], headers[0], _TENSORS, len(seen))
    if expected != len(seen):
        raise ModelError(
            f"{paths[0]} and its other files have {len(seen)} of {expected} tensors. Download all of them again."
        )
