"""Settings of methods, acceptance rules and new heads: what there is, and how a value is read from text."""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from speculant.core.errors import UsageError
from speculant.core.user_text import read_truth, shorten
from speculant.registry.renamed import rename_setting


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: what users type.
        kind: its type.
        default: its value if it is not set.
        description: from the dataclass's docstring; empty if it has none.
        infinite: whether a number may be infinite.
    """

    name: str
    kind: Any
    default: Any
    description: str = ""
    infinite: bool = False

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The members of its type if that is a union, else the type itself."""
        return get_args(self.kind) if get_origin(self.kind) in (Union, UnionType) else (self.kind,)

    @property
    def values(self) -> str:
        """Its values in words."""
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}
        return " or ".join(words.get(each, "a tuple such as its default") for each in self.kinds)

    def read(self, text: str) -> Any:
        """Return the value that a text means.

        Raises:
            ValueError: it means none; the message goes behind the setting's name.
        """
        if type(None) in self.kinds and text.lower() == "none":
            return None
        kind = next(each for each in self.kinds if each is not type(None))
        try:
            return _read(kind, text, infinite=self.infinite)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # of literals, too
            raise ValueError(f"must be {self.values}, not '{shorten(text)}'.") from None


def settings_of(cls: type[Any] | None, *, infinite: bool = False) -> dict[str, Setting]:
    """Return the settings that a dataclass states as fields, by name; none for other classes.

    Inherited settings are described where they are defined.

    Args:
        cls: the class.
        infinite: whether its numbers may be infinite.
    """
    if cls is None or not is_dataclass(cls):
        return {}
    hints, texts = get_type_hints(cls), dict[str, str]()
    for each in reversed(cls.__mro__):
        texts |= parse_attributes((each.__doc__ and inspect.getdoc(each)) or "")
    return {
        each.name: Setting(each.name, hints[each.name], each.default, texts.get(each.name, ""), infinite)
        for each in fields(cls)
    }


def read_texts(owner: str, known: Mapping[str, Setting], given: Iterable[str]) -> dict[str, Any]:
    """Return the values of settings by name, given as texts "name=value".

    Args:
        owner: whose settings they are, for messages, such as "the method 'mix'".
        known: its settings.
        given: the texts; names may have dashes.

    Raises:
        UsageError: there is no such setting, it is given twice, or its value has the wrong type.
    """
    found, defaults = dict[str, Any](), {name: each.default for name, each in known.items()}
    for each in given:
        name, mark, text = each.partition("=")
        if not mark:
            raise UsageError(f"a setting of {owner} has the form NAME=VALUE, not '{shorten(each)}'.")
        name = find_name(owner, defaults, name.strip().replace("-", "_"))
        if name in found:
            raise UsageError(f"the setting '{name}' of {owner} is given twice.")
        try:
            found[name] = known[name].read(text.strip())
        except ValueError as error:
            raise UsageError(f"the setting '{name}' of {owner} {error}") from None
    return found


def find_name(owner: str, known: Mapping[str, Any], name: Any) -> str:
    """Return the current name of a setting, which may be given by a former one.

    Args:
        owner: whose setting it is, for messages.
        known: its settings, with their defaults.
        name: what the user gave.

    Raises:
        UsageError: there is no such setting.
    """
    found = rename_setting(str(name), known)
    if found in known:
        return found
    if not known:
        raise UsageError(f"{owner} has no settings; leave them out.")
    near = difflib.get_close_matches(found, known, n=1, cutoff=0.5)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    there = ", ".join(each if value is MISSING else f"{each} ({value!r})" for each, value in known.items())
    raise UsageError(f"{owner} has no setting '{shorten(found)}'. {hint}It has {there}.")


def parse_attributes(docstring: str) -> dict[str, str]:
    """Return the entries of a Google docstring's Attributes section."""
    section = re.search(r"^Attributes:\n(.*?)(?:\n\n|\Z)", docstring, re.MULTILINE | re.DOTALL)
    entries = re.findall(r"^ {4}([\w, ]+): (.*(?:\n {5,}.*)*)", section[1], re.MULTILINE) if section else []
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


def _read(kind: Any, text: str, *, infinite: bool) -> Any:
    if kind is bool:
        truth = read_truth(text)
        if truth is None:
            raise ValueError(text)
        return truth
    if kind is float and (math.isnan(float(text)) or (math.isinf(float(text)) and not infinite)):
        raise ValueError(text)
    if kind in (int, float, str):
        return kind(text)
    value = ast.literal_eval(text)
    if not _fits(kind, value):
        raise ValueError(text)
    return value


def _fits(kind: Any, value: Any) -> bool:
    """Return whether a literal has a type made of tuples and plain types."""
    if get_origin(kind) is not tuple:
        return isinstance(kind, type) and type(value) is kind
    if not isinstance(value, tuple):
        return False
    args = get_args(kind)
    if len(args) == 2 and args[1] is Ellipsis:
        return all(_fits(args[0], each) for each in value)
    return len(args) == len(value) and all(_fits(*pair) for pair in zip(args, value, strict=True))
