"""A summary of a model's quantisation: the parts affected, and the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from speculant.engines.hf.quantized.loss import QuantizationLoss
from speculant.engines.hf.quantized.parts import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedSummary:
    """The composition of a quantised model.

    Attributes:
        scheme: name of the quantisation: "int8", "int4", or the format of the checkpoint.
        matrices: number of packed matrices; tied ones count once.
        weights: number of packed weights.
        packed: bytes of the packed weights.
        floats: number of weights that stayed floats.
        before: bytes of all weights in the checkpoint; None if they were packed there.
        loss: effect of quantisation on a sample of text; None if it was not measured.
        file: where the packed weights are stored; None if they are not.
        notes: further messages for the user.
    """

    scheme: str
    matrices: int
    weights: int
    packed: int
    floats: int
    before: int | None = None
    loss: QuantizationLoss | None = None
    file: str | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        share = self.weights / max(self.weights + self.floats, 1)
        bits = 8 * self.packed / max(self.weights, 1)
        size = _mb(self.packed) if self.before is None else f"{_mb(self.before)} became {_mb(self.packed)}"
        said = [f"{self.scheme} weights: {share:.1%} of all, at {bits:.3g} bits ({size})", "the rest stay floats"]
        if self.loss is not None:
            said.append(str(self.loss))
        if self.file is not None:
            said.append(f"kept packed in {self.file}")
        return "; ".join([*said, *self.notes]) + "."


def summarize(parts: Parts, scheme: str, **known: Any) -> QuantizedSummary:
    """Return the summary of a model's parts; `known` are the attributes that they do not provide."""
    return QuantizedSummary(
        scheme=scheme,
        matrices=len(parts.weights),
        weights=sum(each.outs * each.k for each in parts.weights.values()),
        packed=sum(each.bytes for each in parts.weights.values()),
        floats=sum(each.numel() for each in parts.floats.values()),
        **known,
    )


def count_bytes(floats: Mapping[str, Any]) -> int:
    """Return the total bytes of tensors."""
    return sum(each.numel() * each.element_size() for each in floats.values())


def _mb(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
