"""All errors that Speculant raises on purpose. Each message names the cause and a way out.

SpeculantError
├── UsageError                the request is invalid
│   ├── UnknownMethodError
│   ├── PromptError           empty, or longer than the model's positions
│   └── UnsupportedError      a model, cache or option is not supported here
│       └── DraftsRefusedError    drafts were found to change a model's output; the round continues without them
├── ModelError                the model cannot be loaded or run
│   ├── ModelNotFoundError
│   ├── TokenizerError
│   └── OutOfMemoryError
├── BatchError                some requests of a batch failed; defined in `speculant.api.batch`
├── MemoryFileError           a drafter's memory file cannot be used
│   ├── CorruptMemoryError
│   └── ForeignMemoryError    written with another tokenizer, by another method or version
└── FileError                 an input cannot be read or an output cannot be written
"""

from __future__ import annotations


class SpeculantError(Exception):
    """Base class of all errors; `exit_code` is the exit status of the command line."""

    exit_code = 1


class UsageError(SpeculantError):
    """The request itself is invalid."""

    exit_code = 2


class UnknownMethodError(UsageError):
    """There is no method of that name."""


class PromptError(UsageError):
    """The prompt is empty or does not fit the model's positions."""


class UnsupportedError(UsageError):
    """This model, cache or option is not supported here."""


class DraftsRefusedError(UnsupportedError):
    """A live check found that drafts change this model's output; from then on it is decoded without drafts."""


class ModelError(SpeculantError):
    """The model cannot be loaded or run."""


class ModelNotFoundError(ModelError):
    """There is no model at that path, or the hub cannot be reached."""


class TokenizerError(ModelError):
    """The tokenizer is missing or incomplete."""


class OutOfMemoryError(ModelError):
    """The device ran out of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether PyTorch reports that a device is out of memory; for CPUs it has no error of its own."""
    return isinstance(error, RuntimeError) and (
        type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error)
    )


class MemoryFileError(SpeculantError):
    """A memory file cannot be used."""


class CorruptMemoryError(MemoryFileError):
    """The file is truncated, damaged, or not a memory file at all."""


class ForeignMemoryError(MemoryFileError):
    """The file belongs to another tokenizer, method or format version."""


class FileError(SpeculantError):
    """A file cannot be read or written."""
