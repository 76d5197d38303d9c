"""Tokens that a draft model draws ahead of a draft, in a thread, while the target verifies the draft."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from threading import Event

import torch
from torch import Tensor

from speculant.core.tree import ROOT, Ahead
from speculant.drafters.models.draft_text import DraftText
from speculant.drafters.models.warping import draw_token

Drawn = list[tuple[int, Tensor]]  # tokens, each with the q [V] it was drawn from

_SHARE = 0.1  # weight of the latest measurement in the average


class PassTimes:
    """Moving averages of the pass times of both models, over all requests of a drafter.

    Attributes:
        target: seconds per pass of the target, including all work until its result is known; 0 before the first.
        draft: seconds per token of the draft model during these passes; 0 before the first.
    """

    def __init__(self) -> None:
        self.target = self.draft = 0.0

    def observe(self, target: float, draft: float) -> None:
        """Record the seconds of a target pass, and the seconds per token drawn during it."""
        self.target += (target - self.target) * (_SHARE if self.target else 1.0)
        self.draft += (draft - self.draft) * (_SHARE if self.draft else 1.0)


class DrawnAhead:
    """Tokens drawn after a draft, each as a separate task of the worker, so that several texts take turns.

    Attributes:
        drawn: tokens drawn so far.
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
        """Start drawing up to `maximum` tokens after a chain; without a generator, the most probable ones.

        Args:
            text: text on the draft model; the rows of its current draft are dropped.
            draft: tokens of the chain, possibly none.
            maximum: maximum tokens to draw.
            worker: executor that runs all passes of the draft model.
            generator: source of random numbers, or None.
            times: pass times to update.
        """
        self.drawn: Drawn = []
        self._text, self._draft, self._maximum = text, draft, maximum
        self._worker, self._generator, self._row = worker, generator, ROOT
        self._first, self._ended, self._stopped = Event(), Event(), False
        self._times, self._began, self._seconds = times, time.perf_counter(), 0.0
        self._worker.submit(self._draw)

    def _draw(self) -> None:
        """Draw a token and schedule the next; if that fails, end here, since the next draft will report the error."""
        goes_on = False
        try:
            if not self._stopped:
                began = time.perf_counter()
                distribution = self._next_distribution()
                self.drawn.append((draw_token(distribution, self._generator), distribution))
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

    def _next_distribution(self) -> Tensor:
        """Return q [V] after all tokens so far."""
        if self.drawn:
            [self._row], distributions = self._text.read([self.drawn[-1][0]], [self._row])
            return distributions[0]
        [distribution] = self._text.begin()
        if not self._draft:
            first: Tensor = distribution
            return first
        rows, distributions = self._text.read(self._draft, list(range(ROOT, len(self._draft) - 1)))
        self._row = rows[-1]
        return distributions[-1]

    def first(self) -> Ahead | None:
        """Wait for the first token and return it; None if drawing it failed."""
        self._first.wait()
        return Ahead(*self.drawn[0]) if self.drawn else None

    def end(self, *, complete: bool) -> Drawn:
        """Stop drawing after the target's pass; return the tokens so far, or with `complete` wait for all of them."""
        if self.drawn:
            self._times.observe(time.perf_counter() - self._began, self._seconds / len(self.drawn))
        return self.wait() if complete else self.stop()

    def wait(self) -> Drawn:
        """Wait for all tokens and return them."""
        self._ended.wait()
        return self.drawn

    def stop(self) -> Drawn:
        """Stop drawing and return the tokens so far."""
        self._stopped = True
        return self.wait()
