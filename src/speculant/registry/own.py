"""Drafters of a user's own: a class that is named "module:Class" is a method under that name.

Nothing has to be registered. What the class takes by name in its constructor it is given, as drafters of the registry
are, and what it drafts is checked against the contract (`drafters/checked.py`).
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from speculant.core.errors import UsageError
from speculant.registry.method import OWN, Method

_OTHERS = ("hf", "peer")  # systems that are compared with, "hf:generate" and the like


def is_own(name: Any) -> bool:
    """Return whether a method's name is the place of a user's own drafter."""
    return isinstance(name, str) and ":" in name and name.partition(":")[0] not in _OTHERS


def find_own(place: str) -> Method:
    """Return the method of a drafter at "module:Class", which is imported.

    Raises:
        UsageError: there is no such module or class, or it is no drafter.
    """
    module, _, name = place.partition(":")
    if not module or not name or ":" in name:
        raise UsageError(f"a drafter is named by MODULE:CLASS, as in my_drafter:MyDrafter, not {place!r}.")
    try:
        kind = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks one itself
        raise UsageError(
            f"there is no module '{module}' to take the drafter {name} from. Name a file of this folder without its "
            ".py, or a module that is installed."
        ) from error
    except AttributeError:
        raise UsageError(f"the module '{module}' has no {name}; name the class of the drafter in it.") from None
    if not isinstance(kind, type):
        raise UsageError(f"{place} is no class; name the class of the drafter.")
    check_attributes(kind)
    return Method(name=place, family=OWN, summary=_summary(kind), drafter=place, source=module, replayable=True)


def method_of(drafter: Any) -> Method:
    """Return the method of a drafter that is made already, which is named by its class."""
    kind = type(drafter)
    name = f"{kind.__module__}:{kind.__qualname__}"
    return Method(name=name, family=OWN, summary=_summary(kind), drafter="", source=kind.__module__, replayable=True)


def _summary(kind: type) -> str:
    return (inspect.getdoc(kind) or OWN).partition("\n")[0]


def check_attributes(drafter: Any) -> None:
    """Refuse what is no drafter, by what it lacks.

    Raises:
        UsageError: see above.
    """
    name = drafter.__name__ if isinstance(drafter, type) else type(drafter).__name__
    missing = [each for each in ("needs", "open", "propose") if not hasattr(drafter, each)]
    if missing:
        raise UsageError(
            f"{name} is no drafter: it has no {' and no '.join(missing)}. Derive it from "
            "speculant.core.drafter.Drafter and define `needs` and `open`."
        )
