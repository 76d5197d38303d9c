"""Max-Gram: copy what followed the longest earlier match; if there is none, use a bi-gram model.

Chen, Yang, Lin, Sun, Chang, Huang: "Cascade Speculative Drafting for Even Faster LLM Inference", NeurIPS 2024,
arXiv 2312.11462: the smallest drafter of its cascade. The draft is a chain of ten tokens, the published length.

The published bi-gram model is counted from Wikipedia. Ours is counted from the prompts and outputs of all requests: for
each token, the four successors that Space-Saving keeps (Metwally, Agrawal, El Abbadi, ICDT 2005), at a fixed cost of 32
bytes per token id. Only this model is saved.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Budget, Drafter, Persistent, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.tree import Array, DraftTree, Int32
from speculant.drafters.copying.context import (
    LONGEST_RATED,
    Context,
    agreement,
    copy_token,
    longest_match,
    new_rates,
    rate,
    rate_copy,
    warm_up,
)
from speculant.memory.file import read_memory, write_memory

KIND = "bigram"
KEPT = 4  # successors kept per token


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxGramSettings:
    """Settings of Max-Gram.

    Attributes:
        drafted: tokens per draft; ten as published.
        longest: maximum length of a match, in tokens; longer ones count as equally long.
    """

    drafted: int = 10
    longest: int = 64


class MaxGramDrafter(Drafter, Persistent):
    """Drafter whose bi-gram model is shared by all requests of a process, guarded by one lock."""

    def __init__(
        self,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: MaxGramSettings | None = None,
    ) -> None:
        """Start with an empty model.

        Args:
            vocabulary: V, the number of token ids.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: maximum bytes for the model; it takes 32 V.
            settings: None for the defaults.

        Raises:
            UnsupportedError: the model exceeds the limit.
        """
        self.settings = settings or MaxGramSettings()
        self.vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._successors, self._counts = new_bigrams(vocabulary)
        if self.memory_bytes > memory_limit:
            raise UnsupportedError(
                f"the bi-gram model of {vocabulary} token ids takes {self.memory_bytes} bytes, but the memory limit "
                f"is {memory_limit}. Raise the limit, or use the method lookup, which keeps no memory."
            )
        warm_up(self.open(SessionRequest(prompt=np.zeros(2, np.int32))))
        self._successors, self._counts = new_bigrams(vocabulary)

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs this drafter needs: none."""
        return NO_OUTPUTS

    @property
    def memory_bytes(self) -> int:
        """Current size of the memory in bytes."""
        return self._successors.nbytes + self._counts.nbytes

    def open(self, start: SessionRequest) -> Session:
        """Start a request; the whole prompt is learned at once."""
        return MaxGramSession(self, start.prompt)

    def learn(self, context: Context, start: int) -> None:
        """Count the pairs of a text whose second token is at position `start` or later."""
        with self._lock:
            count_bigrams(self._successors, self._counts, context.text, start, context.length)

    def draft(self, context: Context, nodes: int, rates: Array) -> tuple[DraftTree, int, int]:
        """Return the chain, the end of the match it begins with (-1: none), and how many tokens agree there."""
        with self._lock:
            tokens, parents, weights, match, agreed = draft_chain(
                context.text, context.previous, context.latest, context.length, self._successors, self._counts, nodes,
                self.settings.longest, rates,
            )  # fmt: skip
        return DraftTree.trusted(tokens, parents, weights), match, agreed

    def save(self, path: Path) -> None:
        """Write the bi-gram model.

        Raises:
            FileError: the file cannot be written; an existing file is left unchanged.
        """
        with self._lock:
            arrays = {"successors": self._successors.copy(), "counts": self._counts.copy()}
        write_memory(path, kind=KIND, tokenizer=self._tokenizer, arrays=arrays, facts={"vocabulary": self.vocabulary})

    def load(self, path: Path) -> None:
        """Replace the bi-gram model by a saved one.

        Raises:
            FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
        """
        arrays, _ = read_memory(path, kind=KIND, tokenizer=self._tokenizer)
        successors, counts = new_bigrams(self.vocabulary)
        # The same tokenizer may serve models whose vocabularies are padded differently.
        rows = min(self.vocabulary, len(arrays["counts"]))
        successors[:rows], counts[:rows] = arrays["successors"][:rows], arrays["counts"][:rows]
        counts[successors >= self.vocabulary] = 0
        with self._lock:
            self._successors, self._counts = successors, counts


