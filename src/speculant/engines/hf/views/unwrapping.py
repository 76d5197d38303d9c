"""The model that writes the text: inside a PEFT adapter, and inside a class that delegates to a part of itself."""

from __future__ import annotations

from typing import Any

from speculant.core.errors import UnsupportedError

WRITERS = {  # model types whose `generate` calls that of a part -> name of the part
    **dict.fromkeys(("blip-2", "instructblip", "instructblipvideo"), "language_model"),
    "blip": "text_decoder",
    "kosmos-2": "text_model",
}


def base_model(model: Any) -> Any:
    """Return the model whose passes write the text: without a PEFT adapter, and the part to which others delegate."""
    whole = bare_model(model)
    part = getattr(whole, WRITERS.get(whole.config.model_type, ""), None)
    return part if part is not None and part.can_generate() else whole


def bare_model(model: Any) -> Any:
    """Return the model that a PEFT adapter wraps; the model itself without an adapter."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def check_generates(model: Any) -> None:
    """Refuse a model that cannot be decoded at all.

    Raises:
        UnsupportedError: it has no head, or no `generate`.
    """
    if not (hasattr(model, "can_generate") and model.can_generate()):
        name = type(base_model(model)).__name__
        raise UnsupportedError(f"{name} has no language-model head to decode with; load it with AutoModelForCausalLM.")


def adapter_reason(model: Any) -> str:
    """Return why drafts are not verified with the active adapter of a PEFT model; "" if they may be."""
    adapter = getattr(model, "active_peft_config", None)
    if adapter is None:
        return ""
    kind = getattr(adapter.peft_type, "value", adapter.peft_type)
    if adapter.is_prompt_learning:
        return f"the adapter ({kind}) puts tokens of its own before every text."
    if acts_inside_generate(model):
        return f"the adapter ({kind}) begins to act at a place in the text."
    return ""


def acts_inside_generate(model: Any) -> bool:
    """Return whether the active adapter of a PEFT model takes effect only while its own `generate` runs."""
    return bool(getattr(getattr(model, "active_peft_config", None), "alora_invocation_tokens", None))
