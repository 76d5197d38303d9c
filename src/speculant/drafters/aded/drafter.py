"""ADED: a tri-gram table that adapts to the target while it decodes, searched for the most probable tree.

Liu, Lei, Zhang, Xu: "Adaptive Draft-Verification for Efficient Large Language Model Decoding", AAAI 2025,
arXiv 2407.12021 (there also called Adaptix). Two settings of one code:

    aded-paper  as published: what the released code does, constant by constant
    aded        improved: the whole prompt is learned, every token once; so are the target's top tokens at every
                verified node, rejected ones too (as in Token Recycling, Luo et al. 2024, arXiv 2408.08696); rows are
                counts with decay, so they stay probabilities; unseen contexts back off to bi-grams; the search is
                best-first, uses its whole budget, has no depth limit of its own and draws no random numbers
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Budget, Drafter, Persistent, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree, Float32, Int32
from speculant.drafters.aded import puct
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
from speculant.drafters.aded.rows import LONGEST_ROW, MAX_VOCABULARY, NONE, UNIT, export, new_level
from speculant.drafters.aded.search import best_first
from speculant.drafters.aded.table import LearningRule, TrigramTable, lookup
from speculant.memory.file import read_memory, write_memory

KIND = "trigram"
PAPER_RULE = LearningRule(
    gain=round(0.04 * puct.SCALE),
    ceiling=3 * puct.SCALE,
    memory=0,
    prior=puct.SCALE,
    longest=LONGEST_ROW,
    bigrams=False,
    normalised=True,
    base_longest=12,  # of each row of the corpus the most probable successors, with their probabilities as they were
)
PAPER_WINDOW = 16
_PIECE = 256  # tokens learned at a time
PAPER_FALLBACK = 100  # the published code drafts this token id where the table has no entry


@dataclass(frozen=True, slots=True, kw_only=True)
class AdedSettings:
    """Settings; the defaults were chosen on half of the development requests.

    Attributes:
        row_memory: observations a row holds before older ones decay.
        prior: the most observations that a row of a corpus table counts as.
        longest_row: successors kept per context.
        escape: weight that a row reserves for unseen successors, in observations per successor.
        exploration: weight of the exploration bonus in the search.
        cut: nodes near the end of the ranking whose children would need a conditional probability above this to enter
            the tree are not expanded; it halves the search time at no measurable loss.
        top_k: the target's top tokens learned at every row of a pass, rejected nodes too; 0 for none.
        strength: observations that the target's distribution at a row counts as.
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
    """The table, shared by all requests of a process behind one lock; what both settings have in common."""

    def __init__(
        self,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: AdedSettings | None = None,
    ) -> None:
        """Start with an empty table.

        Args:
            vocabulary: V, the number of token ids.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: bytes the table may take, a loaded file included.
            settings: None for the defaults.

        Raises:
            UnsupportedError: the vocabulary has more ids than the table can hold.
        """
        if vocabulary > MAX_VOCABULARY:
            raise UnsupportedError(f"the tri-gram table holds token ids below {MAX_VOCABULARY}, not {vocabulary}.")
        self.settings = settings or AdedSettings()
        self.vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._table = TrigramTable(rule=self._rule(), limit=memory_limit, base=empty_frozen())
        self._warm_up()

    def _warm_up(self) -> None:
        """Load the compiled kernels now, so that the first request does not wait for them."""
        scratch = TrigramTable(rule=self._rule(), limit=0, base=empty_frozen())
        scratch.make_room()
        scratch.learn(np.zeros(3, np.int32))
        scratch.learn_rows(np.zeros((1, 2), np.int32), np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32))
        best_first(scratch.young, scratch.old, scratch.base, 0, 0, 1, 1, scratch.rule, 0.5, 0.0, 1.0)

    def _rule(self) -> LearningRule:
        return self.settings.rule()

    @property
    def memory_bytes(self) -> int:
        """Bytes the memory takes now."""
        return self._table.nbytes

    def load(self, path: Path) -> None:
        """Map a saved or built table as the base and drop what was learned so far.

        Raises:
            FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
            UnsupportedError: it is larger than the memory limit.
        """
        base = load_table(path, tokenizer=self._tokenizer)
        limit = self._table.limit
        if base.nbytes > limit:
            raise UnsupportedError(
                f"{path} takes {base.nbytes >> 20} MB, the memory limit is {limit >> 20} MB. Raise the limit."
            )
        with self._lock:
            self._table = TrigramTable(rule=self._rule(), limit=limit, base=base)


