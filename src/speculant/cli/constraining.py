"""The constraint of a text, from `--json-schema` or `--regex`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from speculant.cli.terminal import importing
from speculant.core.errors import FileError, UnsupportedError, UsageError


def constraint_options(json_schema: str | None, regex: str | None) -> dict[str, object]:
    """Return the `Speculator.stream` options for these: a constraint, or nothing.

    Args:
        json_schema: a file with a JSON schema.
        regex: a regular expression.

    Raises:
        FileError: the file cannot be read.
        UnsupportedError: llguidance is not installed.
        UsageError: both are given, or one is not a valid constraint.
    """
    if json_schema is not None and regex is not None:
        raise UsageError("--json-schema and --regex both constrain the text; leave one out.")
    if json_schema is None and regex is None:
        return {}
    if find_spec("llguidance") is None:
        raise UnsupportedError("--json-schema and --regex need llguidance: pip install 'speculant[structured]'.")
    text = regex or "" if json_schema is None else read_schema(Path(json_schema))
    with importing("PyTorch"):
        from speculant.api.constraints import Constraint, check_constraint
    constraint = Constraint.regex(text) if json_schema is None else Constraint.json_schema(text, compact=True)
    check_constraint(constraint)
    return {"constraint": constraint}


def read_schema(path: Path) -> str:
    """Return the text of a schema file.

    Raises:
        FileError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FileError(f"cannot read the JSON schema in {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise FileError(f"the JSON schema in {path} is not UTF-8 text.") from error
