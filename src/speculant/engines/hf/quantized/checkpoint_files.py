"""The safetensors files of a checkpoint, in a folder or on the hub: tensors by name, mapped and read on demand."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from speculant.core.errors import ModelNotFoundError, UnsupportedError

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_MAX_HEADER = 1 << 28
_WEIGHTS = (".safetensors", ".bin", ".json")


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """Open checkpoint files.

    Attributes:
        source: the folder or hub id, for messages.
        metadata: merged metadata of all headers.
    """

    source: str
    metadata: Mapping[str, str]
    _files: Mapping[str, Any]
    _open: ExitStack = field(repr=False)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __enter__(self) -> CheckpointFiles:
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def read(self, name: str) -> Tensor:
        """Return a tensor, mapped from its file.

        Raises:
            ModelNotFoundError: no tensor has this name, or its file is damaged.
        """
        from safetensors import SafetensorError

        if name not in self._files:
            raise ModelNotFoundError(f"the checkpoint in {self.source} has no tensor {name}.")
        try:
            found: Tensor = self._files[name].get_tensor(name)
        except SafetensorError as error:
            raise ModelNotFoundError(f"{name} in {self.source} cannot be read: {error}") from error
        return found


def open_checkpoint(source: str) -> CheckpointFiles:
    """Open the safetensors files of a checkpoint.

    Raises:
        UnsupportedError: its weights are in another file format.
        ModelNotFoundError: a file is missing or damaged.
    """
    from safetensors import SafetensorError, safe_open

    opened = ExitStack()
    files: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    try:
        for path in _paths(source):
            file = opened.enter_context(safe_open(path, framework="pt"))
            metadata |= file.metadata() or {}
            files |= dict.fromkeys(file.keys(), file)
    except (OSError, SafetensorError, ValueError, AttributeError) as error:
        opened.close()
        raise ModelNotFoundError(f"the weights in {source} cannot be read: {error}") from error
    return CheckpointFiles(source, metadata, files, opened)


def checkpoint_identity(source: str) -> str | None:
    """Return a digest that identifies a checkpoint: names, sizes, times and headers of its files.

    None if its files are not on this machine yet.
    """
    from transformers.utils.hub import cached_file

    config = cached_file(source, "config.json", local_files_only=True, _raise_exceptions_for_missing_entries=False)
    if config is None:
        return None
    files = sorted(path for path in Path(config).parent.iterdir() if path.suffix in _WEIGHTS)
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        facts = path.stat()
        digest.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
        if path.suffix == ".safetensors":
            digest.update(_header(path))
    return digest.hexdigest() if any(path.suffix != ".json" for path in files) else None


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
        return file.read(min(length, _MAX_HEADER))


def find_file(source: str, name: str) -> Path:
    """Return a file of a checkpoint, downloading it from the hub if necessary.

    Raises:
        ModelNotFoundError: there is no file of this name.
    """
    found = _find(source, name)
    if found is None:
        raise ModelNotFoundError(f"the checkpoint in {source} has no {name}.")
    return Path(found)


def _find(source: str, name: str) -> str | None:
    from transformers.utils.hub import cached_file

    return cached_file(source, name, _raise_exceptions_for_missing_entries=False)  # type: ignore[no-any-return]


def _paths(source: str) -> list[str]:
    index = _find(source, _INDEX)
    if index is not None:
        named = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()
        return [str(find_file(source, name)) for name in sorted(set(named))]
    single = _find(source, _SINGLE)
    if single is None:
        raise UnsupportedError(
            f"{source} has no {_SINGLE}: packed weights are read from safetensors only. Save the model with "
            "safe_serialization=True."
        )
    return [single]
