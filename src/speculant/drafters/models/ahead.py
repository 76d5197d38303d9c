"""Tokens that a draft model draws behind a draft, in a thread, while the target verifies it."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from threading import Event

import torch
from torch import Tensor

from speculant.core.tree import ROOT, Ahead
from speculant.drafters.models.draft_text import DraftText
from speculant.drafters.models.warping import draw_token

Drawn = list[tuple[int, Tensor]]  # tokens, each with the q [V] that it was drawn from

_SHARE = 0.1  # of the latest measurement


class PassTimes:
    """How long passes of both models take, averaged over the latest ones, over all requests of a drafter.

    Attributes:
        target: seconds of the target's pass, with what else is done until its result is known; 0 before the first.
        draft: seconds of a token of the draft model meanwhile; 0 before the first.
    """

    def __init__(self) -> None:
        self.target = self.draft = 0.0

    def observe(self, target: float, draft: float) -> None:
        """Take the seconds of a pass, and of a token that was drawn during it."""
        self.target += (target - self.target) * (_SHARE if self.target else 1.0)
        self.draft += (draft - self.draft) * (_SHARE if self.draft else 1.0)


class DrawnAhead:
    """Tokens that are drawn behind a draft, one a task of the worker, so that texts take turns.

    Attributes:
        drawn: so far.
    """

    def __init__(
        self,
        text: DraftText,
        draft: list[int],
        maximum: int,
        worker: Executor,
        generator: torch.Generator | None,
        times: PassTimes,
    ) -> None:
        """Begin to draw up to so many tokens behind a chain; without a generator the most probable ones.

        Args:
            text: of the draft model, whose draft's rows are dropped.
            draft: the tokens of the chain, which may be none.
            maximum: tokens to draw.
            worker: runs all passes of the draft model.
            generator: of random numbers, or None.
            times: that are measured.
        """
        self.drawn: Drawn = []
        self._text, self._draft, self._maximum = text, draft, maximum
        self._worker, self._generator, self._row = worker, generator, ROOT
        self._first, self._ended, self._stopped = Event(), Event(), False
        self._times, self._began, self._seconds = times, time.perf_counter(), 0.0
        self._worker.submit(self._draw)

    def _draw(self) -> None:
        """Draw a token, and have the next one drawn; end where that fails, as the next draft will in turn."""
        goes_on = False
        try:
            if not self._stopped:
                began = time.perf_counter()
                law = self._next_law()
                self.drawn.append((draw_token(law, self._generator), law))
                self._seconds += time.perf_counter() - began
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
        [law] = self._text.begin()
        if not self._draft:
            first: Tensor = law
            return first
        rows, laws = self._text.read(self._draft, list(range(ROOT, len(self._draft) - 1)))
        self._row = rows[-1]
        return laws[-1]

    def first(self) -> Ahead | None:
        """Wait for the first token, and return it; None where drawing it failed."""
        self._first.wait()
        return Ahead(*self.drawn[0]) if self.drawn else None

    def end(self, *, complete: bool) -> Drawn:
        """Return the tokens so far, or wait for all of them; and draw no more. The target's pass is over."""
        if self.drawn:
            self._times.observe(time.perf_counter() - self._began, self._seconds / len(self.drawn))
        return self.wait() if complete else self.stop()

    def wait(self) -> Drawn:
        """Wait for all tokens, and return them."""
        self._ended.wait()
        return self.drawn

    def stop(self) -> Drawn:
        """Return the tokens so far, and draw no more."""
        self._stopped = True
        return self.wait()
