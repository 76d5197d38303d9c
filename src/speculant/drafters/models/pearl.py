"""Drafting while the target verifies: PEARL.

Liu et al.: "PEARL: Parallel Speculative Decoding with Adaptive Draft Length", ICLR 2025, arXiv 2408.11850, algorithm 2.
A thread runs the draft model during the target's pass, on another device or on other cores:

- pre-verify: if nothing was drafted ahead, only the first token is verified, while the next ones are drafted;
- post-verify: what was drafted during a pass becomes the next draft, if the whole previous draft was accepted and so is
  the first token drafted ahead, which is tested like any other: with the probability sum(min(p, q)). Otherwise it is
  dropped.

The first token ahead arrives during the pass, whose last row has the p it is tested against (`Proposal.ahead`). If it
is rejected, the target's own token is drawn from the residual, so that token has the distribution p whatever was
drafted; and what follows the first token was drawn from q given that token, so the next draft has the same distribution
as one that is drawn later.

The draft's length is adaptive: tokens are drafted for as long as the target's pass takes, but no more than are accepted
often enough to pay for verifying them. That number differs from run to run, so under sampling a seed gives other texts
with the same distribution; a number as `ahead` gives the same draft on every machine and every rank. The paper verifies
the first token in the pass during which it is drafted (`first=0`), which then commits one token. If it is drafted
before the pass instead (`first=1`), the round takes longer by one pass of the draft model, but can commit two. By
default that is done if the token, by measured acceptance and times, gains more than it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import ROOT, Ahead, DraftTree, Proposal
from speculant.drafters.models.ahead import Drawn, DrawnAhead, PassTimes
from speculant.drafters.models.draft_text import DraftText, OpenCache
from speculant.drafters.models.level_session import build_draft
from speculant.drafters.models.shapes import MAX_PASSES
from speculant.drafters.models.tree_acceptance import LevelAcceptance
from speculant.drafters.models.warping import draw_token

_MANY = 16  # unread tokens that are read before anything is drafted ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class PearlSettings:
    """Settings of `pearl`.

    Attributes:
        ahead: tokens drafted during a pass of the target; None for as many as the draft model makes in that time, up to
            one more than the draft's node budget, and no more than pay off.
        first: tokens drafted before the pass if nothing was drafted ahead, 0 (as published) or 1; None for whichever
            yields more by the measured times, or for 1 if `ahead` is a number.
    """

    ahead: int | None = None
    first: int | None = None


class PearlDrafter(Drafter):
    """Drafter of the method `pearl`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: PearlSettings | None = None) -> None:
        """Set up the draft model.

        Args:
            open_cache: returns an unread cache of the draft model for a prompt Int32[T].
            vocabulary: V of the target.
            settings: None for the defaults.

        Raises:
            UsageError: a setting is out of range.
        """
        self._settings = s = settings or PearlSettings()
        if s.ahead is not None and not 1 <= s.ahead <= MAX_PASSES:
            raise UsageError(f"ahead must be 1 to {MAX_PASSES}, not {s.ahead}.")
        if s.first not in (None, 0, 1):
            raise UsageError(f"first must be 0 or 1, not {s.first}.")
        self._lengths = AheadLengths()
        self._open_cache, self._vocabulary = open_cache, vocabulary
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="speculant-draft")  # runs all passes of the draft model

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        text = self._worker.submit(DraftText.open, self._open_cache, start, self._vocabulary).result()
        return PearlSession(text, start, self._worker, self._settings, self._lengths, self._vocabulary)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        """Return a draft for each session before anything is drafted ahead."""
        drafts = list[DraftTree]()
        for session, budget in zip(sessions, budgets, strict=True):
            assert isinstance(session, PearlSession)
            drafts.append(session.draft(budget))
        for session in sessions:
            assert isinstance(session, PearlSession)
            session.go_ahead()
        return drafts


class AheadLengths:
    """Decides how many tokens are drafted, from measurements over all requests of a drafter.

    Attributes:
        times: pass times.
        acceptance: acceptance of drafts by depth.
    """

    def __init__(self) -> None:
        self.times, self.acceptance = PassTimes(), LevelAcceptance()

    def first(self) -> int:
        """Return the number of tokens to draft before a pass: 1 if that gains more than it costs, else 0."""
        if not self.times.target:
            return 1
        return int(float(self.acceptance.gains(1)[0]) * self.times.target > self.times.draft)

    def ahead(self, price: float) -> int:
        """Return how many tokens ahead are accepted often enough to be worth verifying, at `price` per token."""
        gains = self.acceptance.gains(MAX_PASSES)
        return 1 + int((np.diff(gains, prepend=0.0) > price).sum())


