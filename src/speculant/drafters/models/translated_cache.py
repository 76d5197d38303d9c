"""A draft model's cache that takes the target's tokens, so that a model with another tokenizer drafts like any other.

A row of the target corresponds to the row of its partner in the shared vocabulary, or to several rows that spell its
text in the draft model's tokens, or to none. Logits are restricted to the shared tokens, so a drawn token always
corresponds to one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from speculant.core.engine import NO_OUTPUTS, EngineArray, Pass, RequestedOutputs, TargetCache
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sublayers import Sublayers
from speculant.core.tree import ROOT, DraftTree, Int32
from speculant.drafters.models.translation import Translation


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """An uncommitted row of the target.

    Attributes:
        rows: the draft model's rows for it, counted from the first uncommitted one.
        end: the draft model's last row on the path to it, or ROOT if there is none.
        height: number of the draft model's uncommitted rows on the path to it, including its own.
        logits: the draft model's logits [1, V'] after it.
    """

    rows: tuple[int, ...]
    end: int
    height: int
    logits: Tensor


class TranslatedCache(TargetCache):
    """A draft model's cache that takes tokens of the target and returns logits over the target's vocabulary."""

    def __init__(self, prompt: Int32, translation: Translation, open_cache: Callable[[Int32], TargetCache]) -> None:
        """Open the draft model's cache; the prompt is not read yet.

        Args:
            prompt: Int32[T], in the target's tokens.
            translation: translation into the draft model's tokens.
            open_cache: returns the draft model's cache for a prompt in its own tokens.
        """
        self._translation, self._cache = translation, open_cache(translation.prompt(prompt))
        self._prompt_length, self._committed = len(prompt), 0
        self._after: Tensor | None = None  # the draft model's logits after the committed text
        self._rows = list[_Row]()
        self._full = False

    @property
    def length(self) -> int:
        return 0 if self._cache.unread else self._prompt_length + self._committed

    @property
    def trees(self) -> bool:
        return self._cache.trees

    @property
    def unread(self) -> int:
        return self._prompt_length if self._cache.unread else 0

    @property
    def depth(self) -> int:
        """Maximum depth of a draft; 0 once the text in the draft model's tokens exceeds its positions."""
        return 0 if self._full else self._cache.depth

    def prefill(self, maximum: int | None = None, *, needs: RequestedOutputs = NO_OUTPUTS) -> Pass | None:
        _check(needs)
        read = self._cache.prefill(maximum)
        if read is None:
            return None
        self._after = read.logits
        return self._pass(read.logits)

    def forward(
        self,
        tokens: Int32,
        parents: Int32,
        *,
        needs: RequestedOutputs = NO_OUTPUTS,
        layers: Sequence[int] | Sublayers | None = None,
        embeddings: EngineArray = None,
    ) -> Pass:
        _check(needs)
        if embeddings is not None:
            raise UnsupportedError("a draft model with another tokenizer takes no embeddings of the drafter's own.")
        self._check_tokens(tokens)
        planned, pieces, above, full = self._plan(tokens, parents)
        after = self._after
        if after is None:
            raise UsageError("the prompt of this sequence has not been read yet; call prefill first.")
        logits: Tensor = after
        if pieces:
            result = self._cache.forward(np.array(pieces, np.int32), np.array(above, np.int32), layers=layers)
            logits = result.logits
        before, rows = self._count_appended(), list(self._rows)
        for row, parent in zip(planned, parents.tolist(), strict=True):
            if row.rows:
                own = logits[row.end - before : row.end - before + 1]
            else:
                own = rows[parent].logits if parent != ROOT else after
            rows.append(replace(row, logits=own))
        new = rows[len(self._rows) :]
        self._rows, self._full = rows, self._full or full
        return self._pass(torch.cat([row.logits for row in new]))

    def check(self, draft: DraftTree) -> None:
        self._check_tokens(draft.tokens)

    def keep(self, rows: Sequence[int]) -> None:
        kept = [self._rows[row] for row in rows]
        self._cache.keep([row for each in kept for row in each.rows])
        if kept:
            self._after = kept[-1].logits.clone()  # a copy, so that the other rows of the pass are freed
        self._committed += len(kept)
        self._rows = []

    def rollback(self) -> None:
        self._cache.rollback()
        self._rows = []

    def restart(self) -> None:
        self._cache.restart()
        self._rows, self._after, self._committed, self._full = [], None, 0, False

    def release(self) -> None:
        self._cache.release()
        self._rows, self._after = [], None

    def _plan(self, tokens: Int32, parents: Int32) -> tuple[list[_Row], list[int], list[int], bool]:
        """Return the new rows without logits, the draft model's tokens for them, their parents, and whether it is full.

        Text for which the draft model has no positions left is not read: drafts then continue from what precedes it,
        which costs acceptance in this round, but no draft follows after that.
        """
        rows, pieces, above = list(self._rows), list[int](), list[int]()
        appended, maximum, full = self._count_appended(), self._cache.depth + 1, self._full
        for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
            end, height = (rows[parent].end, rows[parent].height) if parent != ROOT else (ROOT, 0)
            found = () if full else self._translation.pieces(token)
            if height + len(found) > maximum:
                found, full = (), True
            own = list[int]()
            for piece in found:
                pieces.append(piece)
                above.append(end)
                end = appended + len(pieces) - 1
                own.append(end)
            rows.append(_Row(tuple(own), end, height + len(own), torch.empty(0)))
        return rows[len(self._rows) :], pieces, above, full

    def _count_appended(self) -> int:
        """Return the number of uncommitted rows in the draft model's cache."""
        return 1 + max((row.end for row in self._rows), default=ROOT)

    def _pass(self, logits: Tensor) -> Pass:
        return Pass(logits=self._translation.shared.restrict(logits))

    def _check_tokens(self, tokens: Int32) -> None:
        size = self._translation.shared.target_size
        wrong = [token for token in tokens.tolist() if not 0 <= token < size]
        if wrong:
            raise ValueError(f"the drafter proposed token {wrong[0]}; the model has {size}.")


def _check(needs: RequestedOutputs) -> None:
    if needs != NO_OUTPUTS:
        raise UnsupportedError("a draft model with another tokenizer returns logits alone, no hidden states or top-k.")
