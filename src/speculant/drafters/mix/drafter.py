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

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speculant.core.drafter import MEMORY_LIMIT, Needs, Session, Verified
from speculant.core.errors import CorruptMemoryError, ForeignMemoryError, UnsupportedError
from speculant.core.tree import DraftTree, Float32, Int32
from speculant.drafters.mix.cells import CHECK_BITS, MAX_TOKENS, PLACES, UNIT, USED, Cells, grown, new_cells, room
from speculant.drafters.mix.features import LONGEST_ROW
from speculant.drafters.mix.kernels import (
    NARROW_ROW,
    Array,
    Arrays,
    Tables,
    learn_echoes,
    learn_text,
    most_probable,
    new_request,
)
from speculant.drafters.mix.mixer import Mixer, frequency_bands, new_mixer
from speculant.memory.file import read_memory, write_memory

KIND = "mix"
WIDE_SHARE = 4  # wide rows get a quarter of the limit at the most
_NARROW_BITS, _WIDE_BITS = 13, 9


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
            memory_limit: bytes the tables may take, also while one doubles and the old one stands beside the new; so
                they end between three eighths of it and all. The mixture comes on top: 9 bytes per token id and 60 KB.
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
        self._take(
            Tables(
                new_cells(NARROW_ROW, memory_limit - memory_limit // WIDE_SHARE, first_bits=_NARROW_BITS),
                new_cells(LONGEST_ROW, memory_limit // WIDE_SHARE, first_bits=_WIDE_BITS),
                new_mixer(vocabulary),
            )
        )
        _warm_up()

    def _take(self, tables: Tables) -> None:
        """Work with these tables from now on."""
        self._tables, self._flat = tables, tables.flat()
        # A table that doubles stands beside the one that it is made from and beside the other, which may have been
        # loaded with more than its share.
        beside = self.limit - tables.narrow.entries.nbytes - tables.wide.entries.nbytes
        self._shares = min(self.limit - self.limit // WIDE_SHARE, beside), min(self.limit // WIDE_SHARE, beside)
        self._rooms = room(tables.narrow, self._shares[0]), room(tables.wide, self._shares[1])

    def _grow(self) -> None:
        # No name is given to a table here: it would keep the old one while the other doubles.
        self._take(self._tables._replace(narrow=grown(self._tables.narrow, self._shares[0])))
        self._take(self._tables._replace(wide=grown(self._tables.wide, self._shares[1])))

    @property
    def needs(self) -> Needs:
        """The target's best tokens, if the settings learn from them."""
        return Needs(top_k=self.settings.top_k)

    @property
    def memory_bytes(self) -> int:
        """Bytes the memory takes now: the tables, which the limit bounds, and the mixture, of a fixed size."""
        return sum(array.nbytes for array in self._flat)

    def open(self, prompt: Int32, *, target: Any = None, seed: int = 0) -> Session:
        """Begin a request; the whole prompt is learned at once."""
        return MixSession(self, prompt)

    def learn(self, text: Int32, start: int, stop: int, request: Arrays, *, weigh: bool) -> None:
        """Learn text[start:stop], Int32[T]; with `weigh` also what the evidence for it was worth.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        memory = round(self.settings.row_memory * UNIT)
        with self._lock:
            while start < stop:
                start = learn_text(self._flat, request, text, start, stop, weigh, memory, *self._rooms)
                if start < 0:
                    raise ValueError(f"token ids must be from 0 to {self.vocabulary - 1}")
                if start < stop:
                    self._grow()

    def learn_echoes(self, windows: Int32, ids: Int32, logits: Float32) -> None:
        """Keep the target's best tokens, ids and logits [R, k], after windows Int32[R, 2] (-1: no token there)."""
        shares = np.exp(logits - logits[:, :1])
        shares *= self.settings.strength * UNIT / shares.sum(axis=1, keepdims=True)
        gains = np.where(ids < self.vocabulary, np.rint(shares), 0).astype(np.int64)  # a padded head may say more
        with self._lock:
            learn_echoes(self._flat, windows, ids, gains, round(self.settings.echo_memory * UNIT))

    def search(self, text: Int32, length: int, request: Arrays, max_nodes: int) -> DraftTree:
        """Return the `max_nodes` most probable continuations of text[:length]."""
        with self._lock:
            tokens, parents, joints = most_probable(self._flat, request, text, length, max_nodes, self.settings.cut)
        return DraftTree(tokens, parents, joints)

    def save(self, path: Path) -> None:
        """Write everything learned.

        Raises:
            FileError: the file cannot be written; an older one is unchanged.
        """
        with self._lock:
            arrays = {
                f"{part}.{name}": array.copy()
                for part, table in self._tables._asdict().items()
                for name, array in table._asdict().items()
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
        expected = {f"mixer.{name}": array.shape for name, array in self._tables.mixer._asdict().items()}
        if {name: array.shape for name, array in arrays.items() if name.startswith("mixer.")} != expected:
            raise ForeignMemoryError(
                f"{path} was written by a version of `mix` that looks at other contexts. "
                "Use the version of Speculant that wrote it, or begin a new file."
            )
        own = {name: np.array(array) for name, array in arrays.items()}
        if not _sound(own, self._tables, self.vocabulary):
            raise CorruptMemoryError(f"{path} is whole, but holds what no memory of `mix` can. Begin a new file.")
        narrow, wide = (Cells(*(own[f"{part}.{name}"] for name in Cells._fields)) for part in ("narrow", "wide"))
        with self._lock:
            self._take(Tables(narrow, wide, Mixer(*(own[f"mixer.{name}"] for name in Mixer._fields))))


def _sound(arrays: dict[str, Array], own: Tables, vocabulary: int) -> bool:
    """Say whether the kernels, which check nothing, may run on a file's arrays; a file may be made with intent."""
    for part, cells in (("narrow", own.narrow), ("wide", own.wide)):
        entries, facts = arrays[f"{part}.entries"], arrays[f"{part}.facts"]
        if entries.dtype != cells.entries.dtype or facts.dtype != cells.facts.dtype or facts.shape != (3,):
            return False
        _, bits, first = facts.tolist()
        shaped = 0 <= first <= bits < first + CHECK_BITS <= 64 and entries.shape == (
            1 << bits,
            *cells.entries.shape[1:],
        )
        if not shaped or (entries & np.uint32(MAX_TOKENS - 1)).max() >= vocabulary:
            return False
    mixer = Mixer(*(arrays[f"mixer.{name}"] for name in Mixer._fields))
    typed = all(array.dtype == ours.dtype for array, ours in zip(mixer, own.mixer, strict=True))
    finite = typed and all(np.isfinite(array).all() for array in (mixer.weights, mixer.evidence, mixer.steps))
    tokens = mixer.cache[0]
    return bool(
        finite
        and mixer.evidence[2].min() >= 0
        and 0 <= tokens.min() <= tokens.max() < vocabulary
        and np.array_equal(mixer.bands, frequency_bands(mixer.frequency[:-1]))
        and np.array_equal(mixer.tables, own.mixer.tables)
    )


def _warm_up() -> None:
    """Load the compiled kernels, so that the first request does not wait for them."""
    empty = Tables(new_cells(NARROW_ROW, 0, first_bits=0), new_cells(LONGEST_ROW, 0, first_bits=0), new_mixer(1)).flat()
    request = new_request(1, 0)
    text = np.zeros(2, np.int32)
    learn_text(empty, request, text, 0, 2, True, UNIT, 0, 0)
    learn_echoes(empty, text[None], text[None], np.zeros((1, 2), np.int64), UNIT)
    most_probable(empty, request, text, 2, 1, 1.0)
    crowded = new_cells(NARROW_ROW, 0, first_bits=0)
    crowded.facts[USED] = PLACES
    grown(crowded, 2 * crowded.entries.nbytes)


class MixSession:
    """One request: its text, and where it last used each token."""

    def __init__(self, drafter: MixDrafter, prompt: Int32) -> None:
        self._drafter = drafter
        self._length = len(prompt)
        self._text = np.zeros(len(prompt) + 1024, np.int32)
        self._text[: len(prompt)] = prompt
        self._request = new_request(drafter.vocabulary, len(prompt))
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
