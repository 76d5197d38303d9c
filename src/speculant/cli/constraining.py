"""The constraint of a text, from `--json-schema` or `--regex`."""

from __future__ import annotations

from pathlib import Path

from speculant.core.errors import FileError, UsageError


def constraint_options(json_schema: str | None, regex: str | None) -> dict[str, object]:
    """Return the options of `Speculator.stream` that these make: a constraint, or nothing.

    Args:
        json_schema: a file that holds a JSON schema.
        regex: a regular expression.

    Raises:
        FileError: the file cannot be read.
        UsageError: both are given, or one is no constraint.
    """
    from speculant.api.constraints import Constraint

    if json_schema is not None and regex is not None:
        raise UsageError("--json-schema and --regex both say what the text must match; give one of them.")
    if regex is not None:
        return {"constraint": Constraint.regex(regex)}
    if json_schema is None:
        return {}
    try:
        text = Path(json_schema).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FileError(f"cannot read the JSON schema in {json_schema}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise FileError(f"the JSON schema in {json_schema} is not UTF-8 text.") from error
    return {"constraint": Constraint.json_schema(text, compact=True)}
