"""Models of transformers as a kind of engine, also inside a PEFT adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speculant.core.engine_kind import EngineKind, ModelDescription
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.probe.class_checks import check_model
from speculant.engines.hf.quantized.model_weights import count_bytes
from speculant.engines.hf.quantized.modules import quantized_modules
from speculant.engines.hf.views.unwrapping import adapter_reason, base_model


class TransformersKind(EngineKind):
    """Passes of transformers' own classes, and of Speculant's code for them."""

    @property
    def without_layers(self) -> str:
        return ""

    def can_verify(self, model: Any) -> bool:
        try:
            check_model(base_model(model))
        except UnsupportedError:
            return False
        return not adapter_reason(model)

    def vocabulary(self, model: Any) -> int:
        size: int = model.config.get_text_config(decoder=True).vocab_size
        return size

    def describe(self, model: Any) -> ModelDescription:
        return ModelDescription(
            form="a model of transformers",
            device=str(model.device),
            dtype=str(model.dtype).removeprefix("torch."),
            attention=model.config._attn_implementation,
            generates=True,
            quantized=any(True for _ in quantized_modules(model)),
            weights=getattr(model.config, "weight_kinds", {}),
        )

    def weight_bytes(self, model: Any) -> int:
        return count_bytes(model)

    def open(self, model: Any, *, fast: Any, notes: Sequence[str], strict: bool) -> HFEngine:
        target = base_model(model)
        return HFEngine(target, entry=model, acceleration=prepare_model(target, fast), notes=notes, strict=strict)
