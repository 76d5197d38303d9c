"""ADED: a tri-gram table that adapts to the target during decoding, searched for the most probable tree.

Liu, Lei, Zhang, Xu: "Adaptive Draft-Verification for Efficient Large Language Model Decoding", AAAI 2025,
arXiv 2407.12021 (also called Adaptix there). The method as published is in paper.py; this is an improved version. It
learns every token of the prompt once, and the target's top tokens at every verified node, including rejected ones (as
in Token Recycling, Luo et al. 2024, arXiv 2408.08696). Rows are decayed counts, so they remain probabilities, and
unseen contexts back off to bi-grams. The search is best-first, uses its whole budget, has no depth limit of its own and
draws no random numbers.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Budget, Drafter, Persistent, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree, Float32, Int32
from speculant.drafters.aded.frozen import (
    CHECKPOINT_BYTES,
    Frozen,
    count_frozen_bytes,
    decode_table,
    empty_frozen,
    freeze,
    heaviest_rows,
    thaw,
)
from speculant.drafters.aded.rows import MAX_VOCABULARY, NONE, UNIT, export, new_level
from speculant.drafters.aded.search import best_first
from speculant.drafters.aded.table import LearningRule, TrigramTable
from speculant.memory.file import read_memory, write_memory

KIND = "trigram"
_PIECE = 256  # tokens learned at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class AdedSettings:
    """Settings of ADED; the defaults were chosen on half of the development requests.

    Attributes:
        row_memory: number of observations a row holds before older ones decay.
        prior: maximum number of observations that a row of a corpus table counts as.
        longest_row: maximum number of successors kept per context.
        escape: weight that a row reserves for unseen successors, in observations per successor.
        exploration: weight of the exploration bonus in the search.
        cut: nodes near the end of the ranking are not expanded if a child would need a conditional probability above
            this to enter the tree; halves the search time at no measurable loss.
        top_k: number of the target's top tokens learned at every row of a pass, including rejected nodes; 0 for none.
        strength: number of observations that the target's distribution at a row counts as.
    """

    row_memory: float = 8
    prior: float = 16
    longest_row: int = 16
    escape: float = 0.7
    exploration: float = 1.0
    cut: float = 0.2
    top_k: int = 8
    strength: float = 4.0

    def rule(self) -> LearningRule:
        """Return the table's learning rule."""
        return LearningRule(
            gain=UNIT,
            ceiling=8191,
            memory=round(self.row_memory * UNIT),
            prior=round(self.prior * UNIT),
            longest=self.longest_row,
            bigrams=True,
        )


class TableDrafter(Drafter):
    """Base class of both versions of the method: a table shared by all requests of a process, guarded by one lock."""

    def __init__(self, *, rule: LearningRule, vocabulary: int, tokenizer: str, memory_limit: int) -> None:
        """Start with an empty table.

        Args:
            rule: learning rule of its rows.
            vocabulary: V, the number of token ids.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: maximum bytes for the table, including a loaded file.

        Raises:
            UnsupportedError: the vocabulary has more ids than the table can hold.
        """
        if vocabulary > MAX_VOCABULARY:
            raise UnsupportedError(f"the tri-gram table holds token ids below {MAX_VOCABULARY}, not {vocabulary}.")
        self.vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._table = TrigramTable(rule=rule, limit=memory_limit, base=empty_frozen())
        self._warm_up()

    def _warm_up(self) -> None:
        """Load the compiled kernels, so that the first request does not wait for them."""
        scratch = TrigramTable(rule=self._table.rule, limit=0, base=empty_frozen())
        scratch.make_room()
        scratch.learn(np.zeros(3, np.int32))
        none, one = np.zeros(0, np.int32), np.zeros((1, 1), np.int32)
        scratch.learn_round(np.zeros(3, np.int32), none, none, one, np.ones((1, 1), np.float32), 1.0)
        best_first(scratch.young, scratch.old, scratch.base, 0, 0, 1, 1, scratch.rule, 0.5, 0.0, 1.0)

    @property
    def memory_bytes(self) -> int:
        """Current size of the memory in bytes."""
        return self._table.nbytes

    def load(self, path: Path) -> None:
        """Map a saved or built table as the base, replacing everything learned so far.

        Raises:
            FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
            UnsupportedError: it exceeds the memory limit.
        """
        base = load_table(path, tokenizer=self._tokenizer)
        rule, limit = self._table.rule, self._table.limit
        if base.nbytes > limit:
            raise UnsupportedError(
                f"{path} takes {base.nbytes >> 20} MB, but the memory limit is {limit >> 20} MB. Raise the limit."
            )
        with self._lock:
            self._table = TrigramTable(rule=rule, limit=limit, base=base)


