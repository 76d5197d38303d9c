"""References of the form "module:name" to objects whose modules are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load_object(place: str) -> Any:
    """Import and return the object at "module:name"."""
    module, name = place.split(":")
    return getattr(import_module(module), name)
