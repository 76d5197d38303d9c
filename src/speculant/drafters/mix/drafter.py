"""Mix: predictions from many contexts, combined by their measured reliability into calibrated probabilities.

Each of the established training-free drafters relies on one context: the last two tokens (ADED), the longest suffix
(SuffixDecoding, SAM), or the target's last top-k (Token Recycling). Data compression has long known that an online
mixture beats any single context. Here, short and long suffixes, a context with a gap, a skeleton of frequent tokens,
recency and the target's own top-k each propose candidates (contexts.py, features.py); bounded tables keep their rows
across all requests (cells.py); and a logistic mixture, trained on every committed token, turns them into probabilities
(mixer.py). Since these are calibrated, the best draft of N nodes consists of the N most probable paths (Sequoia, Chen
et al. 2024, arXiv 2402.12374; OPT-Tree, Wang et al. 2024, arXiv 2406.17276), found by best-first search.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import (
    Budget,
    Drafter,
    Inspectable,
    LearnedPhrase,
    Persistent,
    Session,
    SessionRequest,
    Verified,
)
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import CorruptMemoryError, ForeignMemoryError, UnsupportedError
from speculant.core.tree import ROOT, Array, DraftTree, Float32, Int32
from speculant.drafters.mix.arrays import LONGEST_ROW, Mixer
from speculant.drafters.mix.base import MixBase, in_use, scorer_in_use
from speculant.drafters.mix.cells import MAX_TOKENS, PLACES, UNIT, USED, grow_cells, new_cells, room
from speculant.drafters.mix.chain import most_probable_chain
from speculant.drafters.mix.fitting import Inputs, find_training, fit_mixture
from speculant.drafters.mix.initial import new_mixer
from speculant.drafters.mix.inspection import seen_share, top_phrases
from speculant.drafters.mix.kernels import (
    NARROW_ROW,
    Arrays,
    Tables,
    follow,
    learn_text,
    learn_top_k,
    most_probable,
    new_request,
)
from speculant.drafters.mix.scores import no_scorer
from speculant.drafters.mix.stored import complete_arrays, is_valid, make_stored_name, restore_memory, store_tables
from speculant.memory.file import read_memory, write_memory

KIND = "mix"
WIDE_SHARE = 4  # wide rows get at most one quarter of the limit
_PIECE = 256  # tokens learned at a time
_TRAINED = 8  # tokens of a pause that train the mixture
_NARROW_BITS, _WIDE_BITS = 13, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class MixSettings:
    """Settings of `mix`; the defaults were chosen on half of the development requests.

    Attributes:
        row_memory: number of observations a row holds before older ones decay, up to 14.
        top_k: number of the target's top tokens learned at every row of a pass, including rejected nodes; 0 for none.
        strength: number of observations that the target's distribution at a row counts as.
        top_k_memory: number of observations that a row of target top-k tokens holds, up to 15.
        cut: nodes near the end of the ranking are not expanded if a child would need a conditional probability above
            this to enter the tree; 1 expands all.
    """

    row_memory: float = 8
    top_k: int = 8
    strength: float = 4
    top_k_memory: float = 14
    cut: float = 0.2


class MixDrafter(Drafter, Persistent, Inspectable):
    """Drafter whose tables and mixture are shared by all requests of a process, guarded by one lock."""

    def __init__(
        self,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: MixSettings | None = None,
        bases: Sequence[MixBase] = (),
    ) -> None:
        """Start with empty tables.

        Args:
            vocabulary: V, the number of token ids.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: maximum bytes for the tables, including the copy that exists while a table doubles; their
                final size is therefore between three eighths of the limit and all of it. The mixture is extra: 9 bytes
                per token id and 125 KB.
            settings: None for the defaults.
            bases: prior knowledge, read-only and not counted against the limit; each must match this vocabulary.

        Raises:
            UnsupportedError: the vocabulary has more ids than the tables can hold, or there are too many bases.
        """
        if vocabulary > MAX_TOKENS:
            raise UnsupportedError(f"the tables of `mix` hold token ids below {MAX_TOKENS}, not {vocabulary}.")
        self.settings = settings or MixSettings()
        self._needs = RequestedOutputs(top_k=self.settings.top_k)
        self.vocabulary = vocabulary
        self.limit = memory_limit
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self.bases = tuple(bases)
        scorer = scorer_in_use(bases)
        self._take(
            Tables(
                new_cells(NARROW_ROW, memory_limit - memory_limit // WIDE_SHARE, first_bits=_NARROW_BITS),
                new_cells(LONGEST_ROW, memory_limit // WIDE_SHARE, first_bits=_WIDE_BITS),
                new_mixer(vocabulary, len(bases), scored=len(scorer.rows) > 0),
                in_use(bases),
                scorer,
            )
        )
        _warm_up()

    def _take(self, tables: Tables) -> None:
        """Replace the tables in use."""
        self._tables, self._flat = tables, tables.flat()
        # While a table doubles, its copy takes memory in addition to both tables, one of which may have been loaded
        # with more than its share.
        free = self.limit - tables.narrow.entries.nbytes - tables.wide.entries.nbytes
        self._shares = min(self.limit - self.limit // WIDE_SHARE, free), min(self.limit // WIDE_SHARE, free)
        self._rooms = room(tables.narrow, self._shares[0]), room(tables.wide, self._shares[1])

    def _grow(self) -> None:
        # No local variable may refer to a table here: it would keep the old one alive while the other doubles.
        self._take(self._tables._replace(narrow=grow_cells(self._tables.narrow, self._shares[0])))
        self._take(self._tables._replace(wide=grow_cells(self._tables.wide, self._shares[1])))

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs this drafter learns from: the top tokens, if the settings ask for them."""
        return self._needs

    @property
    def memory_bytes(self) -> int:
        """Current size in bytes: the tables, which the limit bounds, plus the mixture, whose size is fixed."""
        return sum(array.nbytes for part in self._tables[:3] for array in part)

    def open(self, start: SessionRequest) -> Session:
        """Start a request; the whole prompt is learned at once."""
        return MixSession(self, start.prompt)

    def learn(self, text: Int32, start: int, stop: int, request: Arrays, *, trained: int) -> None:
        """Learn part of text, Int32[T], from `start` to `stop`; up to `trained` it also trains the mixture.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        memory = round(self.settings.row_memory * UNIT)
        while start < stop:
            end = min(start + _PIECE, stop)
            with self._lock:  # one piece at a time, so that other requests can draft in between
                while start < end:
                    start = learn_text(self._flat, request, text, start, end, trained, memory, *self._rooms)
                    if start < 0:
                        raise ValueError(f"token ids must be from 0 to {self.vocabulary - 1}")
                    if start < end:
                        self._grow()

    def learn_top_k(self, text: Int32, length: int, tree: DraftTree, ids: Int32, logits: Float32) -> None:
        """Learn the target's top tokens, ids and logits [N + 1, k], after text[:length] and after each node."""
        strength, memory = float(self.settings.strength * UNIT), round(self.settings.top_k_memory * UNIT)
        with self._lock:
            learn_top_k(self._flat, text, length, tree.tokens, tree.parents, ids, logits, strength, memory)

    def search(self, text: Int32, length: int, request: Arrays, budget: Budget) -> DraftTree:
        """Return the most probable continuations of text[:length] within the budget."""
        with self._lock:
            if budget.trees:
                tokens, parents, joints = most_probable(
                    self._flat, request, text, length, budget.nodes, budget.depth, self.settings.cut
                )
            else:
                maximum = min(budget.nodes, budget.depth)
                tokens, joints = most_probable_chain(self._flat, request, text, length, maximum)
                parents = np.arange(ROOT, len(tokens) - 1, dtype=np.int32)
        return DraftTree.trusted(tokens, parents, joints).within(depth=budget.depth)

    def top_phrases(self, count: int, *, without: Container[int] = ()) -> list[LearnedPhrase]:
        """Return up to `count` phrases, most used first, that contain no token of `without`."""
        with self._lock:
            return top_phrases(self._tables, count, without)

    def seen_share(self, tokens: Int32, *, start: int) -> float:
        """Return the share of tokens[start:] that were seen earlier after the same two preceding tokens."""
        with self._lock:
            return seen_share(self._tables, tokens, start)

    def save(self, path: Path) -> None:
        """Write everything learned.

        Raises:
            FileError: the file cannot be written; an existing file is left unchanged.
        """
        with self._lock:
            arrays = {name: array.copy() for name, array in store_tables(self._tables).items()}
        write_memory(path, kind=KIND, tokenizer=self._tokenizer, arrays=arrays, facts={"vocabulary": self.vocabulary})

    def load(self, path: Path) -> None:
        """Load a saved memory, replacing everything learned so far.

        Raises:
            FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
            UnsupportedError: it exceeds the memory limit, or has another vocabulary.
        """
        arrays, facts = read_memory(path, kind=KIND, tokenizer=self._tokenizer)
        if facts["vocabulary"] != self.vocabulary:
            raise UnsupportedError(
                f"{path} was made for a vocabulary of {facts['vocabulary']} tokens, but this model's has "
                f"{self.vocabulary}. Use the model it was made with, or another memory file."
            )
        size = sum(array.nbytes for name, array in arrays.items() if not name.startswith("mixer."))
        if size > self.limit:
            raise UnsupportedError(
                f"{path} takes {size >> 20} MB, but the memory limit is {self.limit >> 20} MB. Raise the limit."
            )
        arrays = complete_arrays(arrays)
        tables = (
            restore_memory({name: np.array(array) for name, array in arrays.items()})
            if self._has_form(arrays)
            else None
        )
        if tables is None or not find_training(tables.mixer.weights, tables.mixer.states):
            raise ForeignMemoryError(
                f"{path} was written by a version of `mix` with other contexts. "
                "Use the version of Speculant that wrote it, or start a new file."
            )
        if not is_valid(tables, self._tables, self.vocabulary):
            raise CorruptMemoryError(
                f"the checksums of {path} match, but it holds values that `mix` never writes. Start a new file."
            )
        scorer = self._tables.scorer
        mixer = fit_mixture(tables.mixer, Inputs(len(self.bases), len(scorer.rows) > 0))
        with self._lock:
            self._take(tables._replace(mixer=mixer, bases=self._tables.bases, scorer=scorer))

    def _has_form(self, arrays: Mapping[str, Array]) -> bool:
        """Return whether a file has the arrays of a memory, with the right shapes where they do not depend on bases."""
        own = complete_arrays(store_tables(self._tables))
        fixed = [make_stored_name("mixer", field) for field in Mixer._fields[2:]]
        return arrays.keys() == own.keys() and all(arrays[name].shape == own[name].shape for name in fixed)


