"""Hidden states on disk, in float16, up to a number of bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.core.errors import FileError, UnsupportedError
from speculant.memory.aside import SHARED, write_aside

STATES, FILLED, ABOUT = "states.f16", "filled.npy", "about.json"


class FeatureCache:
    """The states of the first groups that fit, each written when first needed.

    Which groups are kept depends only on the limit, and kept states are rounded to float16 whether just computed or
    read again, so training gives the same result with an empty, full or partly filled cache.
    """

    def __init__(
        self, folder: Path, *, rows: Sequence[int], shape: tuple[int, int], limit: int, about: dict[str, Any]
    ) -> None:
        """Open or create a cache.

        Args:
            folder: a folder for the cache alone.
            rows: number of tokens in each group.
            shape: L' and D of a token's states.
            limit: maximum bytes.
            about: description of the states; a cache with another description is replaced.

        Raises:
            FileError: it cannot be written.
        """
        ends, width = np.cumsum(np.asarray(rows, np.int64)), shape[0] * shape[1]
        self._held = int(np.searchsorted(ends * width * 2, limit, side="right"))
        self._starts, self._shape, self._width = np.concatenate([[0], ends]), shape, width
        self._folder = folder
        self._filled = np.zeros(self._held, bool)
        about = about | {"groups": self._held, "tokens": int(self._starts[self._held]), "shape": list(shape)}
        if self._held:
            self._open(about)

    def __len__(self) -> int:
        """The number of groups that fit."""
        return self._held

    @property
    def bytes(self) -> int:
        """The size of the cache in bytes."""
        return int(self._starts[self._held]) * self._width * 2

    def holds(self, group: int) -> bool:
        """Return whether there is space for a group."""
        return group < self._held

    def is_filled(self, group: int) -> bool:
        """Return whether a group's states are stored."""
        return bool(self._filled[group])

    def put(self, group: int, states: Tensor) -> None:
        """Write the states [tokens, L', D] of a group.

        Raises:
            UnsupportedError: they exceed the range of float16.
        """
        half = states.detach().to("cpu", torch.float16)
        if not bool(half.isfinite().all()):
            raise UnsupportedError(
                "the target's hidden states are beyond the range of float16, in which they are cached; "
                "leave out --cache, so that they are computed every time."
            )
        start, end = self._starts[group : group + 2]
        self._states[start:end] = half.flatten(1).numpy()
        self._filled[group] = True

    def get(self, group: int) -> Tensor:
        """Return the states [tokens, L', D] of a group, in float16."""
        start, end = self._starts[group : group + 2]
        found = torch.from_numpy(np.array(self._states[start:end]))
        return found.view(len(found), *self._shape)

    def flush(self) -> None:
        """Flush to disk: states first, then the note that they are there."""
        if not self._held:
            return
        self._states.flush()
        with write_aside(self._folder / FILLED, mode=SHARED) as file:
            np.save(file, self._filled)

    def _open(self, about: dict[str, Any]) -> None:
        note, states = self._folder / ABOUT, self._folder / STATES
        shape = (int(self._starts[self._held]), self._width)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            known = note.exists() and json.loads(note.read_text("utf-8")) == about and states.exists()
            if known and states.stat().st_size == self.bytes:
                self._states = np.memmap(states, np.float16, "r+", shape=shape)
                if (self._folder / FILLED).exists():
                    self._filled = np.load(self._folder / FILLED)
                return
            if shutil.disk_usage(self._folder).free < self.bytes:  # writing to a mapped file would kill the process
                raise OSError(f"its disk has no room for {self.bytes} bytes")
            (self._folder / FILLED).unlink(missing_ok=True)
            self._states = np.memmap(states, np.float16, "w+", shape=shape)
            note.write_text(json.dumps(about, indent=2) + "\n", "utf-8")
        except (OSError, ValueError) as error:
            raise FileError(
                f"hidden states cannot be cached in {self._folder}: {error}. Name another folder by --cache-dir, or "
                "lower --cache."
            ) from error
