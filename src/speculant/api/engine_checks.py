"""Whether a model's engine supports what drafting needs, before anything is loaded."""

from __future__ import annotations

from typing import Any

from speculant.api.engines import find_engine, is_listed
from speculant.api.options import check_model_object, check_tokenizer
from speculant.core.errors import UnsupportedError, UsageError
from speculant.registry import find_method


def check_engine_can(model: Any, tokenizer: Any = None, *, method: str | None, head: Any) -> None:
    """Refuse what is no model, and methods and heads that its engine does not support, before anything is loaded.

    Args:
        model: the target.
        tokenizer: its tokenizer, or None.
        method: the drafting method's name, or None.
        head: the head argument, or None.

    Raises:
        UnsupportedError: its engine does not support it; the message gives the reason and the remedy.
        UsageError: the model or tokenizer is another object, such as the path of a GGUF file.
    """
    if isinstance(model, str) and model.lower().endswith(".gguf"):
        raise UsageError(f"the model is the text {model!r}. Use Speculator.from_gguf({model!r}).")
    if not is_listed(model):
        check_model_object(model, tokenizer)
        return
    without = find_engine(model).without_layers
    if without and (why := find_layer_use(method=method, head=head)):
        raise UnsupportedError(f"{why}, {without}")
    check_tokenizer(tokenizer)


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