class MaxGramSession(Session):
    """Session of one request: its text, and where the last draft was copied from."""

    def __init__(self, drafter: MaxGramDrafter, prompt: Int32) -> None:
        self._drafter = drafter
        self._context = Context(prompt, drafter.vocabulary)
        self._rates = new_rates()
        self._match = -1
        self._agreed = 0
        drafter.learn(self._context, 1)

    def propose(self, budget: Budget) -> DraftTree:
        """Copy what followed the longest match; if there is none, follow the bi-grams."""
        self._match = -1
        nodes = min(budget.nodes, budget.depth, self._drafter.settings.drafted)
        if nodes < 1 or not self._context.length:
            return DraftTree.empty()
        tree, self._match, self._agreed = self._drafter.draft(self._context, nodes, self._rates)
        return tree

    def propose_after(self, tokens: Sequence[int], budget: Budget) -> DraftTree:
        """Draft in the same way for the text followed by `tokens`."""
        nodes = min(budget.nodes, budget.depth, self._drafter.settings.drafted)
        if nodes < 1 or not self._context.length:
            return DraftTree.empty()
        with self._context.ahead(tokens):
            return self._drafter.draft(self._context, nodes, self._rates)[0]

    def observe(self, verified: Verified) -> None:
        """Count how far the copy was correct, and learn the committed tokens."""
        context = self._context
        if self._match >= 0:
            rate_copy(self._rates, context.text, context.length, self._match, self._agreed, verified.tokens)
            self._match = -1
        start = context.length
        context.append(verified.tokens)
        self._drafter.learn(context, max(start, 1))

    def close(self) -> None:
        """Do nothing: what was learned is in the model."""


def new_bigrams(vocabulary: int) -> tuple[Array, Array]:
    """Return successors and counts, Int32[V, 4] each, most frequent first; a count of 0 is a free entry."""
    return np.zeros((vocabulary, KEPT), np.int32), np.zeros((vocabulary, KEPT), np.int32)


@njit(cache=True, nogil=True)
def count_bigrams(successors: Array, counts: Array, text: Array, start: int, end: int) -> None:
    """Count the pairs whose second token is in text[start:end]; a new successor replaces the rarest one."""
    for i in range(start, end):
        before, token = text[i - 1], text[i]
        if not (0 <= before < len(counts) and 0 <= token < len(counts)):
            continue
        row, count = successors[before], counts[before]
        at = 0
        while at < KEPT - 1 and count[at] > 0 and row[at] != token:
            at += 1
        heavier = min(count[at] + 1, np.iinfo(np.int32).max)
        while at > 0 and count[at - 1] <= heavier:
            row[at], count[at] = row[at - 1], count[at - 1]
            at -= 1
        row[at], count[at] = token, heavier


@njit(cache=True, nogil=True)
def draft_chain(
    text: Array, previous: Array, latest: Array, length: int, successors: Array, counts: Array, nodes: int,
    longest: int, rates: Array,
) -> tuple[Array, Array, Array, int, int]:  # fmt: skip
    """Return the chain's tokens, parents and weights, the end of its first match (-1: none), and the agreement there.

    The draft is written after the text, so that after a bi-gram the next match can include drafted tokens.

    Args:
        text, previous, latest: arrays of a context.
        length: T, length of the text.
        successors, counts: Int32[V, 4] each, the bi-gram model.
        nodes: maximum number of nodes.
        longest: maximum length of a match, in tokens.
        rates: Float64[2, 17], see `new_rates`.
    """
    nodes = min(nodes, len(text) - length)
    weights = np.empty(nodes, np.float32)
    first, agreed_first = np.int64(-1), np.int64(0)
    weight, count = 1.0, 0
    while count < nodes:
        end = length + count - 1
        nearest = np.int64(previous[end] if count == 0 else latest[text[end] % len(latest)])
        match, _ = longest_match(text, previous, nearest, end, 1, longest, length)
        if match >= 0:
            agreed = agreement(text, match, end, LONGEST_RATED)
            if count == 0:
                first, agreed_first = match, agreed
            for depth in range(nodes - count):
                weight *= rate(rates, agreed + depth)
                text[end + 1 + depth] = copy_token(text, end + 1, match, depth)
                weights[count + depth] = weight
            count = nodes
            break
        before = text[end]
        if not 0 <= before < len(counts) or counts[before, 0] == 0:
            break
        weight *= counts[before, 0] / (counts[before].sum() + 1)
        text[end + 1], weights[count] = successors[before, 0], weight
        count += 1
    tokens = text[length : length + count].copy()
    return tokens, np.arange(-1, count - 1).astype(np.int32), weights[:count], first, agreed_first
