"""Options from flags, environment variables and a file of such variables, in this order.

The variable of an option is SPECULANT_ and its name. Every front end accepts the variables of all of them, and reads
those of its own groups, so that processes of several kinds can share an environment. A variable that no front end
knows is an error, since a misspelt one would be ignored for as long as a process runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speculant.core.environment import PREFIX, check_variables, nearest
from speculant.core.errors import FileError, UsageError
from speculant.options.drafting import DraftingOptions
from speculant.options.hosting import HostingOptions
from speculant.options.model import ModelOptions
from speculant.options.option import Option, options_of
from speculant.options.serving import ServingOptions

FRONT_ENDS = (ModelOptions, DraftingOptions, ServingOptions, HostingOptions)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was given, and where: "the environment variable ..." or "FILE, line N: ..."."""

    value: str
    place: str


def read_variables(
    groups: Iterable[Any],
    *,
    environment: Mapping[str, str],
    file: str | Path | None,
    what: str,
    flags: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the values of options by name: flags, then variables, then lines of a file; an empty value is none.

    Args:
        groups: dataclasses whose options are read.
        flags: values that were given and read already, by name; they come first.
        environment: variables, such as `os.environ`. They come before the file.
        file: with lines SPECULANT_NAME=value; None for none.
        what: what a variable of the groups is called in messages, such as "a setting of `speculant serve`".

    Raises:
        FileError: the file cannot be read.
        UsageError: a value is wrong, or a variable or line is unknown; the message says where.
    """
    options = {name: each for group in groups for name, each in options_of(group).items()}
    check_variables(environment, known=_names(*FRONT_ENDS, *groups) | {"config"}, what=what)
    given = {} if file is None else _read_lines(file, _names(*groups), what)
    for variable, value in environment.items():
        name = variable.upper().removeprefix(PREFIX).lower()
        if variable.upper().startswith(PREFIX) and value:
            given[name] = Given(value, f"the environment variable {variable.upper()}")
    found: dict[str, Any] = {name: flags[name] for name in options if name in flags}
    for name, each in options.items():
        if name in found or (own := _find_given(each, given)) is None:
            continue
        try:
            found[name] = each.read(own.value)
        except ValueError as error:
            raise UsageError(f"{own.place} {error}") from None
    return found


def _names(*groups: Any) -> set[str]:
    """Return the names of the options of some groups, those that they had before too."""
    return {name for group in groups for each in options_of(group).values() for name in (each.name, *each.old_names)}


def _find_given(option: Option, given: Mapping[str, Given]) -> Given | None:
    """Return how an option was given, by its name or by one that it had; None if it was not."""
    for name in (option.name, *option.old_names):
        if name in given:
            if name != option.name:
                logger.warning("%s is called %s%s now.", given[name].place, PREFIX, option.name.upper())
            return given[name]
    return None


def _read_lines(path: str | Path, known: Iterable[str], what: str) -> dict[str, Given]:
    """Return the values of a file of lines SPECULANT_NAME=value; the last line of a name counts."""
    from dotenv.parser import parse_stream

    if not Path(path).is_file():
        raise FileError(f"there is no settings file {path}.")
    variables = {PREFIX + name.upper() for name in known}
    try:
        with open(path, encoding="utf-8") as lines:
            bindings = list(parse_stream(lines))
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read the settings file {path}: {error}.") from error
    found = dict[str, Given]()
    for each in bindings:
        blank = len(each.original.string) - len(each.original.string.lstrip())
        line = each.original.line + each.original.string[:blank].count("\n")
        if not each.error and each.key is None:  # a comment, or the end
            continue
        if each.error or each.key is None or each.value is None:
            raise UsageError(f"{path}, line {line} is not of the form {PREFIX}NAME=value. Comments begin with #.")
        name = each.key.upper()
        if name not in variables:
            near = nearest(name if name.startswith(PREFIX) else PREFIX + name, variables)
            raise UsageError(f"{path}, line {line}: {each.key} is not {what}. {near}")
        found[name.removeprefix(PREFIX).lower()] = Given(each.value, f"{path}, line {line}: {name}")
    return {name: each for name, each in found.items() if each.value}
