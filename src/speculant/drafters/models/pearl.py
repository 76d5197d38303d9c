"""Drafting while the target verifies: PEARL.

Liu et al.: "PEARL: Parallel Speculative Decoding with Adaptive Draft Length", ICLR 2025, arXiv 2408.11850. A thread
runs the draft model while the target's pass runs, on another device or on other cores:

- pre-verify: where nothing was drafted ahead, only the first token is verified, while the next ones are drafted;
- post-verify: what was drafted meanwhile becomes the next draft, if the draft before it was accepted whole and the
  target's own token is the first one drafted ahead. Else it is dropped.

Which tokens are used depends on the target's token alone, and what follows that token was drawn from q given it, so the
draft has the distribution of one that is drawn later. The paper drafts as long as the target's pass takes; here it is a
fixed number of tokens, so that a seed gives the same draft on every machine and every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from speculant.core.drafter import Budget, Drafter, Session, Start, Verified
from speculant.core.engine import NO_NEEDS, Needs
from speculant.core.errors import UsageError
from speculant.core.tree import ROOT, DraftTree
from speculant.drafters.models.draft_text import DraftText, OpenCache
from speculant.drafters.models.level_session import drafted
from speculant.drafters.models.shapes import MOST_PASSES
from speculant.drafters.models.warping import drawn_token

Drawn = list[tuple[int, Tensor]]  # tokens, each with the q [V] that it was drawn from


@dataclass(frozen=True, slots=True, kw_only=True)
class PearlSettings:
    """Settings of `pearl`.

    Attributes:
        ahead: tokens drafted during a pass of the target: about as many as the draft model makes in its time.
    """

    ahead: int = 4


class PearlDrafter(Drafter):
    """`pearl`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: PearlSettings | None = None) -> None:
        """Take the draft model.

        Args:
            open_cache: returns a cache of the draft model for a prompt Int32[T], which is not read yet.
            vocabulary: V of the target.
            settings: None for the defaults.

        Raises:
            UsageError: the number of tokens is out of range.
        """
        self._ahead = (settings or PearlSettings()).ahead
        if not 1 <= self._ahead <= MOST_PASSES:
            raise UsageError(f"ahead must be 1 to {MOST_PASSES}, not {self._ahead}.")
        self._open_cache, self._vocabulary = open_cache, vocabulary
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="speculant-draft")  # runs all passes of the draft model

    @property
    def needs(self) -> Needs:
        return NO_NEEDS

    def open(self, start: Start) -> Session:
        opened = self._worker.submit(DraftText.open, self._open_cache, start, self._vocabulary)
        return PearlSession(opened.result(), start, self._worker, self._ahead)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        """Return a draft for each of several sessions before anything is drafted ahead."""
        drafts = list[DraftTree]()
        for session, budget in zip(sessions, budgets, strict=True):
            assert isinstance(session, PearlSession)
            drafts.append(session.draft(budget))
        for session in sessions:
            assert isinstance(session, PearlSession)
            session.go_ahead()
        return drafts


class PearlSession(Session):
    """One request: its text on the draft model, and what is being drafted ahead."""

    def __init__(self, text: DraftText, start: Start, worker: ThreadPoolExecutor, ahead: int) -> None:
        self._text, self._start, self._worker, self._most = text, start, worker, ahead
        self._generator, self._round = torch.Generator(), 0
        self._ready: Drawn = []  # below the root, drawn in the round before
        self._drawn: Drawn = []  # the draft
        self._running: Future[Drawn] | None = None

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain, and begin to draft what may follow it. Asked again before `observe`, it returns the same."""
        draft = self.draft(budget)
        self.go_ahead()
        return draft

    def draft(self, budget: Budget) -> DraftTree:
        """Return a chain."""
        self._finish()
        self._drawn = []
        depth = min(budget.nodes, budget.depth, self._text.depth)
        if depth < 1:
            return DraftTree.empty()
        self._generator.manual_seed(self._start.round_seed(self._round))
        if not self._ready:
            self._running = self._worker.submit(self._first)
        self._drawn = self._ready[:depth] or self._finish()
        weights, joint = list[float](), 1.0
        for token, law in self._drawn:
            joint *= min(1.0, float(law[token]))
            weights.append(joint)
        laws = {node: law for node, (_, law) in enumerate(self._drawn, start=ROOT)}
        tokens = [token for token, _ in self._drawn]
        return drafted(tokens, list(range(-1, len(tokens) - 1)), weights, laws if self._sampled else {})

    def go_ahead(self) -> None:
        """Begin to draft what may follow the draft."""
        further = min(self._most, self._text.depth - len(self._drawn) - 1)
        if self._drawn and further > 1:  # the first of them only tells whether the others can be used
            self._running = self._worker.submit(self._draw_behind, self._drawn, further)

    @property
    def _sampled(self) -> bool:
        return bool(self._start.sampling.temperature)

    def _first(self) -> Drawn:
        """Return one token below the root."""
        [law] = self._text.begin()
        return [(drawn_token(law, self._generator if self._sampled else None), law)]

    def _draw_behind(self, drawn: Drawn, count: int) -> Drawn:
        """Return further tokens behind a chain."""
        self._text.begin()
        tokens = [token for token, _ in drawn]
        rows, laws = self._text.read(tokens, list(range(-1, len(tokens) - 1)))
        row, law, further = rows[-1], laws[-1], Drawn()
        while True:
            further.append((drawn_token(law, self._generator if self._sampled else None), law))
            if len(further) == count:
                return further
            [row], [law] = self._text.read([further[-1][0]], [row])

    def _finish(self) -> Drawn:
        """Wait for what is being drafted, and return it."""
        found = [] if self._running is None else self._running.result()
        self._running = None  # only now: an interrupted wait must be repeated before the text is used
        return found

    def _finish_ahead(self) -> Drawn:
        """Wait for what is drafted ahead, and return it; nothing where that failed, as the next draft will in turn."""
        try:
            return self._finish()
        except Exception:
            self._running = None
            return []

    def observe(self, verified: Verified) -> None:
        """Use what was drafted ahead if the text went that way."""
        drawn, tokens = [*self._drawn, *self._finish_ahead()], verified.tokens.tolist()
        self._ready = drawn[len(tokens) :] if [token for token, _ in drawn[: len(tokens)]] == tokens else []
        self._worker.submit(self._text.observe, verified).result()
        self._round += 1

    def close(self) -> None:
        self._finish_ahead()
        self._worker.submit(self._text.release).result()
