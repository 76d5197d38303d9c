"""Building a base: counts contexts of a corpus of any size in bounded memory, and keeps the entries that add the most.

While documents are read, each token is written with the four tokens before it to one of many buckets on disk, chosen by
the last of the four: all contexts that end in one token, of any length, are in one bucket. Buckets are then counted in
groups that fit into memory. Probabilities are smoothed by interpolated absolute discounting with three discounts
(Chen and Goodman 1998, section 4.1.6),

    p(w | h) = max(0, c(h w) - D(c)) / c(h) + g(h) p(w | h'),

where h' is h without its first token and g(h) is what the discounts take away. An entry adds

    c(h w) log(p(w | h) / (g(h) p(w | h')))

to the log probability of the corpus: the criterion of Seymore and Rosenfeld (1996), which is the main term of Stolcke's
relative entropy (1998). Entries that add next to nothing, or say what the shorter context says, are left out, and where
the file would exceed its budget, those that add the least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.core.errors import FileError
from speculant.drafters.mix.arrays import BASE_CONTEXTS, LEVEL_BITS, LINE
from speculant.drafters.mix.base import levels, token_bits
from speculant.drafters.mix.contexts import CONTEXTS, hash_contexts
from speculant.drafters.mix.documents import DocumentFiles
from speculant.drafters.mix.score_training import token_rows, train_scorer
from speculant.drafters.mix.scores import Scorer

Array = npt.NDArray[Any]

BUCKETS = 64
_GROUP = 1 << 20  # records counted at a time, about; more only if a single token was followed by more
_BUFFER = 1 << 18  # records kept before they are written
_START = -1  # stands for the tokens before a document
_RECORD = np.dtype([("window", np.int32, BASE_CONTEXTS), ("token", np.int32), ("weight", np.float32)])
_ENTRY = np.dtype([("hash", np.uint64), ("token", np.uint32), ("level", np.uint8), ("rank", np.uint8)])
_MINIMUM = (0.002, 0.005, 0.01, 0.02)  # probabilities that are never worth a draft, by context
_MIN_GAIN = 0.05
_MIN_CHANGE = 0.02  # of a probability's logarithm against the shorter context's
_RANKS = 8.0  # steps of the logarithm of a gain, to the base 2
_TRAINABLE = 100_000  # tokens: from fewer a network learns nothing that counts do not show
_FEWEST_ROWS = 256  # of a network that is worth its time
_FILLED = 0.87  # of the slots, where room is short: fuller lines push out entries at random
_CROWDED = 1e-3  # of the entries may be pushed out where there is room; lines are at most doubled for them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BuiltBase:
    """A finished base.

    Attributes:
        lines: UInt32[L, 16], for `write_base`.
        entries: how many are kept.
        dropped: how many others there were that would have added something.
        surplus: of these, successors beyond those that a line has room for, for which no budget helps.
    """

    lines: Array
    entries: int
    dropped: int
    surplus: int


class BaseBuilder:
    """Takes documents, then builds."""

    def __init__(self, folder: Path, *, vocabulary: int, state: Mapping[str, Any] | None = None) -> None:
        """Start, or go on.

        Args:
            folder: an existing one for temporary files: 28 bytes a token, and up to 60 more while building.
            vocabulary: V, the number of token ids.
            state: of an earlier `checkpoint`, to go on from; what was added later is dropped.

        Raises:
            FileError: the folder cannot be written, or lacks what the state names.
        """
        self._folder, self._vocabulary = folder, vocabulary
        self.tokens = 0 if state is None else int(state["tokens"])
        self._counts: Array = np.zeros(vocabulary, np.float64)
        self._waiting: list[Array] = []
        self._waiting_records = 0
        self._checkpointed = None if state is None else str(state["counts"])  # the latest
        sizes = [0] * BUCKETS if state is None else state["sizes"]
        try:
            if state is not None:
                self._counts = np.load(folder / state["counts"])
            for bucket, size in enumerate(sizes):
                with self._bucket(bucket).open("ab") as file:
                    if file.tell() < size:
                        raise EOFError
                    file.truncate(size)
            self._documents = DocumentFiles(folder, (0, 0) if state is None else state["documents"])
        except EOFError as error:
            raise FileError(f"{folder} lacks records that were written before. Begin again.") from error
        except OSError as error:
            raise _unusable(folder, error) from error

    def _bucket(self, bucket: int) -> Path:
        return self._folder / f"contexts-{bucket:02d}"

    def add(self, ids: npt.ArrayLike, *, weight: float = 1.0) -> None:
        """Take a document of ids, Int[T], each of which counts `weight` times.

        Raises:
            ValueError: an id lies outside the vocabulary.
            FileError: the disk is full.
        """
        text = np.asarray(ids, np.int32)
        if not len(text):
            return
        if text.min() < 0 or text.max() >= self._vocabulary:
            raise ValueError(f"token ids must be from 0 to {self._vocabulary - 1}")
        records = np.empty(len(text) - 1, _RECORD)
        for back in range(BASE_CONTEXTS):
            column = records["window"][:, back]  # the latest token first
            column[:back] = _START
            column[back:] = text[: max(0, len(text) - 1 - back)]
        records["token"], records["weight"] = text[1:], weight
        np.add.at(self._counts, text, weight)
        self.tokens += len(text)
        self._documents.add(text, weight)
        self._waiting.append(records)
        self._waiting_records += len(records)
        if self._waiting_records >= _BUFFER:
            self._flush()

    def _flush(self) -> None:
        try:
            self._documents.flush()
        except OSError as error:
            raise _unusable(self._folder, error) from error
        if not self._waiting:
            return
        records = np.concatenate(self._waiting)
        self._waiting, self._waiting_records = [], 0
        buckets = _bucket_of(records["window"][:, 0])
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(BUCKETS + 1))
        try:
            for bucket in range(BUCKETS):
                part = records[order[ends[bucket] : ends[bucket + 1]]]
                if len(part):
                    with self._bucket(bucket).open("ab") as file:
                        file.write(part.tobytes())
        except OSError as error:
            raise _unusable(self._folder, error) from error

    def checkpoint(self) -> dict[str, Any]:
        """Write what waits, and return what another builder needs to go on: JSON-able.

        Raises:
            FileError: the disk is full.
        """
        self._flush()
        # A file of its own per checkpoint: until this one is stored by the caller, the one before must remain valid.
        counts = f"counts-{self.tokens}.npy"
        try:
            for old in self._folder.glob("counts-*.npy"):
                if old.name not in (counts, self._checkpointed):
                    old.unlink()
            np.save(self._folder / counts, self._counts)
            sizes = [self._bucket(bucket).stat().st_size for bucket in range(BUCKETS)]
            documents = self._documents.sizes()
        except OSError as error:
            raise _unusable(self._folder, error) from error
        self._checkpointed = counts
        return {"tokens": self.tokens, "sizes": sizes, "documents": documents, "counts": counts}

    def build(self, budget: int, advance: Callable[[int], object]) -> BuiltBase:
        """Return the base of all documents.

        Args:
            budget: bytes that its lines may take.
            advance: is given how many tokens were counted.

        Raises:
            FileError: the disk is full.
        """
        self._flush()
        unigrams = np.maximum(self._counts, 1e-3) / max(1.0, self._counts.sum())
        ranks, entries, surplus = np.zeros(256, np.int64), self._folder / "entries", 0
        try:
            with entries.open("wb") as file:
                for records in self._groups():
                    part = _entries_of(records, unigrams)
                    ranks += np.bincount(part["rank"], minlength=256)
                    surplus += int(np.maximum(np.unique(part["hash"], return_counts=True)[1] - LINE, 0).sum())
                    file.write(part.tobytes())
                    advance(len(records))
            count = int(ranks.sum())
            maximum, densest = max(1, budget // (4 * LINE)), int(np.ceil(count / (LINE * _FILLED)))
            lines, maximum = max(1, min(maximum, densest)), min(maximum, 2 * densest)
            while lines < maximum and _count_crowded(entries, lines) - surplus > _CROWDED * count:
                lines = min(maximum, lines + lines // 8 + 1)
            # The least gain whose entries fit, if they all came to lines with room.
            fitting = np.flatnonzero(np.cumsum(ranks[::-1]) <= lines * LINE)
            minimum = 255 - int(fitting[-1]) if len(fitting) else 256
            table, kept_ranks = np.zeros((lines, LINE), np.uint32), np.zeros((lines, LINE), np.uint8)
            bits = token_bits(self._vocabulary)
            for part in _pieces(entries, _ENTRY):
                _place(table, kept_ranks, part[part["rank"] >= max(0, minimum - 1)], bits)
        except OSError as error:
            raise _unusable(self._folder, error) from error
        _sort_lines(table, bits)
        table.flags.writeable = False
        kept = int(np.count_nonzero(table))
        return BuiltBase(lines=table, entries=kept, dropped=count - kept, surplus=surplus)

    def train_scorer(self, budget: int, advance: Callable[[int], object]) -> Scorer | None:
        """Return a network trained on all documents; None where they are too few, or no useful one fits.

        Args:
            budget: bytes that it may take.
            advance: is given how many tokens were trained on; see `training_tokens`.

        Raises:
            FileError: the disk is full.
        """
        self._flush()
        rows = token_rows(self._counts, budget)
        if self.tokens < _TRAINABLE or rows.max() < _FEWEST_ROWS:
            return None
        try:
            return train_scorer(self._documents.read(), rows, self._counts, advance=advance)
        except OSError as error:
            raise _unusable(self._folder, error) from error

    def _groups(self) -> Iterator[Array]:
        """Yield records, all of one last token together."""
        group: list[Array] = []
        for bucket in range(BUCKETS):
            for records in _divide(self._bucket(bucket)):
                if group and sum(map(len, group)) + len(records) > _GROUP:
                    yield np.concatenate(group)
                    group = []
                group.append(records)
        yield np.concatenate(group)


def _bucket_of(tokens: Array) -> Array:
    return (tokens.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(58)


def _divide(path: Path) -> Iterator[Array]:
    """Yield the records of a bucket; of a large one in parts, each with all records of its last tokens."""
    parts = -(-path.stat().st_size // (_GROUP * _RECORD.itemsize))
    if parts <= 1:
        yield np.fromfile(path, _RECORD)
        return
    paths = [path.with_suffix(f".{part}") for part in range(parts)]
    with ExitStack() as stack:
        files = [stack.enter_context(each.open("wb")) for each in paths]
        for piece in _pieces(path, _RECORD):
            # Other bits of the hash than those that chose the bucket.
            chosen = (piece["window"][:, 0].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) % parts
            for part, file in enumerate(files):
                file.write(piece[chosen == part].tobytes())
    for each in paths:
        yield np.fromfile(each, _RECORD)
        each.unlink()


def _pieces(path: Path, dtype: np.dtype[Any]) -> Iterator[Array]:
    with path.open("rb") as file:
        while len(piece := np.fromfile(file, dtype, 1 << 20)):
            yield piece


def _count_crowded(entries: Path, lines: int) -> int:
    """Return how many entries of a file find no place if there are so many lines."""
    held = np.zeros(lines, np.int64)
    for part in _pieces(entries, _ENTRY):
        held += np.bincount((part["hash"] >> np.uint64(32)) * np.uint64(lines) >> np.uint64(32), minlength=lines)
    return int(np.maximum(held - LINE, 0).sum())


def _unusable(folder: Path, error: OSError) -> FileError:
    return FileError(f"cannot use {folder} for temporary files: {error.strerror}. Make room, then continue.")


def _entries_of(records: Array, unigrams: Array) -> Array:
    """Return the entries of whole buckets: _ENTRY[E], without those that add next to nothing."""
    if not len(records):
        return np.empty(0, _ENTRY)
    hashes = np.zeros((BASE_CONTEXTS, len(records)), np.uint64)
    _hash_windows(records["window"], np.zeros(len(unigrams) + 1, np.int64), hashes)
    tokens, weights = records["token"].astype(np.uint64), records["weight"].astype(np.float64)
    kept = []
    shorter_keys, shorter_p = np.empty(0, np.uint64), np.empty(0)
    for order in range(BASE_CONTEXTS):
        known = np.flatnonzero(hashes[order])
        keys = hashes[order, known] & ~np.uint64((1 << 20) - 1) | tokens[known]
        keys, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        if not len(keys):
            break
        counts, where = np.bincount(inverse, weights[known]), known[first]
        if order == 0:
            shorter = unigrams[records["token"][where]]
        else:
            below = hashes[order - 1, where] & ~np.uint64((1 << 20) - 1) | tokens[where]
            shorter = shorter_p[np.searchsorted(shorter_keys, below)]
        starts = np.flatnonzero(np.append(True, keys[1:] >> np.uint64(20) != keys[:-1] >> np.uint64(20)))
        row = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(keys))))
        discounts = np.minimum(_discounts(counts), 0.95 * counts)
        totals = np.add.reduceat(counts, starts)
        backed_off = (np.add.reduceat(discounts, starts) / totals)[row] * shorter
        p = (counts - discounts) / totals[row] + backed_off
        gains = counts * np.log(p / backed_off)
        useful = (p > _MINIMUM[order]) & (gains > _MIN_GAIN) & (np.abs(np.log(p / shorter)) > _MIN_CHANGE)
        part = np.empty(int(useful.sum()), _ENTRY)
        part["hash"] = hashes[order, where[useful]]
        part["token"], part["level"] = tokens[where[useful]], levels(p[useful])
        part["rank"] = np.clip(_RANKS * (np.log2(gains[useful]) + 6), 1, 255)
        kept.append(part)
        shorter_keys, shorter_p = keys, p
    return np.concatenate(kept) if kept else np.empty(0, _ENTRY)


def _discounts(counts: Array) -> Array:
    """Return what is taken from each count, Float64[E]: Chen and Goodman's estimates, or theirs for large corpora."""
    ones, twos, threes, fours = (float(np.count_nonzero(np.rint(counts) == n)) for n in (1, 2, 3, 4))
    steps = np.array([0.6, 1.1, 1.4])
    if min(ones, twos, threes, fours) >= 100:
        y = ones / (ones + 2 * twos)
        steps = np.clip([1 - 2 * y * twos / ones, 2 - 3 * y * threes / twos, 3 - 4 * y * fours / threes], 0.1, 2.9)
    places = np.clip(np.rint(counts), 1, 3).astype(np.int64) - 1
    return np.asarray(steps[places])


