"""The interface of a kind of engine: what is known of its models before an engine is opened, and how one is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from speculant.core.model_engine import ModelEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """What messages and results say of a loaded model.

    Attributes:
        form: what kind of model it is, with an article, such as "a GGUF file".
        device: the device of its logits.
        dtype: type of its weights, such as "float32" or "q8_0".
        attention: what computes its attention, such as "sdpa"; None if unknown.
        generates: whether its own `generate` decodes without a speculator.
        quantized: whether weights are quantised.
        weights: number of weights by kind, if several kinds are mixed.
    """

    form: str
    device: str
    dtype: str
    attention: str | None = None
    generates: bool = False
    quantized: bool = False
    weights: Mapping[str, int] = field(default_factory=dict)


class EngineKind(Protocol):
    """Describes the models of an engine and opens it. Has no state; a row of `api.engines` names it."""

    @property
    def without_layers(self) -> str:
        """What a message says where drafting needs single layers or hidden states; "" if passes offer them."""
        return "which this model's engine does not offer. Use a method such as 'mix' or 'draft-model'."

    def can_verify(self, model: Any) -> bool:
        """Return whether a model may verify drafts, as far as is known before any probe."""
        return True

    def vocabulary(self, model: Any) -> int:
        """Return V, the number of token ids of a model."""

    def describe(self, model: Any) -> ModelDescription:
        """Return what messages and results say of a model."""

    def weight_bytes(self, model: Any) -> int:
        """Return the size of a model's weights in bytes; 0 if another library holds them."""
        return 0

    def use_threads(self, model: Any, threads: int) -> None:
        """Set the number of CPU threads of a model's passes, if it is not PyTorch's."""

    def open(self, model: Any, *, fast: Any, notes: Sequence[str], strict: bool) -> ModelEngine:
        """Return the engine of a model.

        Args:
            model: a loaded model.
            fast: see `Speculator.from_transformers`.
            notes: messages for the user, in addition to the engine's own.
            strict: whether to refuse a model on which drafts cannot be verified; otherwise it is decoded plainly.

        Raises:
            UnsupportedError: `strict` is set and drafts cannot be verified on this model, or `fast` is not possible.
        """
