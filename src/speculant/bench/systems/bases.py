"""The frozen bases of a benchmark: only named ones, so that figures do not depend on a user's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speculant.api.bases import open_bases
from speculant.api.engines import find_engine
from speculant.core.errors import UsageError
from speculant.drafters.mix.base import MixBase
from speculant.memory.fingerprint import tokenizer_fingerprint
from speculant.registry import METHODS, find_method


def check_bases(methods: Sequence[str], *, tokenizer: bool) -> None:
    """Refuse bases that no method would use, or that cannot be checked against the tokenizer.

    Args:
        methods: result of `parse_methods`.
        tokenizer: whether the tokenizer of the texts is known: a shape with random weights has none.

    Raises:
        UsageError: no method takes a base, or the tokenizer is unknown.
    """
    if not any(takes_bases(name) for name in methods):
        raise UsageError(f"--base would be ignored: none of {', '.join(methods)} takes one. Add the method mix.")
    if not tokenizer:
        raise UsageError(
            "a base fits one tokenizer, and random weights from --config have none. With --forced, name the "
            "recordings' by --tokenizer; else name the model itself in place of --config, or leave --base out."
        )


def takes_bases(name: str) -> bool:
    """Return whether a system has a memory that accepts bases."""
    return name in METHODS and find_method(name).takes_bases


def open_target_bases(
    paths: Sequence[str | Path], methods: Sequence[str], model: Any, tokenizer: Any, *, mapped: bool = False
) -> tuple[MixBase, ...]:
    """Return the bases of all systems that take any, opened once.

    Args:
        paths: paths of the files.
        methods: result of `parse_methods`.
        model: the target.
        tokenizer: the target's tokenizer, or that of the recordings that it follows.
        mapped: whether the token ids of recordings were renumbered.

    Raises:
        UsageError: no method takes a base, or it cannot match the ids.
        UnsupportedError, MemoryFileError: a base cannot be used, or has another tokenizer.
    """
    if not paths:
        return ()
    check_bases(methods, tokenizer=tokenizer is not None)
    if mapped:
        raise UsageError(
            "the recordings have more token ids than the model: they were numbered anew, and no base has such ids. "
            "Name a model or --config with as many ids as theirs, or leave --base out."
        )
    vocabulary = find_engine(model).vocabulary(model)
    taking = next(find_method(name) for name in methods if takes_bases(name))
    fingerprint = tokenizer_fingerprint(tokenizer, vocabulary)
    return open_bases(taking, paths, vocabulary=vocabulary, tokenizer=fingerprint)