def _warm_up() -> None:
    """Load the compiled kernels, so that the first request does not wait for them."""
    empty, request, text = _smallest()
    learn_text(empty, request, text, 0, 2, 2, UNIT, 0, 0)
    learn_top_k(empty, text, 2, text[:0], text[:0], text[None], np.zeros((1, 2), np.float32), float(UNIT), UNIT)
    warm_up_searches()
    crowded = new_cells(NARROW_ROW, 0, first_bits=0)
    crowded.facts[USED] = PLACES
    grow_cells(crowded, 2 * crowded.entries.nbytes)


def warm_up_searches() -> None:
    """Load the compiled kernels that search for drafts."""
    empty, request, text = _smallest()
    most_probable(empty, request, text, 2, 1, 1, 1.0)
    most_probable_chain(empty, request, text, 2, 1)
    follow(request, text, 1, 2)


def _smallest() -> tuple[Arrays, Arrays, Int32]:
    """Return empty tables, a request and its text, the smallest that kernels take."""
    narrow, wide = new_cells(NARROW_ROW, 0, first_bits=0), new_cells(LONGEST_ROW, 0, first_bits=0)
    empty = Tables(narrow, wide, new_mixer(1), in_use(()), no_scorer()).flat()
    return empty, new_request(1, 2), np.zeros(2, np.int32)


