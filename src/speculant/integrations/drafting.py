"""Drafts for the rows that an engine shows, step by step; the common part of all integrations.

Each request has a session of the drafter. Its text shows what was accepted: the drafted path that the committed tokens
follow. Drafts depend only on tokens and on the order of steps, so every rank of an engine drafts the same.

An error of the drafter ends drafting for the affected request, and is logged once. It never reaches the engine, which
continues to decode without drafts.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from speculant.core.drafter import EMPTY_PATH, Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.tree import ROOT, DraftTree, Int32
from speculant.integrations.load import bound_drafts
from speculant.integrations.rows import EngineRow, Known, KnownRequests

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Request:
    """The state of a request: its session (None after an error), and the draft that is being verified."""

    session: Session | None
    draft: DraftTree


class RowDrafter:
    """Drafts for the rows of an engine.

    Attributes:
        drafter: the drafter.
        learned: counter that increases when the drafter has learned something.
        faults: number of errors of the drafter.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        vocabulary: int,
        budget: Callable[[int], Budget],
        max_per_step: int,
        min_probability: float = 0.0,
        ends: frozenset[int] = frozenset(),
        patience: int = 32,
        max_absent: int = 64,
    ) -> None:
        """Start without requests.

        Args:
            drafter: a drafter of chosen tokens, without mandatory needs.
            vocabulary: V; drafts with larger ids are not passed on.
            budget: returns the budget of a request, given its maximum number of drafted tokens.
            max_per_step: maximum tokens drafted per step, for all requests together.
            min_probability: minimum acceptance probability of a drafted token, as estimated by the drafter.
            ends: tokens that end a text, so that a request that ended with one need not be waited for.
            patience, max_absent: see `KnownRequests`.
        """
        self.drafter = drafter
        self.learned = self.faults = 0
        self._vocabulary, self._budget, self._ends = vocabulary, budget, ends
        self._max_per_step, self._min_probability = max_per_step, min_probability
        self._requests = KnownRequests[_Request](patience=patience, max_absent=max_absent)

    def __len__(self) -> int:
        """The number of requests with sessions."""
        return len(self._requests)

    def step(self, rows: Sequence[EngineRow]) -> list[DraftTree]:
        """Learn what the last pass committed and return a draft for each row; empty if none is wanted or found."""
        try:
            return self._step(rows)
        except Exception as error:
            self._fault(error)
            with suppress(Exception):
                self.finish()
            return [DraftTree.empty() for _ in rows]

    def finish(self) -> None:
        """End all requests, so that the drafter learns from them."""
        for request in self._requests.drop_all():
            self._close(request)

    def _step(self, rows: Sequence[EngineRow]) -> list[DraftTree]:
        found, empty = self._requests.match(rows), DraftTree.empty()
        self._drop_finished()
        waiting: list[int] = []
        for i, row in enumerate(rows):
            if row.fresh:
                known = found[i]
                if known is None:
                    known = found[i] = self._open(row, i)
                else:
                    self._observe(known, row)
                known.held.draft = empty
                if known.held.session is not None and row.maximum > 0:
                    waiting.append(i)
        requests = [known.held for i in waiting if (known := found[i]) is not None]
        drafts = self._propose(requests, [self._budget(rows[i].maximum) for i in waiting])
        drafts = bound_drafts(drafts, self._max_per_step, minimum=self._min_probability)
        result = [empty] * len(rows)
        for i, request, draft in zip(waiting, requests, drafts, strict=True):
            request.draft = result[i] = draft
        return result

    def _drop_finished(self) -> None:
        for known in self._requests.absent():
            if known.length and int(known.text[-1]) in self._ends:
                self._close(self._requests.drop(known))
        for request in self._requests.drop_absent():
            self._close(request)

    def _open(self, row: EngineRow, slot: int) -> Known[_Request]:
        request = _Request(None, DraftTree.empty())
        known = self._requests.add(row, slot, request)
        prompt, first = np.split(known.text.copy(), [len(row.tokens) - row.fresh])
        try:
            request.session = self.drafter.open(SessionRequest(prompt=prompt, seed=_derive_seed(prompt)))
            self._learn(request.session, DraftTree.empty(), first)
        except Exception as error:
            self._fail(request, error)
        return known

    def _observe(self, known: Known[_Request], row: EngineRow) -> None:
        request, shown = known.held, known.length + row.fresh == len(row.tokens)
        tokens = known.extend(row.tokens)
        if request.session is not None and len(tokens):
            try:
                self._learn(request.session, request.draft if shown else DraftTree.empty(), tokens)
            except Exception as error:
                self._fail(request, error)

    def _learn(self, session: Session, draft: DraftTree, tokens: Int32) -> None:
        self.learned += len(tokens)
        session.observe(Verified(tree=draft, path=follow_tokens(draft, tokens), tokens=tokens))

    def _propose(self, requests: list[_Request], budgets: list[Budget]) -> list[DraftTree]:
        sessions = [request.session for request in requests if request.session is not None]
        try:
            drafts = list(self.drafter.propose(sessions, budgets))
        except Exception:  # raised for one of them; individually, the others still draft
            drafts = [self._propose_alone(*each) for each in zip(requests, budgets, strict=True)]
        return [self._check_draft(*each) for each in zip(requests, drafts, strict=True)]

    def _propose_alone(self, request: _Request, budget: Budget) -> DraftTree:
        if request.session is not None:
            try:
                return self.drafter.propose([request.session], [budget])[0]
            except Exception as error:
                self._fail(request, error)
        return DraftTree.empty()

    def _check_draft(self, request: _Request, draft: DraftTree) -> DraftTree:
        """Return a draft that is safe for an engine: an id beyond the vocabulary would crash its embedding."""
        if not len(draft) or (draft.tokens.min() >= 0 and draft.tokens.max() < self._vocabulary):
            return draft
        self._fail(request, ValueError(f"a drafted token id is not below {self._vocabulary}"))
        return DraftTree.empty()

    def _fail(self, request: _Request, error: Exception) -> None:
        self._fault(error)
        self._close(request)

    def _close(self, request: _Request) -> None:
        session, request.session = request.session, None
        if session is not None:
            self.learned += 1  # some drafters learn an output only at its end
            try:
                session.close()
            except Exception as error:
                self._fault(error)

    def _fault(self, error: Exception) -> None:
        self.faults += 1
        if self.faults == 1:
            logger.error(
                "a drafter failed; requests in which this happens are decoded without drafts, and their text does not "
                "change. Further failures are counted but not logged.",
                exc_info=error,
            )


def follow_tokens(draft: DraftTree, tokens: Int32) -> Int32:
    """Return the nodes of a draft, from the root, that match committed tokens; the last token is the target's own."""
    if not len(draft):
        return EMPTY_PATH
    drafted, parents = draft.tokens.tolist(), draft.parents.tolist()
    path: list[int] = []
    for token in tokens[:-1].tolist():
        above = path[-1] if path else ROOT
        node = next((i for i in range(above + 1, len(drafted)) if parents[i] == above and drafted[i] == token), None)
        if node is None:
            break
        path.append(node)
    return np.array(path, np.int32)


def _derive_seed(prompt: Int32) -> np.random.SeedSequence:
    """Return a seed derived from the prompt, the same on every rank."""
    return np.random.SeedSequence([len(prompt), zlib.crc32(prompt.tobytes())])
