"""The file that `--config` names: every line is a setting, or an error that names its place."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from dotenv.parser import parse_stream

from speculant.core.environment import PREFIX, nearest
from speculant.core.errors import FileError, UsageError


def setting_lines(path: str | Path, known: Collection[str]) -> dict[str, int]:
    """Return the line of each setting in a file of lines SPECULANT_NAME=value; the last line of a name counts.

    Args:
        path: of the file.
        known: the settings, in small letters.

    Raises:
        FileError: the file cannot be read.
        UsageError: a line is no setting; the message names file, line and the nearest setting.
    """
    if not Path(path).is_file():
        raise FileError(f"there is no settings file {path}.")
    variables = {PREFIX + name.upper() for name in known}
    found = dict[str, int]()
    try:
        with open(path, encoding="utf-8") as file:
            bindings = list(parse_stream(file))
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read the settings file {path}: {error}.") from error
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
            raise UsageError(f"{path}, line {line}: {each.key} is not a setting of `speculant serve`. {near}")
        found[name.removeprefix(PREFIX).lower()] = line
    return found
