"""A replacement for SGLang's n-gram corpus: the same methods, with drafts by any method that learns from text.

SGLang names its requests and shows the last tokens of their texts; whole texts are given when a request starts, or when
a retracted one comes back. All tensor-parallel ranks must draft the same trees, since drafts are never exchanged:
everything here depends only on tokens and on the order of calls.

The interface: sglang/srt/speculative/cpp_ngram/ngram_corpus.py, version 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from speculant.core.drafter import Drafter, SessionRequest
from speculant.core.errors import UnsupportedError
from speculant.core.tree import Int32
from speculant.integrations.drafting import RowDrafter
from speculant.integrations.fixed_width import Int64, pad_to_width
from speculant.integrations.growing_text import GrowingText
from speculant.integrations.load import tree_budget
from speculant.integrations.rows import EngineRow

_PATIENCE = 8  # steps; pipeline stages alternate between several batches
_UNBOUNDED = 1 << 40  # tokens per step: the width is fixed, and padding costs as much as drafts


@dataclass(slots=True)
class _Shown:
    """A request's text; `drafted` is set after the first draft for it."""

    text: GrowingText
    drafted: bool = False


class Corpus:
    """Drafts for the requests of a batch; owns a drafter whose memory is shared by all of them.

    Attributes:
        rows: makes the drafts.
    """

    def __init__(
        self, drafter: Drafter, *, vocabulary: int, width: int, tail: int, ends: frozenset[int] = frozenset()
    ) -> None:
        """Start without requests.

        Args:
            drafter: a drafter of chosen tokens that learns from text.
            vocabulary: V.
            width: tokens per request and step, including the root.
            tail: maximum tokens of a text that a call shows.
            ends: tokens that end a text.
        """
        self._drafter, self._vocabulary, self._width, self._tail = drafter, vocabulary, width, tail
        self._texts: dict[str, _Shown] = {}
        self._corpora: dict[str, int] = {}
        self.rows = RowDrafter(
            drafter,
            vocabulary=vocabulary,
            budget=tree_budget,
            max_per_step=_UNBOUNDED,
            ends=ends,
            patience=_PATIENCE,
        )

    def is_behind(self, request: str, length: int) -> bool:
        """Return whether a request's text is unknown, or too short to be completed from the tokens shown by a call."""
        shown = self._texts.get(request)
        return shown is None or not shown.text.length <= length <= shown.text.length + self._tail

    def begin(self, request: str, tokens: Int32) -> None:
        """Set a request's text, Int32[T], prompt and output."""
        self._texts[request] = _Shown(GrowingText(tokens))

    def batch_get(
        self, req_ids: Sequence[str], batch_tokens: Sequence[Sequence[int]], total_lens: Sequence[int]
    ) -> tuple[Int64, Int64]:
        """Learn what was committed since the last call and return the drafts of B requests; see `fixed_width`.

        Args:
            req_ids: names of the requests.
            batch_tokens: the last tokens of each text.
            total_lens: the length of each text.
        """
        rows = [self._row(*each) for each in zip(req_ids, batch_tokens, total_lens, strict=True)]
        return pad_to_width([int(row.tokens[-1]) for row in rows], self.rows.step(rows), self._width)

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Do nothing: these tokens are learned in the next `batch_get`, which knows their requests."""

    def synchronize(self) -> None:
        """Do nothing: learning is complete when a call returns."""

    def erase_match_state(self, req_ids: Iterable[str]) -> None:
        """Drop requests that have left the batch; their sessions close in the next step, which does not show them."""
        for request in req_ids:
            self._texts.pop(request, None)

    def reset(self) -> None:
        """End all requests; what was learned is kept, as it does not depend on the cleared cache."""
        self.rows.finish()
        self._texts.clear()

    def load_external_corpus_named(self, corpus_id: str, chunks: Iterable[Sequence[int]]) -> int:
        """Learn texts as if they were prompts; return their number of tokens.

        Raises:
            ValueError: a corpus of this name is already loaded, or ids are outside the vocabulary.
        """
        if corpus_id in self._corpora:
            raise ValueError(f"the corpus '{corpus_id}' was learned already; give another one another name.")
        count = 0
        for chunk in chunks:
            tokens = np.asarray(list(chunk), np.int64)
            if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self._vocabulary:
                raise ValueError(f"the corpus '{corpus_id}' has ids outside of 0 to {self._vocabulary - 1}.")
            self._drafter.open(SessionRequest(prompt=tokens.astype(np.int32))).close()
            count += len(tokens)
        return count

    def commit_external_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        """Record a learned corpus."""
        self._corpora[corpus_id] = loaded_token_count

    def remove_external_corpus(self, corpus_id: str) -> None:
        """Raise an error: learned texts are mixed with all others.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"the corpus '{corpus_id}' was learned into one memory with all requests, so it cannot be removed alone; "
            "restart with another memory file."
        )

    def list_external_corpora(self) -> dict[str, int]:
        """Return the number of tokens of each learned corpus."""
        return dict(self._corpora)

    def _row(self, request: str, tail: Sequence[int], length: int) -> EngineRow:
        if self.is_behind(request, length):
            self.begin(request, np.asarray(tail, np.int32))  # for callers that give no whole texts
            length = len(tail)
        shown = self._texts[request]
        fresh = length - shown.text.length
        shown.text.extend(tail[len(tail) - fresh :])
        fresh = fresh if shown.drafted else max(1, fresh)
        shown.drafted = True
        return EngineRow(shown.text.tokens, fresh, self._width - 1, request)
