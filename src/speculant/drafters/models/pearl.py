"""Drafting while the target verifies: PEARL.

Liu et al.: "PEARL: Parallel Speculative Decoding with Adaptive Draft Length", ICLR 2025, arXiv 2408.11850, algorithm 2.
A thread runs the draft model while the target's pass runs, on another device or on other cores:

- pre-verify: where nothing was drafted ahead, only the first token is verified, while the next ones are drafted;
- post-verify: what was drafted meanwhile becomes the next draft, if the draft before it was accepted whole and so is
  the first token drafted ahead, which is tested as any other: with the probability sum(min(p, q)). Else it is dropped.

The first token ahead comes during the pass, whose last row has the p that it is tested against (`Proposal.ahead`).
Where it fails, the target's own token is drawn from the residual, so that token has the distribution p whatever was
drafted; and what follows the first token was drawn from q given it, so the next draft has the distribution of one that
is drawn later.

The draft's length is adaptive: tokens are drafted for as long as the target's pass takes. How many those are differs
from run to run, so that under sampling a seed gives other texts of the same distribution; a number as `ahead` gives the
same draft on every machine and every rank. The paper verifies the first token in the pass in which it is drafted; here
it is drafted before the pass, for a pass of the draft model, so that such a round can commit two tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import torch
from torch import Tensor

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import ROOT, Ahead, DraftTree
from speculant.drafters.models.draft_text import DraftText, OpenCache
from speculant.drafters.models.level_session import drafted
from speculant.drafters.models.shapes import MAX_PASSES
from speculant.drafters.models.warping import draw_token

Drawn = list[tuple[int, Tensor]]  # tokens, each with the q [V] that it was drawn from


@dataclass(frozen=True, slots=True, kw_only=True)
class PearlSettings:
    """Settings of `pearl`.

    Attributes:
        ahead: tokens drafted during a pass of the target; None for as many as the draft model makes in its time, up to
            one more than a draft has nodes.
    """

    ahead: int | None = None


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
        if self._ahead is not None and not 1 <= self._ahead <= MAX_PASSES:
            raise UsageError(f"ahead must be 1 to {MAX_PASSES}, not {self._ahead}.")
        self._open_cache, self._vocabulary = open_cache, vocabulary
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="speculant-draft")  # runs all passes of the draft model

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
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


class DrawnAhead:
    """Tokens that are drawn behind a draft, one a task of the worker, so that texts take turns.

    Attributes:
        drawn: so far.
    """

    def __init__(
        self, text: DraftText, draft: Drawn, maximum: int, worker: Executor, generator: torch.Generator | None
    ) -> None:
        """Begin to draw up to so many tokens behind a draft; without a generator the most probable ones."""
        self.drawn: Drawn = []
        self._text, self._draft, self._maximum = text, draft, maximum
        self._worker, self._generator, self._row = worker, generator, ROOT
        self._first, self._ended, self._stopped = Event(), Event(), False
        self._worker.submit(self._draw)

    def _draw(self) -> None:
        """Draw a token, and have the next one drawn; end where that fails, as the next draft will in turn."""
        goes_on = False
        try:
            if not self._stopped:
                law = self._next_law()
                self.drawn.append((draw_token(law, self._generator), law))
                if len(self.drawn) < self._maximum:
                    self._worker.submit(self._draw)
                    goes_on = True
        except Exception:
            self.drawn = []
        finally:
            if not goes_on:
                self._ended.set()
            self._first.set()

    def _next_law(self) -> Tensor:
        """Return q [V] behind all tokens so far."""
        if self.drawn:
            [self._row], laws = self._text.read([self.drawn[-1][0]], [self._row])
            return laws[0]
        self._text.begin()
        rows, laws = self._text.read([token for token, _ in self._draft], list(range(ROOT, len(self._draft) - 1)))
        self._row = rows[-1]
        return laws[-1]

    def first(self) -> Ahead | None:
        """Wait for the first token, and return it; None where drawing it failed."""
        self._first.wait()
        return Ahead(*self.drawn[0]) if self.drawn else None

    def wait(self) -> Drawn:
        """Wait for all tokens, and return them."""
        self._ended.wait()
        return self.drawn

    def stop(self) -> Drawn:
        """Return the tokens so far, and draw no more."""
        self._stopped = True
        return self.wait()


class PearlSession(Session):
    """One request: its text on the draft model, and what is being drafted ahead."""

    def __init__(self, text: DraftText, start: SessionRequest, worker: Executor, ahead: int | None) -> None:
        self._text, self._start, self._worker, self._maximum = text, start, worker, ahead
        self._generator, self._round = torch.Generator(), 0
        self._ready: Drawn = []  # below the root, drawn in the round before
        self._drawn: Drawn = []  # the draft
        self._ahead: DrawnAhead | None = None
        self._room = 0  # tokens that may be drawn ahead

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain, and begin to draft what may follow it. Asked again before `observe`, it returns the same."""
        draft = self.draft(budget)
        self.go_ahead()
        return draft

    def draft(self, budget: Budget) -> DraftTree:
        """Return a chain."""
        if self._ahead is not None:
            self._ahead.stop()
        self._drawn, self._ahead = [], None
        depth = min(budget.nodes, budget.depth, self._text.depth)
        if depth < 1:
            return DraftTree.empty()
        self._worker.submit(self._generator.manual_seed, self._start.round_seed(self._round))
        first: Future[Drawn] | None = None if self._ready else self._worker.submit(self._first)
        self._drawn = self._ready[:depth] if first is None else first.result()
        self._room = min(self._maximum or budget.nodes + 1, MAX_PASSES, self._text.depth - len(self._drawn) - 1)
        weights, joint = list[float](), 1.0
        for token, law in self._drawn:
            joint *= min(1.0, float(law[token]))
            weights.append(joint)
        laws = {node: law for node, (_, law) in enumerate(self._drawn, start=ROOT)}
        tokens = [token for token, _ in self._drawn]
        parents = list(range(-1, len(tokens) - 1))
        return drafted(tokens, parents, weights, laws if self._sampled else {}, ahead=self._first_ahead)

    def go_ahead(self) -> None:
        """Begin to draft what may follow the draft."""
        if self._drawn and self._room > 1:  # the first of them only tells whether the others can be used
            generator = self._generator if self._sampled else None
            self._ahead = DrawnAhead(self._text, self._drawn, self._room, self._worker, generator)

    @property
    def _sampled(self) -> bool:
        return bool(self._start.sampling.temperature)

    def _first(self) -> Drawn:
        """Return one token below the root."""
        [law] = self._text.begin()
        return [(draw_token(law, self._generator if self._sampled else None), law)]

    def _first_ahead(self) -> Ahead | None:
        return None if self._ahead is None else self._ahead.first()

    def _end_ahead(self) -> Drawn:
        """Return what was drafted ahead by now, or all that was asked for where that is a number."""
        if self._ahead is None:
            return []
        return self._ahead.stop() if self._maximum is None else self._ahead.wait()

    def observe(self, verified: Verified) -> None:
        """Use what was drafted ahead if the text went that way."""
        drawn, tokens = [*self._drawn, *self._end_ahead()], verified.tokens.tolist()
        self._ready = drawn[len(tokens) :] if [token for token, _ in drawn[: len(tokens)]] == tokens else []
        self._worker.submit(self._text.observe, verified).result()
        self._round += 1

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.stop()
        self._worker.submit(self._text.release).result()
