"""Speculant decodes large language models faster without changing what they say."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speculant.batch import Batch as Batch
    from speculant.batch import Ticket as Ticket
    from speculant.decoding import Source as Source
    from speculant.errors import SpeculantError as SpeculantError
    from speculant.generation import Piece as Piece
    from speculant.generation import Result as Result
    from speculant.speculator import Speculator as Speculator
    from speculant.stats import Stats as Stats
    from speculant.tree import DraftTree as DraftTree

__version__ = "0.1.0"

_HOMES = {
    "Batch": "batch",
    "DraftTree": "tree",
    "Piece": "generation",
    "Result": "generation",
    "Source": "decoding",
    "SpeculantError": "errors",
    "Speculator": "speculator",
    "Stats": "stats",
    "Ticket": "batch",
}

__all__ = [
    "Batch",
    "DraftTree",
    "Piece",
    "Result",
    "Source",
    "SpeculantError",
    "Speculator",
    "Stats",
    "Ticket",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Imported when first asked for, so that `import speculant` and the command's --help do not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'speculant' has no attribute '{name}'")
    return getattr(import_module(f"speculant.{_HOMES[name]}"), name)
