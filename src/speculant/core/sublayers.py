"""The sublayers of a model that a pass runs: the attention and the MLP of each decoder layer.

A layer adds the output of its attention to its input, then the output of its MLP, so it works without one of them. Only
layers whose attention runs store keys and values of the pass's rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Part = Literal["attention", "mlp"]


@dataclass(frozen=True, slots=True)
class Sublayers:
    """The sublayers that a pass runs, by the indices of their layers, ascending and counted from 0.

    Attributes:
        attention: layers whose attention runs.
        mlp: layers whose MLP runs.
    """

    attention: tuple[int, ...]
    mlp: tuple[int, ...]

    @classmethod
    def whole(cls, layers: Iterable[int]) -> Sublayers:
        """Return both sublayers of these layers."""
        indices = tuple(layers)
        return cls(indices, indices)

    @classmethod
    def of(cls, given: Sequence[int] | Sublayers) -> Sublayers:
        """Return the sublayers named by an argument, which may also be a list of whole layers."""
        return given if isinstance(given, Sublayers) else cls.whole(given)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers with a sublayer that runs."""
        return tuple(sorted({*self.attention, *self.mlp}))

    @property
    def are_whole(self) -> bool:
        """Whether every layer runs as a whole or not at all."""
        return self.attention == self.mlp

    @property
    def first(self) -> int | None:
        """The number of layers that run, if they are the first ones and whole; otherwise None."""
        return len(self.mlp) if self.are_whole and self.mlp == tuple(range(len(self.mlp))) else None

    def only(self, layer: int) -> Part | None:
        """Return the only sublayer of a layer that runs; None if both run."""
        if layer not in self.mlp:
            return "attention"
        return None if layer in self.attention else "mlp"

    def without(self, skipped: Sublayers) -> Sublayers:
        """Return those of these sublayers that are not among the skipped ones."""
        attention = tuple(index for index in self.attention if index not in skipped.attention)
        return Sublayers(attention, tuple(index for index in self.mlp if index not in skipped.mlp))
