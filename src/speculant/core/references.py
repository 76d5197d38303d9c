"""References to objects of modules that are imported when they are first used, as "module:name"."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load_object(place: str) -> Any:
    """Import and return the object at "module:name"."""
    module, name = place.split(":")
    return getattr(import_module(module), name)
