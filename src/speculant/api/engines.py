"""The engine of a loaded model: transformers' own passes, or llama.cpp's for a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.model_engine import ModelEngine
from speculant.engines.hf.cpu.accelerate import CpuAcceleration, prepare_model
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.probe.class_checks import check_model
from speculant.engines.hf.views.unwrapping import adapter_reason, base_model
from speculant.engines.llamacpp.request_model import LlamaCppModel
from speculant.registry import find_method


def open_engine(model: Any, *, fast: Any, notes: Sequence[str], strict: bool) -> tuple[ModelEngine, CpuAcceleration]:
    """Return the engine of a model, and its preparation for faster passes.

    Args:
        model: a transformers causal LM, a PEFT model around one, or a result of `load_gguf`.
        fast: see `Speculator.from_transformers`.
        notes: messages for the user, in addition to the engine's own.
        strict: whether to refuse a model on which drafts cannot be verified; otherwise it is decoded plainly.

    Raises:
        UnsupportedError: `strict` is set and drafts cannot be verified on this model, or `fast` is not possible.
    """
    if isinstance(model, LlamaCppModel):
        if fast is True:
            raise UnsupportedError(
                "fast=True is for models of transformers; llama.cpp has its own kernels. Leave it out."
            )
        from speculant.engines.llamacpp.engine import LlamaEngine

        return LlamaEngine(model, model.context, notes=notes, strict=strict), CpuAcceleration()
    target = base_model(model)
    prepared = prepare_model(target, fast)
    return HFEngine(target, entry=model, acceleration=prepared, notes=notes, strict=strict), prepared


def can_verify(model: Any) -> bool:
    """Return whether a model's class, config and adapter allow verification of drafts, before any probe."""
    if isinstance(model, LlamaCppModel):
        return True
    try:
        check_model(base_model(model))
    except UnsupportedError:
        return False
    return not adapter_reason(model)


def check_engine_can(model: Any, *, method: str | None, head: Any) -> None:
    """Refuse methods and heads that the model's engine does not support, before anything else is loaded.

    Args:
        model: the target.
        method: the drafting method's name, or None.
        head: the head argument, or None.

    Raises:
        UnsupportedError: its engine does not support it; the message gives the reason and the remedy.
        UsageError: the model is the path of a GGUF file.
    """
    if isinstance(model, str) and model.lower().endswith(".gguf"):
        raise UsageError(f"the model is the text {model!r}. Use Speculator.from_gguf({model!r}).")
    if not isinstance(model, LlamaCppModel):
        return
    why = find_layer_use(method=method, head=head)
    if why:
        raise UnsupportedError(
            f"{why}, which llama.cpp does not offer. Use a method such as 'mix' or 'draft-model', Speculant's own "
            "passes (--engine speculant) where they run the file, or the model in transformers' format."
        )


def find_layer_use(*, method: str | None, head: Any) -> str:
    """Return why drafting needs more of the target than logits; "" if it does not.

    Args:
        method: the drafting method's name, or None.
        head: the head argument, or None.
    """
    found = None if method is None else find_method(method)
    if (found and found.heads) or head is not None:
        return "trained heads read hidden states of decoder layers"
    if found and found.takes_layers:
        return f"the method '{method}' runs a part of the target's layers"
    if found and found.takes_rows:
        return f"the method '{method}' runs the target on a part of its cache"
    return ""
