"""The file of a drafter's memory: a JSON header followed by named arrays, written so that crashes cannot damage it.

Layout: 8 bytes of magic, the header's length and CRC-32 (two UInt32), the header, then each array at a multiple of 64.
The header holds format version, kind, tokenizer fingerprint and, per array, dtype, shape, offset and CRC-32. A file is
written under a temporary name and renamed (`aside.py`), so a reader sees the old file or the new one; on load the
checksums are verified and the arrays are memory-mapped.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from speculant.core.errors import CorruptMemoryError, FileError, ForeignMemoryError
from speculant.memory.aside import write_aside

MAGIC = b"SPCLNT\r\n"
VERSION = 1
BASE = "mix-base"  # the kind of frozen bases
_PREAMBLE = 16
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Memory:
    """The contents of a memory file of any kind.

    Attributes:
        kind: kind of memory, which tells the drafter family that wrote it; see `MemoryKind`.
        tokenizer: fingerprint of the tokenizer whose ids it holds.
        arrays, facts: the arrays and facts that were passed to `write_memory`.
    """

    kind: str
    tokenizer: str
    arrays: Mapping[str, npt.NDArray[Any]]
    facts: Mapping[str, Any]


def write_memory(
    path: Path, *, kind: str, tokenizer: str, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]
) -> None:
    """Write the arrays and facts to `path` atomically.

    Raises:
        FileError: the folder does not exist or cannot be written, or the disk is full; the old file is unchanged.
    """
    entries, offset = {}, 0
    blobs = {name: np.ascontiguousarray(array).data for name, array in arrays.items()}  # not copied: they may be large
    for name, array in arrays.items():
        entries[name] = {
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "offset": offset,
            "crc32": zlib.crc32(blobs[name]),
        }
        offset += _pad(array.nbytes)
    header = {"version": VERSION, "kind": kind, "tokenizer": tokenizer, "facts": dict(facts), "arrays": entries}
    encoded = json.dumps(header).encode()
    encoded += b" " * (_pad(_PREAMBLE + len(encoded)) - _PREAMBLE - len(encoded))
    preamble = MAGIC + len(encoded).to_bytes(4, "little") + zlib.crc32(encoded).to_bytes(4, "little")
    path = Path(path)
    try:
        with write_aside(path) as file:
            file.write(preamble + encoded)
            for blob in blobs.values():
                file.write(blob)
                file.write(bytes(_pad(blob.nbytes) - blob.nbytes))
    except OSError as error:
        raise FileError(
            f"cannot write the memory file {path}: {error.strerror}. An existing file is unchanged; "
            "name a folder that exists, is writable and has room."
        ) from error


def read_memory(
    path: Path, *, kind: str, tokenizer: str, verify: bool = True
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Return the arrays, memory-mapped read-only, and the facts.

    Args:
        path: path of the file.
        kind, tokenizer: the kind and tokenizer fingerprint that it must have.
        verify: whether to verify the checksums of the arrays, which reads the whole file. If not, the arrays may hold
            any values.

    Raises:
        FileError: there is no such file, or it cannot be read.
        CorruptMemoryError: it is not a memory file, or is damaged.
        ForeignMemoryError: it was written for another tokenizer, by another kind of drafter or a newer version.
    """
    path = Path(path)
    header, body = read_header(path)
    if header["kind"] != kind:
        frozen = "It is a frozen base, which is used below a memory: pass it with --base, or base= in Python."
        advice = frozen if header["kind"] == BASE else "Name another file."
        raise ForeignMemoryError(f"{path} holds a memory of kind '{header['kind']}', not '{kind}'. {advice}")
    if header["tokenizer"] != tokenizer:
        raise ForeignMemoryError(
            f"{path} was made with another tokenizer (fingerprint {header['tokenizer']}, this model's is "
            f"{tokenizer}); its token ids stand for other tokens here. Use the model it was made with, or another "
            "memory file."
        )
    arrays = {}
    for name, entry in header["arrays"].items():
        dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
        size = dtype.itemsize * int(np.prod(shape))
        start = body + entry["offset"]
        if start + size > path.stat().st_size:
            raise CorruptMemoryError(
                f"{path} is cut short: the file ends before the end of its array '{name}'. "
                "Restore a copy, or delete it."
            )
        mapped = np.memmap(path, dtype, "r", start, shape) if size else np.empty(shape, dtype)
        mapped.flags.writeable = False  # empty ones too, so that kernels are compiled for only one type of array
        if verify and zlib.crc32(mapped.data) != entry["crc32"]:
            raise CorruptMemoryError(
                f"{path} is damaged: the checksum of its array '{name}' does not match. Restore a copy, or delete it."
            )
        arrays[name] = np.asarray(mapped)
    return arrays, header["facts"]


def read_any_memory(path: Path) -> Memory:
    """Read a memory of any kind and tokenizer.

    Raises:
        FileError, CorruptMemoryError, ForeignMemoryError: as in `read_memory`.
    """
    header, _ = read_header(path)
    kind, tokenizer = header["kind"], header["tokenizer"]
    arrays, facts = read_memory(path, kind=kind, tokenizer=tokenizer)
    return Memory(kind=kind, tokenizer=tokenizer, arrays=arrays, facts=facts)


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header and the offset of the first array.

    Raises:
        FileError: there is no such file, or it cannot be read.
        CorruptMemoryError: it is not a memory file, or its header is damaged.
        ForeignMemoryError: it was written by a newer version.
    """
    try:
        with path.open("rb") as file:
            preamble = file.read(_PREAMBLE)
            length = int.from_bytes(preamble[8:12], "little")
            encoded = file.read(min(length, path.stat().st_size)) if preamble[:8] == MAGIC else b""
    except FileNotFoundError as error:
        raise FileError(f"there is no memory file {path}.") from error
    except OSError as error:
        raise FileError(f"cannot read the memory file {path}: {error.strerror}.") from error
    if preamble[:8] != MAGIC:
        raise CorruptMemoryError(f"{path} is not a Speculant memory file. Name another, or delete it.")
    if not encoded or zlib.crc32(encoded) != int.from_bytes(preamble[12:16], "little"):
        raise CorruptMemoryError(
            f"{path} is damaged: the checksum of its header does not match. Restore a copy, or delete it."
        )
    header = json.loads(encoded)
    if header["version"] != VERSION:
        raise ForeignMemoryError(
            f"{path} has format version {header['version']}, this version of Speculant reads version {VERSION}. "
            "Use the version of Speculant that wrote it, or start a new file."
        )
    return header, _PREAMBLE + length


def _pad(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
