"""Names that a module's classes and values had before, for code that was written then."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def resolve_former(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, which warns where a former name is used.

    Args:
        module: name of the module.
        names: present names by former ones.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{name} is now called {names[name]}.", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return get
