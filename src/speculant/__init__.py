"""Speculant decodes large language models faster without changing their output."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speculant.api.batch import Batch as Batch
    from speculant.api.batch import BatchError as BatchError
    from speculant.api.constraints import Constraint as Constraint
    from speculant.api.prefix_cache import PrefixCache as PrefixCache
    from speculant.api.result import Generation as Generation
    from speculant.api.result import Piece as Piece
    from speculant.api.result import Result as Result
    from speculant.api.speculator import Speculator as Speculator
    from speculant.core.errors import SpeculantError as SpeculantError
    from speculant.core.stats import Stats as Stats
    from speculant.core.tree import DraftTree as DraftTree
    from speculant.decoding.sequence import Source as Source

__version__ = "0.1.0"

_HOMES = {
    "Batch": "api.batch",
    "BatchError": "api.batch",
    "Constraint": "api.constraints",
    "DraftTree": "core.tree",
    "Generation": "api.result",
    "Piece": "api.result",
    "PrefixCache": "api.prefix_cache",
    "Result": "api.result",
    "Source": "decoding.sequence",
    "SpeculantError": "core.errors",
    "Speculator": "api.speculator",
    "Stats": "core.stats",
}

__all__ = [
    "Batch",
    "BatchError",
    "Constraint",
    "DraftTree",
    "Generation",
    "Piece",
    "PrefixCache",
    "Result",
    "Source",
    "SpeculantError",
    "Speculator",
    "Stats",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Imported when first asked for, so that `import speculant` and the command's --help do not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'speculant' has no attribute '{name}'")
    return getattr(import_module(f"speculant.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