class MixSession(Session):
    """Session of one request: its text, the last use of each token, and the current repetition."""

    def __init__(self, drafter: MixDrafter, prompt: Int32) -> None:
        self._drafter = drafter
        self._length = len(prompt)
        self._text = np.zeros(len(prompt) + 1024, np.int32)
        self._text[: len(prompt)] = prompt
        self._request = new_request(drafter.vocabulary, len(self._text))
        drafter.learn(self._text, 0, self._length, self._request, trained=0)

    def propose(self, budget: Budget) -> DraftTree:
        """Return the most probable continuations."""
        if min(budget.nodes, budget.depth) < 1 or not self._length:
            return DraftTree.empty()
        return self._drafter.search(self._text, self._length, self._request, budget)

    def propose_after(self, tokens: Sequence[int], budget: Budget) -> DraftTree:
        """Return the most probable continuations of the text followed by `tokens`; none if an id is unknown."""
        possible = all(0 <= token < self._drafter.vocabulary for token in tokens)
        if min(budget.nodes, budget.depth) < 1 or not self._length or not possible:
            return DraftTree.empty()
        length = self._length + len(tokens)
        self._reserve(length)
        self._text[self._length : length] = tokens
        last_use, links, heads, _, topic = self._request
        request = last_use, links, heads, follow(self._request, self._text, self._length, length), topic
        return self._drafter.search(self._text, length, request, budget)

    def observe(self, verified: Verified) -> None:
        """Learn the committed tokens, and the target's top tokens at every row."""
        before = self._length
        self._learn(verified.tokens, trained=len(verified.tokens))
        # Top tokens last: if a row already contained the target's choice, it would be trained as a correct prediction.
        if verified.top_ids is not None and verified.top_logits is not None and before > 0:
            self._drafter.learn_top_k(self._text, before, verified.tree, verified.top_ids, verified.top_logits)

    def follow(self, tokens: Int32) -> None:
        """Learn the tokens of a pause; the mixture, whose training takes most of the time, only from the first few."""
        self._learn(tokens, trained=min(len(tokens), _TRAINED))

    def _learn(self, tokens: Int32, *, trained: int) -> None:
        """Learn committed tokens, and train the mixture on the first `trained` of them."""
        start, end = self._length, self._length + len(tokens)
        self._reserve(end)
        self._text[start:end] = tokens
        self._drafter.learn(self._text, start, end, self._request, trained=start + trained)
        self._length = end

    def _reserve(self, length: int) -> None:
        if length > len(self._text):
            more = np.zeros(length, np.int32)
            self._text = np.concatenate([self._text, more])
            last_use, links, *others = self._request
            self._request = last_use, np.concatenate([links, more]), *others

    def close(self) -> None:
        """Do nothing: what was learned is in the tables."""
