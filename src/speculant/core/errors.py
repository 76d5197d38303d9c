"""Every error Speculant raises on purpose. Each message names the cause and the way out.

SpeculantError
├── UsageError                what was asked for makes no sense
│   ├── UnknownMethodError
│   ├── PromptError           empty, or longer than the model's positions
│   └── UnsupportedError      a model, cache or option that this path cannot honour
│       └── DraftsRefusedError    drafts were found to change a model's output; the round goes on without them
├── ModelError                the model cannot be had
│   ├── ModelNotFoundError
│   ├── TokenizerError
│   └── OutOfMemoryError
├── BatchError                some requests of a batch failed; stands in `speculant.api.batch`
├── MemoryFileError           a drafter's memory file cannot be used
│   ├── CorruptMemoryError
│   └── ForeignMemoryError    made with another tokenizer, by another method or version
└── FileError                 an input cannot be read or an output cannot be written
"""

from __future__ import annotations


class SpeculantError(Exception):
    """Base of all; `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(SpeculantError):
    """The request itself is wrong."""

    exit_code = 2


class UnknownMethodError(UsageError):
    """No method of that name."""


class PromptError(UsageError):
    """The prompt is empty or does not fit the model's positions."""


class UnsupportedError(UsageError):
    """This model, cache or option cannot be honoured here."""


class DraftsRefusedError(UnsupportedError):
    """A live check found that drafts change this model's output; from then on it is decoded plainly."""


class ModelError(SpeculantError):
    """The model cannot be loaded or run."""


class ModelNotFoundError(ModelError):
    """No model at that path, or the hub cannot be reached."""


class TokenizerError(ModelError):
    """The tokenizer is missing or lacks what is needed."""


class OutOfMemoryError(ModelError):
    """The device ran out of memory."""


class MemoryFileError(SpeculantError):
    """A memory file cannot be used."""


class CorruptMemoryError(MemoryFileError):
    """The file is truncated, damaged, or not a memory file at all."""


class ForeignMemoryError(MemoryFileError):
    """The file belongs to another tokenizer, method or format version."""


class FileError(SpeculantError):
    """A file cannot be read or written."""
