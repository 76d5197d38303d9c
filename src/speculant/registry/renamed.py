"""Former names of methods, and of settings of methods and acceptance rules."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

RENAMED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {  # former name: possible new names
        "least": ("min_probability", "minimum"),
        "least_probability": ("min_probability",),
        "most_nodes": ("max_nodes",),
        "most_matches": ("max_matches",),
        "echo_memory": ("top_k_memory",),
        "top_k": ("guesses",),
        "depth": ("length",),
    }
)

RENAMED_METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {  # former name: the method that replaces it, and its settings
        "ppd": ("early-exit", {"tree": "guesses", "length": 2}),
        "speed": ("early-exit", {"groups": 4}),
    }
)

logger = logging.getLogger(__name__)


def rename_method(name: str) -> tuple[str, Mapping[str, Any]]:
    """Return a method's current name and the settings implied by a former name, which is logged."""
    if name not in RENAMED_METHODS:
        return name, {}
    new, presets = RENAMED_METHODS[name]
    logger.warning("%s is now the method %s, with %s.", name, new, ", ".join(f"{k}={v}" for k, v in presets.items()))
    return new, presets


def rename_setting(name: str, known: Collection[str]) -> str:
    """Return a setting's current name; a former name is logged.

    Args:
        name: the name that the user gave.
        known: names of the existing settings.
    """
    new = next((each for each in RENAMED.get(name, ()) if each in known), name)
    if name in known or new == name:
        return name
    logger.warning("the setting %s is now called %s.", name, new)
    return new