@njit(cache=True, nogil=True)
def _hash_windows(windows: Array, frequency: Array, hashes: Array) -> None:
    """Hash windows Int32[R, 4], the latest token first, to UInt64[4, R]; 0 where a document had not begun.

    `frequency` is Int64[V + 1], which these contexts do not depend on.
    """
    found = np.zeros(CONTEXTS, np.uint64)
    text = np.empty(BASE_CONTEXTS, np.int32)
    for r in range(len(windows)):
        length = 0
        while length < BASE_CONTEXTS and windows[r, length] != _START:
            length += 1
        for k in range(length):
            text[length - 1 - k] = windows[r, k]
        hash_contexts(text[:length], length, frequency, found)
        for c in range(BASE_CONTEXTS):
            hashes[c, r] = found[c]


@njit(cache=True, nogil=True)
def _place(lines: Array, ranks: Array, entries: Array, bits: int) -> None:
    """Add entries to their lines; in a full one the entry of the lowest rank gives way."""
    check_mask = np.uint64((1 << (32 - LEVEL_BITS - bits)) - 1)
    for entry in entries:
        line = np.int64(((entry.hash >> np.uint64(32)) * np.uint64(len(lines))) >> np.uint64(32))
        place = 0
        for k in range(LINE):
            if lines[line, k] == np.uint32(0):
                place = k
                break
            if ranks[line, k] < ranks[line, place]:
                place = k
        if lines[line, place] != np.uint32(0) and ranks[line, place] >= entry.rank:
            continue
        check = np.uint32(entry.hash & check_mask)
        level = np.uint32(entry.level)
        lines[line, place] = check << np.uint32(bits + LEVEL_BITS) | level << np.uint32(bits) | entry.token
        ranks[line, place] = entry.rank


@njit(cache=True, nogil=True)
def _sort_lines(lines: Array, bits: int) -> None:
    """Sort each line by level, empty places last."""
    for line in lines:
        for k in range(1, LINE):
            entry, at = line[k], k
            if entry == np.uint32(0):
                break
            level = (entry >> np.uint32(bits)) & np.uint32((1 << LEVEL_BITS) - 1)
            while at > 0 and (line[at - 1] >> np.uint32(bits)) & np.uint32((1 << LEVEL_BITS) - 1) > level:
                line[at] = line[at - 1]
                at -= 1
            line[at] = entry
