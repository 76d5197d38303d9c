"""The engine of a loaded model: transformers' own passes, or llama.cpp's for a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speculant.core.errors import UnsupportedError, UsageError
from speculant.engines.hf.cpu.accelerate import Acceleration, prepare_model
from speculant.engines.hf.engine import HFEngine
from speculant.engines.llamacpp.engine import LlamaEngine
from speculant.engines.llamacpp.request_model import LlamaCppModel
from speculant.registry import find_method

AnyEngine = HFEngine | LlamaEngine


def open_engine(model: Any, *, fast: Any, notes: Sequence[str]) -> tuple[AnyEngine, Acceleration]:
    """Return the engine of a model, and what was prepared for faster passes.

    Args:
        model: a transformers causal LM, a PEFT model around one, or what `load_gguf` returned.
        fast: see `Speculator.from_transformers`.
        notes: what the user should know beside the engine's own notes.

    Raises:
        UnsupportedError: drafts cannot be verified on this model, or `fast` is not possible.
    """
    if isinstance(model, LlamaCppModel):
        if fast is True:
            raise UnsupportedError(
                "fast=True is for models of transformers; llama.cpp has its own kernels. Leave it out."
            )
        return LlamaEngine(model, model.context, notes=notes), Acceleration()
    target = model.get_base_model() if hasattr(model, "get_base_model") else model
    prepared = prepare_model(target, fast)
    return HFEngine(target, acceleration=prepared, notes=notes), prepared


def check_engine_can(model: Any, *, method: str | None, head: Any) -> None:
    """Refuse methods and heads that a model's engine has no passes for, before anything else is loaded.

    Args:
        model: the target.
        method: the drafting method's name, or None.
        head: what was given as one, or None.

    Raises:
        UnsupportedError: its engine cannot do that; the message gives the reason and the way out.
        UsageError: the model is the path of a GGUF file.
    """
    if isinstance(model, str) and model.lower().endswith(".gguf"):
        raise UsageError(f"the model is the text {model!r}. Use Speculator.from_gguf({model!r}).")
    if not isinstance(model, LlamaCppModel):
        return
    why, found = None, None if method is None else find_method(method)
    if (found and found.heads) or head is not None:
        why = "trained heads read hidden states of decoder layers"
    elif found and found.takes_layers:
        why = f"the method '{method}' runs a part of the target's layers"
    if why is not None:
        raise UnsupportedError(
            f"{why}, which llama.cpp does not offer. Use a method such as 'mix' or 'draft-model', or the model in "
            "transformers' format."
        )
