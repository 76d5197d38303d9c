"""Mix: several contexts at once, each trusted for what it has been worth, mixed into calibrated probabilities.

The training-free drafters of the field look at one thing: the last two tokens (ADED), the longest suffix
(SuffixDecoding, SAM), the target's last top-k (Token Recycling). Data compression has long known that a mixture that
learns online beats any of them. Here short and long suffixes, a context with a gap, a skeleton of frequent tokens,
recency and the target's own runners-up each give evidence (contexts.py); bounded tables hold it over all requests
(cells.py); a logistic mixture learns from every committed token what it is worth (mixing.py). Its probabilities
being calibrated, the best draft of N nodes is the N most probable paths (Sequoia, Chen et al. 2024,
arXiv 2402.12374; OPT-Tree, Wang et al. 2024, arXiv 2406.17276), found best-first.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.drafters.base import MEMORY_LIMIT, Needs, Session, Verified
from speculant.drafters.cells import MAX_TOKENS, UNIT, Cells, blend, find, grown, new_cells, observe
from speculant.drafters.contexts import (
    CONTEXTS,
    ECHO_ONE,
    ECHO_TWO,
    LEARNED,
    SHORTER,
    WIDE,
    WINDOW,
    hash_contexts,
)
from speculant.drafters.copying import NOWHERE, index, seek
from speculant.drafters.memory_file import read_memory, write_memory
from speculant.drafters.mixing import (
    LONGEST_ROW,
    Mixer,
    correct,
    gather,
    new_mixer,
    new_scratch,
    remember,
    squash,
)
from speculant.drafters.search import insert
from speculant.errors import ForeignMemoryError, UnsupportedError
from speculant.tree import DraftTree, Float32, Int32

Array = npt.NDArray[Any]

KIND = "mix"
NARROW_ROW = 4
_NARROW_BITS, _WIDE_BITS = 13, 9
_FEW = 0.03  # where a node's children need more than this to enter, only the latest of each row are looked at
WIDE_SHARE = 4  # wide rows get a quarter of the limit at the most


class Request(NamedTuple):
    """What belongs to one request.

    Attributes:
        last_use: Int32[V], where each token was last used, -1 if nowhere.
        heads: Int32[2 ** h], the index of repetitions.
        copy: Int64[2], where the repetition that the text is in goes on, or NOWHERE, and its length.
    """

    last_use: Array
    heads: Array
    copy: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class MixSettings:
    """What can be tuned; the defaults were chosen on half of the development requests.

    Attributes:
        row_memory: observations a row remembers before older ones decay, up to 14.
        top_k: the target's best tokens learned at every row of a pass, rejected nodes too; 0 for none.
        strength: what the target's distribution at a row counts for, in observations.
        echo_memory: observations that a row of those remembers, up to 15.
        cut: nodes near the last place whose children would need a conditional probability above this to enter the
            tree are not expanded; 1 spares none.
    """

    row_memory: float = 8
    top_k: int = 8
    strength: float = 4
    echo_memory: float = 14
    cut: float = 0.2


@njit(cache=True, nogil=True)
def learn_text(
    narrow: Cells, wide: Cells, mixer: Mixer, text: Array, start: int, stop: int, weigh: bool, memory: int,
    request: Request,
) -> None:  # fmt: skip
    """Learn text[start:stop], Int32; with `weigh` also what the contexts' evidence was worth."""
    last_use, heads, copy = request
    scratch, hashes = new_scratch(), np.empty(CONTEXTS, np.uint64)
    for i in range(start, stop):
        token = text[i]
        hash_contexts(text[max(0, i - WINDOW) : i], min(i, WINDOW), mixer.frequency, hashes)
        if weigh:
            copied = text[copy[0]] if copy[0] != NOWHERE else NOWHERE
            count = gather(narrow, wide, mixer, hashes, copied, copy[1], last_use, i, LONGEST_ROW, scratch)
            correct(mixer, scratch, count, token)
        for c in range(LEARNED - 1, -1, -1):
            if hashes[c] == np.uint64(0):
                continue
            if SHORTER[c] >= 0 and find(narrow, hashes[SHORTER[c]]) < 0:
                continue
            observe(wide if WIDE[c] else narrow, hashes[c], token, memory)
        remember(mixer, token)
        last_use[token] = i
        index(heads, text, i)
        if copy[0] != NOWHERE and text[copy[0]] == token:
            copy[0] += 1
            copy[1] += 1
        else:
            copy[0], copy[1] = seek(heads, text, text[max(0, i + 1 - WINDOW) : i + 1])


