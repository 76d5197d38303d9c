"""GGUF files in llama.cpp as a kind of engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speculant.core.engine_kind import EngineKind, ModelDescription
from speculant.core.errors import UnsupportedError
from speculant.engines.llamacpp.engine import LlamaEngine
from speculant.engines.llamacpp.request_model import LlamaCppModel

FLOATS = ("f32", "f16", "bf16")  # types of unquantised weights


class LlamaCppKind(EngineKind):
    """Passes of llama.cpp."""

    @property
    def without_layers(self) -> str:
        return (
            "which llama.cpp does not offer. Use a method such as 'mix' or 'draft-model', Speculant's own passes "
            "(--engine speculant) where they run the file, or the model in transformers' format."
        )

    def vocabulary(self, model: LlamaCppModel) -> int:
        return model.context.model.vocabulary

    def describe(self, model: LlamaCppModel) -> ModelDescription:
        weights = model.context.model.weights
        return ModelDescription(
            form="a GGUF file",
            device=str(model.device),
            dtype=weights,
            attention="llama.cpp's",
            quantized=weights not in FLOATS,
        )

    def use_threads(self, model: LlamaCppModel, threads: int) -> None:
        model.context.set_threads(threads)

    def open(self, model: LlamaCppModel, *, fast: Any, notes: Sequence[str], strict: bool) -> LlamaEngine:
        if fast is True:
            raise UnsupportedError(
                "fast=True is for models of transformers; llama.cpp has its own kernels. Leave it out."
            )
        return LlamaEngine(model, model.context, notes=notes, strict=strict)