class AdedDrafter(TableDrafter, Persistent):
    """ADED with our improvements."""

    def __init__(
        self,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: AdedSettings | None = None,
    ) -> None:
        """Start with an empty table, like `TableDrafter`; `settings` None for the defaults."""
        self.settings = settings or AdedSettings()
        super().__init__(
            rule=self.settings.rule(), vocabulary=vocabulary, tokenizer=tokenizer, memory_limit=memory_limit
        )

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs this drafter learns from: the top tokens, if the settings ask for them."""
        return RequestedOutputs(top_k=self.settings.top_k)

    def open(self, start: SessionRequest) -> Session:
        """Start a request; the whole prompt is learned at once."""
        return AdedSession(self, start.prompt)

    def learn(self, text: Int32, start: int = 0) -> None:
        """Learn text[start:], Int32[T], one piece at a time, so that other requests can draft in between."""
        for at in range(start, len(text), _PIECE):
            with self._lock:
                self._table.learn(text[: at + _PIECE], at)

    def learn_round(self, text: Int32, tree: DraftTree, ids: Int32, logits: Float32) -> None:
        """Learn a round: T committed tokens, Int32[2 + T] after two others, and the target's top tokens [N + 1, k]."""
        with self._lock:
            self._table.learn_round(text, tree.tokens, tree.parents, ids, logits, self.settings.strength)

    def search(self, before: int, root: int, budget: Budget) -> DraftTree:
        """Return the best tree below `root`, which follows the token `before` (NONE if there is none)."""
        settings = self.settings
        with self._lock:
            table = self._table
            tokens, parents, joints = best_first(
                table.young, table.old, table.base, before, root, budget.nodes, budget.depth, table.rule,
                settings.escape, settings.exploration, settings.cut,
            )  # fmt: skip
        return DraftTree.trusted(tokens, parents, joints).within(depth=budget.depth, trees=budget.trees)

    def save(self, path: Path) -> None:
        """Write everything learned, merged with the base table, as a new base table.

        Raises:
            FileError: the file cannot be written; an existing file is left unchanged.
        """
        with self._lock:
            frozen = self._frozen()
        save_table(path, frozen, tokenizer=self._tokenizer, vocabulary=self.vocabulary)

    def _frozen(self) -> Frozen:
        """Merge the three levels; if the result exceeds the limit, the base's lightest rows are dropped."""
        table = self._table
        young = export(table.young, new_level(1, 0))
        old = export(table.old, table.young)
        a, b, c, weight = (np.concatenate(pair) for pair in zip(young, old, strict=True))
        a = np.where(a == NONE, self.vocabulary, a).astype(np.int64)
        base_a, base_b, base_c, base_weight = thaw(table.base)
        # The base may come from a model with the same tokenizer but a differently padded vocabulary.
        base_a = np.where(base_a == len(table.base.first) - 2, self.vocabulary, base_a)
        learned = np.unique(a << 24 | b)
        kept = ~np.isin(base_a << 24 | base_b, learned)
        room = table.limit - count_frozen_bytes(len(a), len(learned), self.vocabulary) - CHECKPOINT_BYTES
        kept &= heaviest_rows(table.base, kept, room)
        return freeze(
            np.concatenate([a, base_a[kept]]),
            np.concatenate([b, base_b[kept]]),
            np.concatenate([c, base_c[kept]]),
            np.concatenate([weight, base_weight[kept]]),
            vocabulary=self.vocabulary,
        )


class AdedSession(Session):
    """Session of one request; its only state is the last two tokens."""

    def __init__(self, drafter: AdedDrafter, prompt: Int32) -> None:
        self._drafter = drafter
        drafter.learn(prompt)
        self._tail = prompt[-2:]

    def propose(self, budget: Budget) -> DraftTree:
        """Return the most probable continuations."""
        if min(budget.nodes, budget.depth) < 1 or not len(self._tail):
            return DraftTree.empty()
        before = int(self._tail[-2]) if len(self._tail) > 1 else NONE
        return self._drafter.search(before, int(self._tail[-1]), budget)

    def observe(self, verified: Verified) -> None:
        """Learn the committed tokens, and the target's top tokens at every row."""
        text = np.concatenate([self._tail, verified.tokens])
        if verified.top_ids is not None and verified.top_logits is not None and len(self._tail) > 1:
            self._drafter.learn_round(text, verified.tree, verified.top_ids, verified.top_logits)
        else:
            self._drafter.learn(text, len(self._tail))
        self._tail = text[-2:]

    def close(self) -> None:
        """Do nothing: what was learned is in the table."""


def save_table(path: Path, table: Frozen, *, tokenizer: str, vocabulary: int) -> None:
    """Write a frozen table as a memory file, which `TableDrafter.load` can map."""
    write_memory(path, kind=KIND, tokenizer=tokenizer, arrays=table.list_arrays(), facts={"vocabulary": vocabulary})


def load_table(path: Path, *, tokenizer: str) -> Frozen:
    """Map a frozen table.

    Raises:
        FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
    """
    arrays, _ = read_memory(path, kind=KIND, tokenizer=tokenizer)
    decode = decode_table()
    decode.flags.writeable = False
    return Frozen(**arrays, decode=decode)
