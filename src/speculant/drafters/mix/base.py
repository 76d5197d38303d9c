"""A frozen base under `mix`: which tokens follow which contexts in a corpus, read-only and memory-mapped.

Each entry is one successor of one context, the last one, two, three or four tokens, in 4 bytes: the token, its
estimated probability as one of sixteen levels, and a check of the context. Sixteen entries are a line, which is what a
processor reads from memory at once; all successors of a context are in one line, the most probable first, so that a
context costs one access whether it is known or not. The estimates come from base_builder.py; how far they can be
trusted in the traffic at hand is learned by the mixture, for which each base is an input per context (features.py).
A base may also hold a small network that scores candidates (scores.py).

The file is a memory file of its own kind. It is mapped and not read, so that it opens at once and processes share its
pages. Its checksums are verified by `speculant memory info`; the kernels need no valid contents, since they leave out
tokens beyond the vocabulary; only the rows of a network's tables are checked when a base is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from speculant.core.errors import CorruptMemoryError, ForeignMemoryError, UnsupportedError
from speculant.drafters.mix.arrays import LEVELS, LINE, Bases
from speculant.drafters.mix.scores import Scorer, is_valid, no_scorer
from speculant.memory.file import read_memory, write_memory

Array = npt.NDArray[Any]

KIND = "mix-base"
MAX_BASES = 3
_FORMAT = 1  # of the lines, apart from the file around them
_SCORES_FORMAT = 1  # of the network
_HIGHEST, _RATIO = 0.9, 0.62  # probability of level 0, and of each level to the one before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixBase:
    """A base that was opened.

    Attributes:
        path: of its file.
        lines: UInt32[L, 16], mapped and read-only: entry = check << (bits + 4) | level << bits | token, 0 where empty.
        scorer: the network that scores candidates; None if it has none.
        facts: what the builder noted: "vocabulary", "bits" (of a token), "tokens", "entries", "sources" and more.
    """

    path: Path
    lines: Array
    scorer: Scorer | None
    facts: Mapping[str, Any]


def token_bits(vocabulary: int) -> int:
    """Return how many bits of an entry hold the token."""
    return max(1, (vocabulary - 1).bit_length())


def levels(probabilities: Array) -> Array:
    """Return the levels of probabilities, UInt32, 0 for the highest."""
    steps = np.log(np.maximum(probabilities, 1e-9) / _HIGHEST) / np.log(_RATIO)
    return np.asarray(np.clip(np.rint(steps), 0, LEVELS - 1), np.uint32)


def level_probabilities() -> Array:
    """Return Float64[16], the probability that each level stands for."""
    return np.asarray(_HIGHEST * _RATIO ** np.arange(LEVELS))


def write_base(
    path: Path,
    lines: Array,
    scorer: Scorer | None = None,
    *,
    vocabulary: int,
    tokenizer: str,
    facts: Mapping[str, Any],
) -> None:
    """Write a base, all or nothing.

    Raises:
        FileError: the file cannot be written; an older one is unchanged.
    """
    own = {"vocabulary": vocabulary, "bits": token_bits(vocabulary), "format": _FORMAT}
    arrays = {"lines": lines}
    if scorer is not None:
        own["scores"] = _SCORES_FORMAT
        arrays |= {f"scores.{name}": array for name, array in scorer._asdict().items()}
    write_memory(path, kind=KIND, tokenizer=tokenizer, arrays=arrays, facts={**facts, **own})


def read_base(path: Path, *, vocabulary: int, tokenizer: str) -> MixBase:
    """Open a base.

    Raises:
        FileError: there is no such file, or it cannot be read.
        CorruptMemoryError: it is not a memory file, cut short, or its lines or its network have a wrong shape.
        ForeignMemoryError: it is of another tokenizer, no base, or of a newer version.
        UnsupportedError: it is of a larger vocabulary.
    """
    arrays, facts = read_memory(path, kind=KIND, tokenizer=tokenizer, verify=False)
    if facts.get("format") != _FORMAT:
        raise ForeignMemoryError(
            f"{path} is a base of format {facts.get('format')}, this version of Speculant reads format {_FORMAT}. "
            "Build it again, or use the version of Speculant that wrote it."
        )
    held = facts.get("vocabulary")
    if not isinstance(held, int) or not 0 < held <= vocabulary:  # models often have more ids than their tokenizer
        raise UnsupportedError(
            f"{path} is of a vocabulary of {held} ids, this model's has {vocabulary}. "
            "Use a base that was built for this model."
        )
    lines = arrays.get("lines")
    if lines is None or lines.dtype != np.uint32 or lines.ndim != 2 or lines.shape[1] != LINE or not len(lines):
        raise CorruptMemoryError(f"{path} holds no lines of a base. Restore a copy, or build it again.")
    return MixBase(path=Path(path), lines=lines, scorer=_scorer_of(path, arrays, facts), facts=facts)


def _scorer_of(path: Path, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> Scorer | None:
    if "scores" not in facts:
        return None
    if facts["scores"] != _SCORES_FORMAT:
        raise ForeignMemoryError(
            f"{path} has a network of format {facts['scores']}, this version of Speculant reads format "
            f"{_SCORES_FORMAT}. Build it again, or use the version of Speculant that wrote it."
        )
    found = [arrays[name] for field in Scorer._fields if (name := f"scores.{field}") in arrays]
    if len(found) < len(Scorer._fields) or not is_valid(Scorer(*found), facts["vocabulary"]):
        raise CorruptMemoryError(f"{path} holds no valid network. Restore a copy, or build it again.")
    rows = found[0].copy()  # they are indices, which must stay as they were checked
    rows.flags.writeable = False
    return Scorer(rows, *found[1:])


def in_use(bases: Sequence[MixBase]) -> Bases:
    """Return bases as the kernels take them.

    Raises:
        UnsupportedError: there are more than the mixture takes.
    """
    if len(bases) > MAX_BASES:
        raise UnsupportedError(f"`mix` takes up to {MAX_BASES} bases, not {len(bases)}. Build one of several sources.")
    nothing = np.empty((0, LINE), np.uint32)
    nothing.flags.writeable = False  # like mapped ones, so that the kernels are compiled once
    first, second, third = [base.lines for base in bases] + [nothing] * (MAX_BASES - len(bases))
    bits = [token_bits(base.facts["vocabulary"]) for base in bases] + [1] * (MAX_BASES - len(bases))
    return Bases(first, second, third, np.array(bits))


def scorer_in_use(bases: Sequence[MixBase]) -> Scorer:
    """Return the network that was trained on the most tokens, as the kernels take it."""
    trained = [base for base in bases if base.scorer is not None]
    best = max(trained, key=lambda base: int(base.facts.get("tokens", 0)), default=None)
    return no_scorer() if best is None or best.scorer is None else best.scorer
