"""Settings of methods from the command line: of one, or of several by their names; and in results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from speculant.core.errors import UsageError
from speculant.registry import METHODS, Method, find_method, is_own
from speculant.registry.renamed import rename_setting
from speculant.registry.settings import read_texts, settings_of


def build_settings(method: Method, given: Sequence[str]) -> Any:
    """Return a method's settings with the given "name=value" changed; None if none are given.

    Raises:
        UsageError: there is no such setting, or the value has the wrong type or is out of range.
    """
    if not given:
        return None
    try:
        return method.read_settings(read_texts(method.title, settings_of(method.settings_class()), given))
    except (UsageError, ValueError) as error:
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
    names = {each: settings_of(method.settings_class()) for each, method in methods.items()}
    fitting = [each for each, known in names.items() if rename_setting(name, known) in known]
    if len(fitting) > 1:
        raise UsageError(
            f"--set {name} fits {' and '.join(fitting)}. Say which one: --set {fitting[0]}.{name}={value or 'VALUE'}."
        )
    if fitting:
        return fitting[0], given
    drafting = [each for each, known in names.items() if known]
    if len(drafting) != 1:
        raise UsageError(
            f"none of the methods {', '.join(methods)} has a setting '{name}'. `speculant methods NAME` lists those "
            "of a method."
        )
    return drafting[0], given  # refused later, with the most similar name
