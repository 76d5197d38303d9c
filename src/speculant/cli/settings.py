"""The settings of a method: fields of its drafter's settings dataclass, described, listed and parsed."""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from speculant.core.errors import UsageError
from speculant.options.kinds import shorten
from speculant.registry import METHODS, Method, find_method, is_own
from speculant.registry.renamed import rename_setting

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: what users type.
        kind: its type.
        default: its value if it is not set.
        description: from the dataclass's docstring; empty if it has none.
    """

    name: str
    kind: Any
    default: Any
    description: str


def settings_of(method: Method) -> list[Setting]:
    """Return the settings of a method, in the order of its dataclass.

    Importing the dataclass imports numba, which takes half a second.
    """
    cls = method.settings_class()
    if cls is None:
        return []
    hints, texts = get_type_hints(cls), dict[str, str]()
    for each in reversed(cls.__mro__):  # inherited settings are described where they are defined
        texts |= parse_attributes((each.__doc__ and inspect.getdoc(each)) or "")
    return [Setting(each.name, hints[each.name], each.default, texts.get(each.name, "")) for each in fields(cls)]


def build_settings(method: Method, given: Sequence[str]) -> Any:
    """Return a method's settings with the given "name=value" changed; None if none are given.

    Raises:
        UsageError: there is no such setting, or the value has the wrong type or is out of range.
    """
    if not given:
        return None
    cls, known = method.settings_class(), {setting.name: setting for setting in settings_of(method)}
    values: dict[str, Any] = {}
    for each in given:
        name, mark, text = each.partition("=")
        name = rename_setting(name.strip().replace("-", "_"), known)
        if not mark:
            raise UsageError(f"--set takes NAME=VALUE, not '{shorten(each)}'.")
        if name not in known:
            raise UsageError(describe_unknown_setting(method, name, list(known)))
        if name in values:
            raise UsageError(f"--set {name} is given twice.")
        values[name] = parse(known[name], text.strip())
    assert cls is not None  # it has settings
    try:
        return cls(**{**method.presets, **values})
    except ValueError as error:
        raise UsageError(f"--set: {error}") from error


def build_settings_by_method(methods: Sequence[str], given: Sequence[str]) -> dict[str, Any]:
    """Return the settings of methods for which some are given.

    Args:
        methods: names; unregistered ones have no settings.
        given: "name=value" for the only method with this setting, or "method.name=value".

    Raises:
        UsageError: see `build_settings`; or a setting's method is unknown.
    """
    own = {name: find_method(name) for name in methods if name in METHODS or is_own(name)}
    by_method: dict[str, list[str]] = {}
    for each in given:
        name, text = _split_method(own, each)
        by_method.setdefault(name, []).append(text)
    return {name: build_settings(own[name], texts) for name, texts in by_method.items()}


def settings_json(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return all settings of each method as plain values, for results."""
    return {name: asdict(each) for name, each in settings.items()}


def settings_sentences(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the settings as sentences, one for each method."""
    return [
        f"Settings of {name}: {', '.join(f'{key}={value}' for key, value in each.items())}."
        for name, each in settings.items()
    ]


def _split_method(methods: Mapping[str, Method], given: str) -> tuple[str, str]:
    """Return the method of a setting, and the setting without the method's name."""
    before, _, value = given.partition("=")
    method, dot, name = before.strip().rpartition(".")
    if dot:
        if method not in methods:
            raise UsageError(f"--set {before.strip()}: '{method}' is none of the methods {', '.join(methods)}.")
        return method, given.strip().removeprefix(f"{method}.")
    name = name.replace("-", "_")
    names = {each: {setting.name for setting in settings_of(method)} for each, method in methods.items()}
    fitting = [each for each, known in names.items() if rename_setting(name, known) in known]
    if len(fitting) > 1:
        raise UsageError(
            f"--set {name} fits {' and '.join(fitting)}. Say which one: --set {fitting[0]}.{name}={value or 'VALUE'}."
        )
    if fitting:
        return fitting[0], given
    drafting = [each for each in methods if settings_of(methods[each])]
    if len(drafting) != 1:
        raise UsageError(
            f"none of the methods {', '.join(methods)} has a setting '{name}'. `speculant methods NAME` lists those "
            "of a method."
        )
    return drafting[0], given  # refused later, with the most similar name


def describe_unknown_setting(method: Method, name: str, known: Sequence[str]) -> str:
    """Return the error message for an unknown setting of a method."""
    if not known:
        return f"the method '{method.name}' has no settings; leave out --set."
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return f"the method '{method.name}' has no setting '{name}'. {hint}It has {', '.join(known)}."


def parse(setting: Setting, text: str) -> Any:
    """Parse a value from text.

    Raises:
        UsageError: it is not a value of the setting's type.
    """
    choices = alternatives(setting.kind)
    if type(None) in choices and text.lower() == "none":
        return None
    kind = next(each for each in choices if each is not type(None))
    try:
        return _parse(kind, text)
    except (ValueError, SyntaxError):
        raise UsageError(f"--set {setting.name} takes {describe_type(setting.kind)}, not '{shorten(text)}'.") from None


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def describe_type(kind: Any) -> str:
    """Return a description of a type's values."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}
    return " or ".join(words.get(each, "a tuple such as its default") for each in alternatives(kind))


def parse_attributes(docstring: str) -> dict[str, str]:
    """Return the entries of a Google docstring's Attributes section."""
    section = re.search(r"^Attributes:\n(.*?)(?:\n\n|\Z)", docstring, re.MULTILINE | re.DOTALL)
    entries = re.findall(r"^ {4}([\w, ]+): (.*(?:\n {5,}.*)*)", section[1], re.MULTILINE) if section else []
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


def _parse(kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() not in _WORDS:
            raise ValueError(text)
        return _WORDS[text.lower()]
    if kind is float and not math.isfinite(float(text)):
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