@njit(cache=True, nogil=True)
def learn_echoes(
    narrow: Cells, wide: Cells, mixer: Mixer, windows: Array, ids: Array, gains: Array, memory: int
) -> None:
    """Learn the target's best tokens, ids Int32[R, k], gains Int64[R, k], after windows Int32[R, 2]; -1 for none."""
    hashes = np.empty(CONTEXTS, np.uint64)
    tokens, weights = np.empty(LONGEST_ROW + ids.shape[1], np.int64), np.empty(LONGEST_ROW + ids.shape[1], np.int64)
    for r in range(len(windows)):
        hash_contexts(windows[r], 2, mixer.frequency, hashes)
        blend(wide, hashes[ECHO_ONE], ids[r], gains[r], memory, tokens, weights)
        if windows[r, 0] >= 0:
            blend(narrow, hashes[ECHO_TWO], ids[r], gains[r], memory, tokens, weights)


@njit(cache=True, nogil=True)
def most_probable(
    narrow: Cells, wide: Cells, mixer: Mixer, text: Array, length: int, request: Request, limit: int, cut: float,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return tokens Int32[N], parents Int32[N] and joint probabilities Float32[N], N <= limit, best first."""
    order, joints = np.empty(limit, np.int32), np.empty(limit, np.float32)
    tokens, parents = np.empty(limit, np.int32), np.empty(limit, np.int32)  # by slot; a parent is a rank
    places, lengths = np.empty(limit, np.int64), np.empty(limit, np.int64)  # by slot, of its repetition
    window = np.empty(WINDOW, np.int32)
    last_use, heads, copy = request
    scratch, hashes = new_scratch(), np.empty(CONTEXTS, np.uint64)
    count = 0
    for rank in range(-1, limit - 1):
        joint = np.float32(1)
        if rank >= 0:
            if rank >= count or (count == limit and joints[rank] * np.float32(cut) <= joints[limit - 1]):
                break
            joint = joints[rank]
        at, node, depth = WINDOW, rank, 0
        while node >= 0:
            if at > 0:
                at -= 1
                window[at] = tokens[order[node]]
            node = parents[order[node]]
            depth += 1
        back = length
        while at > 0 and back > 0:
            at, back = at - 1, back - 1
            window[at] = text[back]
        hash_contexts(window[at:], WINDOW - at, mixer.frequency, hashes)
        place, agreed = copy[0], copy[1]
        if rank >= 0:
            place, agreed = places[order[rank]], lengths[order[rank]]
            if place == NOWHERE:
                place, agreed = seek(heads, text, window[at:])
        if place >= length:
            place, agreed = NOWHERE, 0
        copied = text[place] if place != NOWHERE else NOWHERE
        needed = joints[limit - 1] / joint if count == limit else np.float32(0)
        most = LONGEST_ROW if needed < np.float32(_FEW) else NARROW_ROW
        found = gather(narrow, wide, mixer, hashes, copied, agreed, last_use, length + depth, most, scratch)
        least = _logit(needed) if needed > 0 else np.float32(-math.inf)
        for c in range(found):
            z = scratch.logits[c]
            if z <= least:
                continue
            p = joint * squash(mixer, z)
            if count < limit or p > joints[limit - 1]:
                slot = insert(count, limit, p, order, joints)
                tokens[slot], parents[slot] = scratch.candidates[c], rank
                follows = copied == scratch.candidates[c]
                places[slot], lengths[slot] = (place + 1, agreed + 1) if follows else (NOWHERE, 0)
                count = min(count + 1, limit)
    return tokens[order[:count]], parents[order[:count]], joints[:count]


@njit(cache=True, nogil=True, inline="always")
def _logit(p: float) -> float:
    """Return a logit that a candidate of probability p reaches for certain; a little less, for interpolation's sake."""
    return np.float32(math.log(p / (1 - p)) - 0.01) if p < 0.999 else np.float32(6)


class MixDrafter:
    """The tables and the mixture, shared by all requests of a process behind one lock."""

    def __init__(
        self,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: MixSettings | None = None,
    ) -> None:
        """Start with empty tables.

        Args:
            vocabulary: V, the number of token ids.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: bytes the tables may take. They grow by doubling, so they end between half of it and all.
                The mixture comes on top: 8 bytes per token id and 60 KB.
            settings: None for the defaults.

        Raises:
            UnsupportedError: the vocabulary has more ids than the tables can hold.
        """
        if vocabulary > MAX_TOKENS:
            raise UnsupportedError(f"the tables of `mix` hold token ids below {MAX_TOKENS}, not {vocabulary}.")
        self.settings = settings or MixSettings()
        self.vocabulary = vocabulary
        self.limit = memory_limit
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._narrow = new_cells(NARROW_ROW, self._narrow_limit, first_bits=_NARROW_BITS)
        self._wide = new_cells(LONGEST_ROW, self._wide_limit, first_bits=_WIDE_BITS)
        self._mixer = new_mixer(vocabulary)
        self._warm_up()

    def _warm_up(self) -> None:
        """Load the compiled kernels now, so that the first request does not wait for them."""
        narrow, wide, mixer = (
            new_cells(NARROW_ROW, 0, first_bits=0),
            new_cells(LONGEST_ROW, 0, first_bits=0),
            new_mixer(1),
        )
        request = Request(last_use=np.zeros(1, np.int32), heads=np.zeros(1, np.int32), copy=np.array([NOWHERE, 0]))
        text = np.zeros(2, np.int32)
        learn_text(narrow, wide, mixer, text, 0, 2, True, UNIT, request)
        learn_echoes(narrow, wide, mixer, text[None], text[None], np.zeros((1, 2), np.int64), UNIT)
        most_probable(narrow, wide, mixer, text, 2, request, 1, 1.0)

    @property
    def _wide_limit(self) -> int:
        return self.limit // WIDE_SHARE

    @property
    def _narrow_limit(self) -> int:
        return self.limit - self.limit // WIDE_SHARE

    @property
    def needs(self) -> Needs:
        """The target's best tokens, if the settings learn from them."""
        return Needs(top_k=self.settings.top_k)

    @property
    def memory_bytes(self) -> int:
        """Bytes the memory takes now: the tables, which the limit bounds, and the mixture, of a fixed size."""
        return sum(array.nbytes for part in (self._narrow, self._wide, self._mixer) for array in part)

    def open(self, prompt: Int32, *, target: Any = None, seed: int = 0) -> Session:
        """Begin a request; the whole prompt is learned at once."""
        return MixSession(self, prompt)

    def learn(self, text: Int32, start: int, stop: int, request: Request, *, weigh: bool) -> None:
        """Learn text[start:stop], Int32[T]; with `weigh` also what the evidence for it was worth.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        part = text[start:stop]
        if len(part) and not 0 <= part.min() <= part.max() < self.vocabulary:
            raise ValueError(f"token ids must be from 0 to {self.vocabulary - 1}")
        memory = round(self.settings.row_memory * UNIT)
        step = 1024  # tokens between checks whether a table must grow; each begins at most seven cells
        with self._lock:
            for begin in range(start, stop, step):
                # One that was loaded may have more than its share, and then the other has less.
                narrow_limit = min(self._narrow_limit, self.limit - self._wide.entries.nbytes)
                self._narrow = grown(self._narrow, narrow_limit)
                self._wide = grown(self._wide, min(self._wide_limit, self.limit - self._narrow.entries.nbytes))
                learn_text(
                    self._narrow, self._wide, self._mixer, text, begin, min(stop, begin + step), weigh, memory,
                    request,
                )  # fmt: skip

    def learn_echoes(self, windows: Int32, ids: Int32, logits: Float32) -> None:
        """Keep the target's best tokens, ids and logits [R, k], after windows Int32[R, 2] (-1: no token there)."""
        shares = np.exp(logits - logits[:, :1])
        shares *= self.settings.strength * UNIT / shares.sum(axis=1, keepdims=True)
        gains = np.where(ids < self.vocabulary, np.rint(shares), 0).astype(np.int64)  # a padded head may say more
        with self._lock:
            learn_echoes(
                self._narrow, self._wide, self._mixer, windows, ids, gains, round(self.settings.echo_memory * UNIT)
            )

    def search(self, text: Int32, length: int, request: Request, max_nodes: int) -> DraftTree:
        """Return the `max_nodes` most probable continuations of text[:length]."""
        with self._lock:
            tokens, parents, joints = most_probable(
                self._narrow, self._wide, self._mixer, text, length, request, max_nodes, self.settings.cut,
            )  # fmt: skip
        return DraftTree(tokens, parents, joints)

    def save(self, path: Path) -> None:
        """Write everything learned.

        Raises:
            FileError: the file cannot be written; an older one is unchanged.
        """
        with self._lock:
            parts: dict[str, Cells | Mixer] = {"narrow": self._narrow, "wide": self._wide, "mixer": self._mixer}
            arrays = {
                f"{part}.{name}": a.copy() for part, table in parts.items() for name, a in table._asdict().items()
            }
        write_memory(path, kind=KIND, tokenizer=self._tokenizer, arrays=arrays, facts={"vocabulary": self.vocabulary})

    def load(self, path: Path) -> None:
        """Read a saved memory and forget what was learned so far.

        Raises:
            FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
            UnsupportedError: it is larger than the memory limit, or of another vocabulary.
        """
        arrays, facts = read_memory(path, kind=KIND, tokenizer=self._tokenizer)
        if facts["vocabulary"] != self.vocabulary:
            raise UnsupportedError(
                f"{path} is of a vocabulary of {facts['vocabulary']} ids, this model's has {self.vocabulary}. "
                "Use the model it was made with, or another memory file."
            )
        size = sum(array.nbytes for name, array in arrays.items() if not name.startswith("mixer."))
        if size > self.limit:
            raise UnsupportedError(
                f"{path} takes {size >> 20} MB, the memory limit is {self.limit >> 20} MB. Raise the limit."
            )
        expected = {f"mixer.{name}": array.shape for name, array in self._mixer._asdict().items()}
        if {name: array.shape for name, array in arrays.items() if name in expected} != expected:
            raise ForeignMemoryError(
                f"{path} was written by a version of `mix` that looks at other contexts. "
                "Use the version of Speculant that wrote it, or begin a new file."
            )
        own = {name: np.array(array) for name, array in arrays.items()}
        with self._lock:
            self._narrow = Cells(*(own[f"narrow.{name}"] for name in Cells._fields))
            self._wide = Cells(*(own[f"wide.{name}"] for name in Cells._fields))
            self._mixer = Mixer(*(own[f"mixer.{name}"] for name in Mixer._fields))


class MixSession:
    """One request: its text, and where it last used each token."""

    def __init__(self, drafter: MixDrafter, prompt: Int32) -> None:
        self._drafter = drafter
        self._length = len(prompt)
        self._text = np.zeros(len(prompt) + 1024, np.int32)
        self._text[: len(prompt)] = prompt
        self._request = Request(
            last_use=np.full(drafter.vocabulary, -1, np.int32),
            heads=np.zeros(1 << max(12, (2 * len(prompt)).bit_length()), np.int32),
            copy=np.array([NOWHERE, 0]),
        )
        drafter.learn(self._text, 0, self._length, self._request, weigh=False)

    def propose(self, max_nodes: int) -> DraftTree:
        """Return the `max_nodes` most probable continuations."""
        if max_nodes < 1 or not self._length:
            return DraftTree.empty()
        return self._drafter.search(self._text, self._length, self._request, max_nodes)

    def observe(self, verified: Verified) -> None:
        """Learn what was committed, and what the target would have said at every node."""
        told = verified.top_ids is not None and verified.top_logits is not None and self._length > 0
        windows = self._windows(verified.tree) if told else None
        end = self._length + len(verified.tokens)
        if end > len(self._text):
            self._text = np.concatenate([self._text, np.zeros(len(self._text) + len(verified.tokens), np.int32)])
        self._text[self._length : end] = verified.tokens
        self._drafter.learn(self._text, self._length, end, self._request, weigh=True)
        self._length = end
        # Afterwards: a row that holds the target's answer already would look as if it had foretold it.
        if windows is not None and verified.top_ids is not None and verified.top_logits is not None:
            self._drafter.learn_echoes(windows, verified.top_ids, verified.top_logits)

    def _windows(self, tree: DraftTree) -> Int32:
        """Return the last two tokens at each row of the pass, Int32[N + 1, 2], -1 where the text has only one."""
        tokens = np.concatenate([self._text[self._length - 1 : self._length], tree.tokens])
        before = tokens[tree.parents + 1]
        first = self._text[self._length - 2] if self._length > 1 else -1
        return np.stack([np.concatenate([[first], before]), tokens], axis=1).astype(np.int32)

    def close(self) -> None:
        """Nothing to do: what was learned is in the tables."""
