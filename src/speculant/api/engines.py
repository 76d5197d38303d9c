"""The table of engines, which are loaded on use, and checks of what a model's engine supports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from speculant.api.options import check_model_object, check_tokenizer
from speculant.core.engine_kind import EngineKind, ModelDescription
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.references import load_object
from speculant.registry import find_method


@dataclass(frozen=True, slots=True)
class ListedEngine:
    """An engine.

    Attributes:
        models: the class of the models that it runs, as "module:Class"; subclasses are included.
        kind: its `EngineKind`, as "module:Class".
    """

    models: str
    kind: str


ENGINES: tuple[ListedEngine, ...] = (
    ListedEngine(
        models="speculant.engines.llamacpp.request_model:LlamaCppModel",
        kind="speculant.engines.llamacpp.kind:LlamaCppKind",
    ),
)
TRANSFORMERS = "speculant.engines.hf.kind:TransformersKind"  # runs models of all other classes


def find_engine(model: Any) -> EngineKind:
    """Return the kind of engine that runs a model."""
    row = _find_row(model)
    kind: EngineKind = load_object(TRANSFORMERS if row is None else row.kind)()
    return kind


def describe_model(model: Any) -> ModelDescription:
    """Return what messages and results say of a loaded model."""
    return find_engine(model).describe(model)


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
    if _find_row(model) is None:
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


def _find_row(model: Any) -> ListedEngine | None:
    """Return the row of a model's class or of one that it inherits from; classes are compared by name, not loaded."""
    names = {f"{kind.__module__}:{kind.__qualname__}" for kind in type(model).__mro__}
    return next((row for row in ENGINES if row.models in names), None)
