"""Reads the target's hidden states from files of other programs, after identifying their layers.

The files do not name their layers, and public programs number them in two ways. So the target itself reads the start of
a text from each folder, and every slot of the file is compared with every layer's output. Other models, other layers
and states after the final norm are refused, rather than training a head on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from speculant.core.errors import FileError, UnsupportedError
from speculant.training.hidden_files import STATES, TOKENS

_COMPARED = 64  # compared tokens
_NEAR = 0.1  # maximum relative distance of states computed elsewhere in a narrower dtype
_CLEAR = 3.0  # factor by which all other layers must be farther


@dataclass(slots=True, eq=False)
class StoredStates:
    """Reads the layers that a training needs.

    Attributes:
        layers: the requested decoder layers, from 0.
        size: hidden size D.
        outputs: computes the outputs [T, L, D] of all layers of the target for tokens Int64[T].
    """

    layers: tuple[int, ...]
    size: int
    outputs: Callable[[Tensor], Tensor]
    _slots: dict[Path, list[int]] = field(default_factory=dict)  # slots of `layers`, by folder

    def check(self, files: Sequence[Path | None]) -> None:
        """Check that the files of every folder have the requested layers.

        Raises:
            FileError: a file is damaged.
            UnsupportedError: its states belong to another target or to other layers.
        """
        for file in files:
            if file is not None and file.parent not in self._slots:
                self._slots[file.parent] = self._match_slots(file)

    def read(self, file: Path, length: int) -> Tensor:
        """Return the outputs [length, L', D] of the requested layers for the first tokens of a file.

        Raises:
            FileError: it is damaged.
        """
        states = _open(file, length)[1]
        if states.shape[2] != self.size or states.shape[1] <= max(self._slots[file.parent]):
            raise FileError(f"{file} has states of shape {list(states.shape)}, other files of its folder have not.")
        found = states[:, self._slots[file.parent]]
        if not bool(found.isfinite().all()):
            raise FileError(f"{file} has states that are no numbers. Delete it, or make it anew.")
        return found

    def _match_slots(self, file: Path) -> list[int]:
        """Return the slots of a file's states that match the requested layers."""
        ids, states = _open(file, _COMPARED)
        if states.shape[2] != self.size:
            raise UnsupportedError(
                f"{file} has states of size {states.shape[2]}, and the target's have {self.size}: they are of another "
                "model. Store this target's."
            )
        own, held = self.outputs(ids).float().cpu(), states.float()
        found: list[int] = []
        for slot in range(held.shape[1]):
            apart = (own - held[:, slot, None]).square().sum((0, 2)).sqrt() / own.square().sum((0, 2)).sqrt()
            best = int(apart.argmin())
            others = torch.cat([apart[:best], apart[best + 1 :]])
            near = bool(apart[best] < _NEAR) and (not len(others) or bool(others.min() > _CLEAR * apart[best]))
            found.append(best if near else -1)
        if missing := [layer for layer in self.layers if layer not in found]:
            wanted, lacking, named = (
                ", ".join("none" if layer < 0 else str(layer + 1) for layer in layers)
                for layers in (self.layers, missing, found)
            )
            raise UnsupportedError(
                f"the states in {file} are not what this training reads: of the boundaries {wanted} it lacks "
                f"{lacking}, since what it holds equals {named} (none: no layer's output, as of another model, or "
                f"behind the final norm). Store the boundaries {wanted} of this target, counted as vLLM and "
                "speculators do (1: the output of the first layer), or name the texts without states."
            )
        return [found.index(layer) for layer in self.layers]


def _open(file: Path, length: int) -> tuple[Tensor, Tensor]:
    """Return the first tokens Int64[n] of a file, and their states [n, S, D]."""
    try:
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor(TOKENS)[:length].long(), opened.get_slice(STATES)[:length]
    except (OSError, SafetensorError, ValueError) as error:
        raise FileError(f"{file} cannot be read: {error}. It may be truncated; make it anew.") from error