class PearlSession(Session):
    """Session of one request: its text on the draft model, and what is being drafted ahead."""

    def __init__(
        self,
        text: DraftText,
        start: SessionRequest,
        worker: Executor,
        settings: PearlSettings,
        lengths: AheadLengths,
        vocabulary: int,
    ) -> None:
        self._text, self._start, self._worker, self._settings = text, start, worker, settings
        self._lengths, self._vocabulary = lengths, vocabulary
        self._generator, self._round = torch.Generator(), 0
        self._ready: Drawn = []  # tokens below the root, drawn in the previous round
        self._drawn: Drawn = []  # the current draft
        self._ahead: DrawnAhead | None = None
        self._room = 0  # maximum tokens to draw ahead

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain and start drafting ahead. Repeated calls before `observe` return the same draft."""
        draft = self.draft(budget)
        self.go_ahead()
        return draft

    def draft(self, budget: Budget) -> DraftTree:
        """Return a chain."""
        if self._ahead is not None:
            self._ahead.stop()
        self._drawn, self._ahead, self._room = [], None, 0
        depth = min(budget.nodes, budget.depth, self._text.depth)
        if depth < 1:
            return DraftTree.empty()
        if self._text.unread >= _MANY:  # else reading a prompt could be timed as drafting ahead
            self._worker.submit(self._text.begin).result()
        self._worker.submit(self._generator.manual_seed, self._start.round_seed(self._round))
        self._drawn = self._ready[:depth]
        if not self._ready and self._first_length():
            self._drawn = self._worker.submit(self._first).result()
        most = self._settings.ahead or min(budget.nodes + 1, self._lengths.ahead(budget.node_price))
        self._room = min(most, MAX_PASSES, self._text.depth - len(self._drawn) - 1)
        weights, joint = list[float](), 1.0
        for token, distribution in self._drawn:
            joint *= min(1.0, float(distribution[token]))
            weights.append(joint)
        distributions = {node: distribution for node, (_, distribution) in enumerate(self._drawn, start=ROOT)}
        tokens = [token for token, _ in self._drawn]
        parents = list(range(-1, len(tokens) - 1))
        if not tokens and self._sampled:  # the token drawn during the pass is tested against the root's p
            tested = Proposal(torch.empty(0, self._vocabulary), ahead=self._first_ahead)
            return replace(DraftTree.empty(), proposal=tested)
        return build_draft(tokens, parents, weights, distributions if self._sampled else {}, ahead=self._first_ahead)

    def go_ahead(self) -> None:
        """Start drafting what may follow the draft."""
        if self._room > 1:  # the first token only decides whether the others can be used
            generator, draft = self._generator if self._sampled else None, [token for token, _ in self._drawn]
            times = self._lengths.times
            self._ahead = DrawnAhead(self._text, draft, self._room, self._worker, generator, times)

    @property
    def _sampled(self) -> bool:
        return bool(self._start.sampling.temperature)

    def _first_length(self) -> int:
        """Return the number of tokens to draft before the pass if none were drafted ahead."""
        if self._settings.first is not None:
            return self._settings.first
        return self._lengths.first() if self._settings.ahead is None else 1

    def _first(self) -> Drawn:
        """Return one token below the root."""
        [distribution] = self._text.begin()
        return [(draw_token(distribution, self._generator if self._sampled else None), distribution)]

    def _first_ahead(self) -> Ahead | None:
        return None if self._ahead is None else self._ahead.first()

    def _end_ahead(self) -> Drawn:
        """Return what was drafted ahead so far, or if the setting is a number, all of it."""
        if self._ahead is None:
            return []
        return self._ahead.end(complete=self._settings.ahead is not None)

    def unread(self) -> int:
        return self._text.unread

    def observe(self, verified: Verified) -> None:
        """Use what was drafted ahead if the text took that path."""
        draft, ahead, tokens = self._drawn, self._end_ahead(), verified.tokens.tolist()
        self._drawn, self._ahead = [], None  # tested once: rounds of a pause follow without a draft
        if draft:
            self._lengths.acceptance.observe(len(draft), len(verified.path))
        drawn = [*draft, *ahead]
        self._ready = drawn[len(tokens) :] if [token for token, _ in drawn[: len(tokens)]] == tokens else []
        self._worker.submit(self._text.observe, verified).result()
        self._round += 1

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.stop()
        self._worker.submit(self._text.release).result()
