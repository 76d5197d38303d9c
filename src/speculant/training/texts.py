"""Texts to train on, as token ids in one array."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Several texts, concatenated.

    Attributes:
        ids: Int32[N], ids of all texts.
        starts: Int64[n + 1], start of each text; the last is N.
        prompts: Int32[n], number of leading tokens of each that the target did not generate; 0 if unknown.
        files: file of each text's hidden states, or None; () if none has any.
        sources: what the encoder of an encoder-decoder reads for each text, which is then its decoder's; else None.
    """

    ids: Int32
    starts: Int64
    prompts: Int32
    files: tuple[Path | None, ...] = ()
    sources: Texts | None = None

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> Int32:
        """Return the ids of a text."""
        return self.ids[self.starts[index] : self.starts[index + 1]]

    @property
    def lengths(self) -> Int64:
        """Int64[n], number of tokens of each text."""
        return np.diff(self.starts)

    @property
    def tokens(self) -> int:
        """The total number of tokens."""
        return len(self.ids)

    def select(self, chosen: Int64) -> Texts:
        """Return some of the texts, in the given order."""
        files = tuple(self.files[index] for index in chosen) if self.files else ()
        sources = None if self.sources is None else self.sources.select(chosen)
        found = from_parts([self[index] for index in chosen], self.prompts[chosen])
        return replace(found, files=files, sources=sources)

    def cut(self, longest: int) -> Texts:
        """Return the texts truncated to a length; sources stay as they are."""
        if not len(self) or self.lengths.max() <= longest:
            return self
        found = from_parts([self[i][:longest] for i in range(len(self))], self.prompts)
        return replace(found, files=self.files, sources=self.sources)

    def digest(self) -> str:
        """Return a short hash of ids, boundaries, prompts and sources, and of which texts have stored states."""
        found = hashlib.blake2b(digest_size=12)
        for array in (self.ids, self.starts, self.prompts):
            found.update(np.ascontiguousarray(array).tobytes())
        found.update(bytes(file is not None for file in self.files))
        if self.sources is not None:
            found.update(self.sources.digest().encode())
        return found.hexdigest()


def from_parts(parts: Sequence[Int32], prompts: Sequence[int] | Int32 | None = None) -> Texts:
    """Create texts from lists of ids.

    Args:
        parts: ids of each text.
        prompts: number of leading tokens of each that the target did not generate; None for 0.
    """
    starts = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    ids = np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32)
    given = np.zeros(len(parts), np.int32) if prompts is None else np.asarray(prompts, np.int32)
    return Texts(ids, starts, given)


def join_texts(several: Sequence[Texts]) -> Texts:
    """Concatenate several collections of texts, either all or none of which have sources."""
    sources = [texts.sources for texts in several if texts.sources is not None]
    files = [file for texts in several for file in (texts.files or (None,) * len(texts))]
    offsets = np.cumsum([0, *(texts.tokens for texts in several)])
    starts = [texts.starts[:-1] + offset for texts, offset in zip(several, offsets, strict=False)]
    return Texts(
        np.concatenate([texts.ids for texts in several]) if several else np.zeros(0, np.int32),
        np.concatenate([*starts, offsets[-1:]]).astype(np.int64),
        np.concatenate([texts.prompts for texts in several]) if several else np.zeros(0, np.int32),
        tuple(files) if any(files) else (),
        join_texts(sources) if sources else None,
    )
