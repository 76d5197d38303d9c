"""Users' own drafters: the name "module:Class" of a drafter class can be used as a method.

Nothing has to be registered. The constructor receives the fields of a `BuildContext` that its parameters name, and its
drafts are checked against the drafter interface (`drafters/checked.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from speculant.core.errors import UsageError
from speculant.registry.context import BuildContext
from speculant.registry.method import OWN, Method

if TYPE_CHECKING:  # numpy would make `speculant --help` wait
    from speculant.core.drafter import Drafter

_OTHERS = ("hf", "peer")  # prefixes of other systems in comparisons, as in "hf:generate"


def is_own(name: Any) -> bool:
    """Return whether a method's name refers to a user's own drafter, "module:Class"."""
    return isinstance(name, str) and ":" in name and name.partition(":")[0] not in _OTHERS


def find_own(place: str) -> Method:
    """Import the drafter class at "module:Class" and return its method.

    Raises:
        UsageError: there is no such module or class, or it is not a drafter.
    """
    module, _, name = place.partition(":")
    if not module or not name or ":" in name:
        raise UsageError(f"a drafter must be named as MODULE:CLASS, such as my_drafter:MyDrafter, not {place!r}.")
    try:
        kind = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but one that it imports does not
        raise UsageError(
            f"cannot load the drafter {name}: there is no module '{module}'. Name a file of the current folder "
            "without its .py, or an installed module."
        ) from error
    except AttributeError:
        raise UsageError(f"the module '{module}' has no {name}; name the drafter's class in it.") from None
    if not isinstance(kind, type):
        raise UsageError(f"{place} is not a class; name the drafter's class.")
    from speculant.drafters.checked import check_attributes  # imported here because it needs numpy

    check_attributes(kind)
    taken = _parameters(kind)
    return Method(
        name=place,
        family=OWN,
        summary=_summary(kind),
        drafter=place,
        builder=build_own,
        settings=_settings_class(kind),
        source=module,
        replayable=True,
        takes_draft_model="open_cache" in taken,
        drafts_text="translation" in taken,
        takes_bases="bases" in taken,
        takes_layers="layers" in taken,
        takes_sublayers="whole_layers" in taken,
        takes_rows="whole_cache" in taken,
        saves=hasattr(kind, "save") and hasattr(kind, "load"),
        loads=hasattr(kind, "load"),
    )


def build_own(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a user's own drafter, whose constructor takes fields of the context by name.

    Raises:
        UsageError: the constructor requires another argument.
    """
    taken, name = _parameters(kind), f"{kind.__module__}:{kind.__qualname__}"
    given = {each.name: getattr(context, each.name) for each in fields(context) if each.name in taken}
    given = {name: value for name, value in given.items() if value is not None}
    for each in taken.values():
        required = each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if required and each.name not in {"self", *given}:
            raise UsageError(
                f"{name} cannot be constructed: the value of its parameter {each.name!r} is unknown. Give it a "
                "default, or pass an object in Python: drafter=."
            )
    from speculant.drafters.checked import add_checks

    return add_checks(kind(**given))


def method_of(drafter: Any) -> Method:
    """Return the method of an existing drafter object, named after its class."""
    kind = type(drafter)
    name = f"{kind.__module__}:{kind.__qualname__}"
    return Method(
        name=name,
        family=OWN,
        summary=_summary(kind),
        drafter="",
        builder=build_own,
        source=kind.__module__,
        replayable=True,
    )


def _parameters(kind: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(kind.__init__).parameters if kind.__init__ is not object.__init__ else {}


def _settings_class(kind: Any) -> type[Any] | None:
    """Return the dataclass in the annotation of a constructor's `settings` parameter; None if it has none."""
    if "settings" not in _parameters(kind):
        return None
    hint = get_type_hints(kind.__init__).get("settings")
    found = [each for each in get_args(hint) if each is not NoneType]
    return found[0] if found else None


def _summary(kind: type) -> str:
    return (inspect.getdoc(kind) or OWN).partition("\n")[0]
