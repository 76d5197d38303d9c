"""Methods, and settings of methods and acceptance rules, by the names that they had in earlier versions."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

RENAMED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {  # what each may be called now
        "least": ("min_probability", "minimum"),
        "least_probability": ("min_probability",),
        "most_nodes": ("max_nodes",),
        "most_matches": ("max_matches",),
        "top_k": ("guesses",),
        "depth": ("length",),
    }
)

RENAMED_METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {  # what each is now: a method with some settings
        "ppd": ("early-exit", {"tree": "guesses", "length": 2}),
        "speed": ("early-exit", {"groups": 4}),
    }
)

logger = logging.getLogger(__name__)


def rename_method(name: str) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a method, whose earlier name is understood with a line in the log, and its settings then."""
    if name not in RENAMED_METHODS:
        return name, {}
    new, presets = RENAMED_METHODS[name]
    logger.warning("%s is the method %s now, with %s.", name, new, ", ".join(f"{k}={v}" for k, v in presets.items()))
    return new, presets


def rename_setting(name: str, known: Collection[str]) -> str:
    """Return the name of a setting, whose earlier name is understood, with a line in the log.

    Args:
        name: as it was given.
        known: the settings there are.
    """
    new = next((each for each in RENAMED.get(name, ()) if each in known), name)
    if name in known or new == name:
        return name
    logger.warning("the setting %s is called %s now.", name, new)
    return new
