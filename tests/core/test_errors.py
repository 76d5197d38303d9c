"""The exception tree, on which callers and exit codes rely."""

from __future__ import annotations

import inspect

import pytest

from speculant.api.batch import BatchError
from speculant.core import errors

PARENTS = {
    "SpeculantError": "Exception",
    "UsageError": "SpeculantError",
    "UnknownMethodError": "UsageError",
    "PromptError": "UsageError",
    "UnsupportedError": "UsageError",
    "DraftsRefusedError": "UnsupportedError",
    "ModelError": "SpeculantError",
    "ModelNotFoundError": "ModelError",
    "TokenizerError": "ModelError",
    "OutOfMemoryError": "ModelError",
    "MemoryFileError": "SpeculantError",
    "CorruptMemoryError": "MemoryFileError",
    "ForeignMemoryError": "MemoryFileError",
    "FileError": "SpeculantError",
}


def test_the_tree() -> None:
    """Every error stands where the documented tree has it, and there are no others."""
    found = {
        name: kind.__base__.__name__ for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__base__
    }
    assert found == PARENTS
    assert all(name in (errors.__doc__ or "") for name in PARENTS)


@pytest.mark.parametrize("name", PARENTS)
def test_exit_codes(name: str) -> None:
    """A wrong request ends with 2, anything else that went wrong with 1."""
    kind = getattr(errors, name)
    assert kind.exit_code == (2 if issubclass(kind, errors.UsageError) else 1)


def test_batch_errors_are_part_of_the_tree() -> None:
    """Guards the one error that stands elsewhere, since it carries results."""
    assert BatchError.__base__ is errors.SpeculantError
    assert BatchError.exit_code == 1
    assert "BatchError" in (errors.__doc__ or "")
