"""The table of engines, which are loaded on use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from speculant.core.engine_kind import EngineKind, ModelDescription
from speculant.core.references import load_object


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


def is_listed(model: Any) -> bool:
    """Return whether a model runs on an engine of the table; all others run on transformers."""
    return _find_row(model) is not None


def _find_row(model: Any) -> ListedEngine | None:
    """Return the row of a model's class or of one that it inherits from; classes are compared by name, not loaded."""
    names = {f"{kind.__module__}:{kind.__qualname__}" for kind in type(model).__mro__}
    return next((row for row in ENGINES if row.models in names), None)