class AdedDrafter(TableDrafter, Persistent):
    """The improved setting."""

    @property
    def needs(self) -> RequestedOutputs:
        """The target's top tokens, if the settings learn from them."""
        return RequestedOutputs(top_k=self.settings.top_k)

    def open(self, start: SessionRequest) -> Session:
        """Begin a request; the whole prompt is learned at once."""
        return AdedSession(self, start.prompt)

    def learn(self, text: Int32, start: int = 0) -> None:
        """Learn text[start:], Int32[T], a piece at a time, so that other requests can draft meanwhile."""
        for at in range(start, len(text), _PIECE):
            with self._lock:
                self._table.learn(text[: at + _PIECE], at)

    def learn_rows(self, contexts: Int32, ids: Int32, logits: Float32) -> None:
        """Learn the target's distribution after contexts Int32[R, 2] from its top tokens, [R, k] each."""
        shares = np.exp(logits - logits[:, :1])
        shares *= self.settings.strength / shares.sum(axis=1, keepdims=True)
        with self._lock:
            self._table.learn_rows(contexts, ids, shares)

    def search(self, before: int, root: int, budget: Budget) -> DraftTree:
        """Return the best tree below `root`, whose predecessor is `before` (NONE: there is none)."""
        settings = self.settings
        with self._lock:
            table = self._table
            tokens, parents, joints = best_first(
                table.young, table.old, table.base, before, root, budget.nodes, budget.depth, table.rule,
                settings.escape, settings.exploration, settings.cut,
            )  # fmt: skip
        return DraftTree.trusted(tokens, parents, joints).within(depth=budget.depth, trees=budget.trees)

    def save(self, path: Path) -> None:
        """Write everything learned, merged with the base table, as one new base table.

        Raises:
            FileError: the file cannot be written; an older one is unchanged.
        """
        with self._lock:
            frozen = self._frozen()
        save_table(path, frozen, tokenizer=self._tokenizer, vocabulary=self.vocabulary)

    def _frozen(self) -> Frozen:
        """Merge the three levels; where the result exceeds the limit, the base's lightest rows are dropped."""
        table = self._table
        young = export(table.young, new_level(1, 0))
        old = export(table.old, table.young)
        a, b, c, weight = (np.concatenate(pair) for pair in zip(young, old, strict=True))
        a = np.where(a == NONE, self.vocabulary, a).astype(np.int64)
        base_a, base_b, base_c, base_weight = thaw(table.base)
        # The base may come from a model with the same tokenizer and a differently padded vocabulary.
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
    """One request; its only state is the last two tokens."""

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
        if verified.top_ids is not None and verified.top_logits is not None and len(self._tail) > 1:
            tokens = np.append(verified.tree.tokens, self._tail)  # index -1 is the root, -2 the token before it
            parents = np.append(verified.tree.parents, [-2, -2]).astype(np.int32)
            rows = np.append(-1, np.arange(len(verified.tree)))
            contexts = np.stack([tokens[parents[rows]], tokens[rows]], axis=1)
            self._drafter.learn_rows(contexts, verified.top_ids, verified.top_logits)
        text = np.concatenate([self._tail, verified.tokens])
        self._drafter.learn(text, len(self._tail))
        self._tail = text[-2:]

    def close(self) -> None:
        """Do nothing: what was learned is in the table."""


class AdedPaperDrafter(TableDrafter):
    """The published setting: PUCT search, and +0.04 per drafting step for the last 14 tri-grams; saves nothing."""

    def _warm_up(self) -> None:
        super()._warm_up()
        levels = self._table.young, self._table.old, self._table.base
        puct.puct(*levels, 0, 0, self._table.rule, np.ones(1, np.uint64))

    def _rule(self) -> LearningRule:
        return PAPER_RULE

    @property
    def needs(self) -> RequestedOutputs:
        """Nothing: only accepted tokens are learned."""
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        """Begin a request; of the prompt only the last 16 tokens are learned."""
        return AdedPaperSession(self, start)

    def step(self, window: Int32, random: npt.NDArray[np.uint64]) -> DraftTree:
        """Learn the window, search from its end, and return the published draft of up to 64 nodes."""
        with self._lock:
            table = self._table
            table.learn(window)
            levels = table.young, table.old, table.base
            row, weights = np.empty(LONGEST_ROW, np.int64), np.empty(LONGEST_ROW, np.int64)

            def greedy(a: int, b: int) -> int | None:
                length = lookup(*levels, a, b, table.rule, row, weights)
                return int(row[:length][np.argmax(weights[:length])]) if length else None

            tokens, parents, visits = puct.puct(*levels, int(window[-2]), int(window[-1]), table.rule, random)
            paths = puct.select_published_paths(tokens, parents, visits, greedy)
        return DraftTree.from_paths(paths or [[PAPER_FALLBACK % self.vocabulary]])


class AdedPaperSession(Session):
    """One request of the published setting."""

    def __init__(self, drafter: AdedPaperDrafter, start: SessionRequest) -> None:
        self._drafter = drafter
        self._tail = start.prompt[-PAPER_WINDOW:]
        self._random = start.seed.generate_state(1, np.uint64) | np.uint64(1)  # xorshift needs a state other than 0
        self._draft: DraftTree | None = None

    def propose(self, budget: Budget) -> DraftTree:
        """Return the published draft, or its part within the budget.

        The published method learns and draws random numbers when it drafts; so it drafts once a round.
        """
        if min(budget.nodes, budget.depth) < 1 or len(self._tail) < 2:
            return DraftTree.empty()
        if self._draft is None:
            self._draft = self._drafter.step(self._tail, self._random)
        return self._draft.head(budget.nodes).within(depth=budget.depth, trees=budget.trees)

    def observe(self, verified: Verified) -> None:
        """Keep the committed tokens; they are learned with the next draft."""
        self._tail = np.concatenate([self._tail, verified.tokens])[-PAPER_WINDOW:]
        self._draft = None

    def close(self) -> None:
        """Do nothing: what was learned is in the table."""


def save_table(path: Path, table: Frozen, *, tokenizer: str, vocabulary: int) -> None:
    """Write a frozen table as a memory file that `TableDrafter.load` maps."""
    write_memory(path, kind=KIND, tokenizer=tokenizer, arrays=table.stored(), facts={"vocabulary": vocabulary})


def load_table(path: Path, *, tokenizer: str) -> Frozen:
    """Map a frozen table.

    Raises:
        FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
    """
    arrays, _ = read_memory(path, kind=KIND, tokenizer=tokenizer)
    decode = decode_table()
    decode.flags.writeable = False
    return Frozen(**arrays, decode=decode)
