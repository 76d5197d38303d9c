"""The frozen bases that a drafter starts with: named files, or those in the user's folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from speculant.core.errors import SpeculantError, UnsupportedError
from speculant.memory.bases import find_base, find_bases, find_bundled_base, read_base_header
from speculant.options.drafting import AUTOMATIC
from speculant.registry import METHODS, Method

if TYPE_CHECKING:
    from speculant.drafters.mix.base import MixBase

    Base = str | Path | MixBase

logger = logging.getLogger(__name__)


def open_bases(
    method: Method, base: Base | Sequence[Base] | None, *, vocabulary: int, tokenizer: str
) -> tuple[MixBase, ...]:
    """Return the bases of a drafter.

    Args:
        method: the drafter's method.
        base: files, "bundled" for the one that comes with the package, or already open bases, whose tokenizer is not
            checked again; "auto" for those in the user's folder and the bundled one, as far as they match and the
            method takes any; None for none.
        vocabulary: V, the number of token ids.
        tokenizer: fingerprint of the tokenizer.

    Raises:
        UnsupportedError: the method takes no bases, or a base has another vocabulary.
        FileError: there is no such file.
        MemoryFileError: a file cannot be used. Such files in the user's folder are skipped with a logged warning.
    """
    if base in (AUTOMATIC, (AUTOMATIC,)):
        return _automatic(vocabulary, tokenizer) if method.takes_bases else ()
    from speculant.drafters.mix.base import MixBase, read_base

    given = [] if base is None else [base] if isinstance(base, str | Path | MixBase) else list(base)
    if given and not method.takes_bases:
        usable = ", ".join(name for name, each in METHODS.items() if each.takes_bases)
        raise UnsupportedError(f"the method '{method.name}' takes no base. Leave it out, or use one of {usable}.")
    return tuple(
        each if isinstance(each, MixBase) else read_base(find_base(each), vocabulary=vocabulary, tokenizer=tokenizer)
        for each in given
    )


def _automatic(vocabulary: int, tokenizer: str) -> tuple[MixBase, ...]:
    from speculant.drafters.mix.base import MAX_BASES, read_base

    found: list[MixBase] = []
    bundled = [find_bundled_base()] if read_base_header(find_bundled_base()).tokenizer == tokenizer else []
    for path in [*find_bases(tokenizer), *bundled]:
        if len(found) == MAX_BASES:
            logger.warning("more than %d bases fit this tokenizer; %s is left out.", MAX_BASES, path)
            continue
        try:
            found.append(read_base(path, vocabulary=vocabulary, tokenizer=tokenizer))
        except SpeculantError as error:
            logger.warning("%s It is left out.", error)
    return tuple(found)
