"""Building a base: count the contexts of a corpus of any size in bounded memory, and keep the most useful entries.

While documents are read, each token is written, together with the four tokens before it, to one of many buckets on
disk. The last of the four selects the bucket, so all contexts that end in the same token, whatever their length, are in
one bucket. Buckets are then counted in groups that fit into memory. Probabilities are smoothed by interpolated absolute
discounting with three discounts (Chen and Goodman 1998, section 4.1.6),

    p(w | h) = max(0, c(h w) - D(c)) / c(h) + g(h) p(w | h'),

where h' is h without its first token and g(h) is the probability mass freed by the discounts. An entry adds

    c(h w) log(p(w | h) / (g(h) p(w | h')))

to the log probability of the corpus: the criterion of Seymore and Rosenfeld (1996), which is the main term of Stolcke's
relative entropy (1998). Entries that add almost nothing, or whose probability is close to that of the shorter context,
are dropped; if the file would still exceed its budget, the entries that add the least are dropped too.
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
from speculant.core.tree import Array
from speculant.drafters.mix.arrays import BASE_CONTEXTS, LEVEL_BITS, LINE
from speculant.drafters.mix.base import levels, token_bits
from speculant.drafters.mix.contexts import CONTEXTS, hash_contexts
from speculant.drafters.mix.documents import DocumentFiles
from speculant.drafters.mix.score_training import token_rows, train_scorer
from speculant.drafters.mix.scores import Scorer

BUCKETS = 64
_GROUP = 1 << 20  # approximate number of records counted at a time; exceeded only if one token has more records
_BUFFER = 1 << 18  # records buffered before they are written
_START = -1  # placeholder for tokens before the start of a document
_RECORD = np.dtype([("window", np.int32, BASE_CONTEXTS), ("token", np.int32), ("weight", np.float32)])
_ENTRY = np.dtype([("hash", np.uint64), ("token", np.uint32), ("level", np.uint8), ("rank", np.uint8)])
_MINIMUM = (0.002, 0.005, 0.01, 0.02)  # minimum probability that is ever worth drafting, by context
_MIN_GAIN = 0.05
_MIN_CHANGE = 0.02  # minimum change of the log probability against the shorter context
_RANKS = 8.0  # ranks per doubling of a gain
_TRAINABLE = 100_000  # tokens: on less text a network learns nothing that counts do not show
_FEWEST_ROWS = 256  # minimum rows of a network that is worth its time
_FILLED = 0.87  # fill of the slots where space is short: fuller lines would evict entries at random
_CROWDED = 1e-3  # share of entries that may be evicted where space is left; lines are at most doubled to reach it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BuiltBase:
    """A finished base.

    Attributes:
        lines: UInt32[L, 16], for `write_base`.
        entries: number of entries kept.
        dropped: number of other entries that would have added something.
        surplus: dropped entries that exceed the room in a line for one context's successors; no budget would help.
    """

    lines: Array
    entries: int
    dropped: int
    surplus: int


class BaseBuilder:
    """Collects documents, then builds a base from them."""

    def __init__(self, folder: Path, *, vocabulary: int, state: Mapping[str, Any] | None = None) -> None:
        """Start a build, or resume one.

        Args:
            folder: existing folder for temporary files: 28 bytes per token, and up to 60 more while building.
            vocabulary: V, the number of token ids.
            state: result of an earlier `checkpoint` to resume from; anything added after it is dropped.

        Raises:
            FileError: the folder is not writable, or lacks files that the state refers to.
        """
        self._folder, self._vocabulary = folder, vocabulary
        self.tokens = 0 if state is None else int(state["tokens"])
        self._counts: Array = np.zeros(vocabulary, np.float64)
        self._waiting: list[Array] = []
        self._waiting_records = 0
        self._checkpointed = None if state is None else str(state["counts"])  # counts file of the latest checkpoint
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
            raise FileError(f"{folder} lacks records that were written earlier. Start again.") from error
        except OSError as error:
            raise _unusable(folder, error) from error

    def _bucket(self, bucket: int) -> Path:
        return self._folder / f"contexts-{bucket:02d}"

    def add(self, ids: npt.ArrayLike, *, weight: float = 1.0) -> None:
        """Add a document of ids, Int[T], each of which counts `weight` times.

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
            column = records["window"][:, back]  # latest token first
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
        """Flush buffered records, and return the JSON-serialisable state that another builder needs to resume.

        Raises:
            FileError: the disk is full.
        """
        self._flush()
        # Each checkpoint has its own file: the previous one must stay valid until the caller has stored this one.
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
            budget: maximum bytes for the lines.
            advance: called with the number of tokens counted since the last call.

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
            # The minimum rank at which all entries would fit if they were spread evenly over the lines.
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
        """Return a network trained on all documents; None if there is too little text, or no useful network fits.

        Args:
            budget: maximum bytes for the network.
            advance: called with the number of tokens trained on since the last call; see `training_tokens`.

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
        """Yield groups of records; all records with the same last token are in one group."""
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
    """Yield the records of a bucket; a large one in parts, each with all records of its last tokens."""
    parts = -(-path.stat().st_size // (_GROUP * _RECORD.itemsize))
    if parts <= 1:
        yield np.fromfile(path, _RECORD)
        return
    paths = [path.with_suffix(f".{part}") for part in range(parts)]
    with ExitStack() as stack:
        files = [stack.enter_context(each.open("wb")) for each in paths]
        for piece in _pieces(path, _RECORD):
            # Use other bits of the hash than those that selected the bucket.
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
    """Return how many entries of a file do not fit into their line if there are `lines` lines."""
    held = np.zeros(lines, np.int64)
    for part in _pieces(entries, _ENTRY):
        held += np.bincount((part["hash"] >> np.uint64(32)) * np.uint64(lines) >> np.uint64(32), minlength=lines)
    return int(np.maximum(held - LINE, 0).sum())


def _unusable(folder: Path, error: OSError) -> FileError:
    return FileError(f"cannot use {folder} for temporary files: {error.strerror}. Make room, then continue.")


def _entries_of(records: Array, unigrams: Array) -> Array:
    """Return the entries of a group of records, _ENTRY[E], without those that add almost nothing."""
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
    """Return the discount of each count, Float64[E]: Chen and Goodman's estimates, or from few counts a constant."""
    ones, twos, threes, fours = (float(np.count_nonzero(np.rint(counts) == n)) for n in (1, 2, 3, 4))
    steps = np.array([0.6, 1.1, 1.4])
    if min(ones, twos, threes, fours) >= 100:
        y = ones / (ones + 2 * twos)
        steps = np.clip([1 - 2 * y * twos / ones, 2 - 3 * y * threes / twos, 3 - 4 * y * fours / threes], 0.1, 2.9)
    places = np.clip(np.rint(counts), 1, 3).astype(np.int64) - 1
    return np.asarray(steps[places])


@njit(cache=True, nogil=True)
def _hash_windows(windows: Array, frequency: Array, hashes: Array) -> None:
    """Hash windows Int32[R, 4], latest token first, into UInt64[4, R]; 0 where the document is too short.

    `frequency` is Int64[V + 1]; these contexts do not depend on it.
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
    """Insert entries into their lines; in a full line the entry of the lowest rank is replaced."""
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
    """Sort each line by level, with empty slots last."""
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
