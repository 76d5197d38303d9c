"""A frozen base for `mix`: which tokens follow which contexts in a corpus, read-only and memory-mapped.

Each 4-byte entry is one successor of one context, which is the last one, two, three or four tokens. It stores the
token, its estimated probability as one of sixteen levels, and a check of the context. Sixteen entries form a line, as
much as a processor reads from memory at once. All successors of a context are in one line, the most probable first, so
that a lookup costs one memory access whether the context is known or not. The estimates come from base_builder.py; the
mixture, in which each base has one input per context (features.py), learns how far to trust them on current traffic.
A base may also contain a small network that scores candidates (scores.py).

The file is a memory file of its own kind. It is memory-mapped, so that it opens at once and processes share its pages.
`speculant memory info` verifies its checksums. The kernels do not rely on valid contents, since they skip tokens beyond
the vocabulary; only the row indices of a network are checked when a base is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speculant.core.errors import CorruptMemoryError, ForeignMemoryError, UnsupportedError
from speculant.core.tree import Array
from speculant.drafters.mix.arrays import LEVELS, LINE, Bases
from speculant.drafters.mix.scores import Scorer, is_valid, no_scorer
from speculant.memory.file import read_memory, write_memory

KIND = "mix-base"
MAX_BASES = 3
_FORMAT = 1  # of the lines, independent of the format of the file around them
_SCORES_FORMAT = 1  # of the network
_HIGHEST, _RATIO = 0.9, 0.62  # probability of level 0, and the ratio of each level to the one before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixBase:
    """An open base.

    Attributes:
        path: path of the file.
        lines: UInt32[L, 16], mapped and read-only: entry = check << (bits + 4) | level << bits | token, 0 where empty.
        scorer: network that scores candidates, or None.
        facts: metadata from the builder: "vocabulary", "bits" (per token), "tokens", "entries", "sources" and more.
    """

    path: Path
    lines: Array
    scorer: Scorer | None
    facts: Mapping[str, Any]


def token_bits(vocabulary: int) -> int:
    """Return the number of bits that an entry uses for the token."""
    return max(1, (vocabulary - 1).bit_length())


def levels(probabilities: Array) -> Array:
    """Return the level of each probability, UInt32, 0 for the highest."""
    steps = np.log(np.maximum(probabilities, 1e-9) / _HIGHEST) / np.log(_RATIO)
    return np.asarray(np.clip(np.rint(steps), 0, LEVELS - 1), np.uint32)


def level_probabilities() -> Array:
    """Return the probability of each level, Float64[16]."""
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
    """Write a base atomically.

    Raises:
        FileError: the file cannot be written; an existing file is left unchanged.
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
        FileError: the file does not exist or cannot be read.
        CorruptMemoryError: it is not a memory file, is truncated, or its lines or its network have a wrong shape.
        ForeignMemoryError: it belongs to another tokenizer, is not a base, or has another format version.
        UnsupportedError: its vocabulary is larger than the model's.
    """
    arrays, facts = read_memory(path, kind=KIND, tokenizer=tokenizer, verify=False)
    if facts.get("format") != _FORMAT:
        raise ForeignMemoryError(
            f"{path} is a base of format {facts.get('format')}, but this version of Speculant reads format {_FORMAT}. "
            "Build it again, or use the version of Speculant that wrote it."
        )
    held = facts.get("vocabulary")
    if not isinstance(held, int) or not 0 < held <= vocabulary:  # models often have more ids than their tokenizer
        raise UnsupportedError(
            f"{path} was built for a vocabulary of {held} tokens, but this model's has {vocabulary}. Use a base that "
            "was built for this model."
        )
    lines = arrays.get("lines")
    if lines is None or lines.dtype != np.uint32 or lines.ndim != 2 or lines.shape[1] != LINE or not len(lines):
        raise CorruptMemoryError(f"{path} holds no valid lines of a base. Restore a copy, or build it again.")
    return MixBase(path=Path(path), lines=lines, scorer=_scorer_of(path, arrays, facts), facts=facts)


def _scorer_of(path: Path, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> Scorer | None:
    if "scores" not in facts:
        return None
    if facts["scores"] != _SCORES_FORMAT:
        raise ForeignMemoryError(
            f"{path} has a network of format {facts['scores']}, but this version of Speculant reads format "
            f"{_SCORES_FORMAT}. Build it again, or use the version of Speculant that wrote it."
        )
    found = [arrays[name] for field in Scorer._fields if (name := f"scores.{field}") in arrays]
    if len(found) < len(Scorer._fields) or not is_valid(Scorer(*found), facts["vocabulary"]):
        raise CorruptMemoryError(f"{path} holds no valid network. Restore a copy, or build it again.")
    rows = found[0].copy()  # indices, which must not change on disk after the check
    rows.flags.writeable = False
    return Scorer(rows, *found[1:])


def in_use(bases: Sequence[MixBase]) -> Bases:
    """Return bases in the form that the kernels take.

    Raises:
        UnsupportedError: there are more than MAX_BASES.
    """
    if len(bases) > MAX_BASES:
        raise UnsupportedError(
            f"`mix` takes up to {MAX_BASES} bases, not {len(bases)}. Build one base from several sources."
        )
    nothing = np.empty((0, LINE), np.uint32)
    nothing.flags.writeable = False  # like mapped arrays, so that the kernels are compiled only once
    first, second, third = [base.lines for base in bases] + [nothing] * (MAX_BASES - len(bases))
    bits = [token_bits(base.facts["vocabulary"]) for base in bases] + [1] * (MAX_BASES - len(bases))
    return Bases(first, second, third, np.array(bits))


def scorer_in_use(bases: Sequence[MixBase]) -> Scorer:
    """Return the network trained on the most tokens, in the form that the kernels take."""
    trained = [base for base in bases if base.scorer is not None]
    best = max(trained, key=lambda base: int(base.facts.get("tokens", 0)), default=None)
    return no_scorer() if best is None or best.scorer is None else best.scorer
