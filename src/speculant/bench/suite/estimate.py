"""Estimates the duration of a benchmark, first from its warm-up and then from finished items.

A request takes about a constant time per prompt token and per new token. The warm-up gives both for every system; as
items finish, the ratio of measured to predicted seconds corrects the rest. New tokens are counted as the maximum of a
request, so before the first item is finished the estimate is an upper bound if texts end early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speculant.bench.suite.tasks import TaskItem
from speculant.bench.systems.system import RequestOutcome


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run.

    Attributes:
        done, total: number of items, over all trials, batch sizes and samplings.
        seconds_left: an estimate; None before any measurement.
    """

    done: int
    total: int
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds of a system per prompt token and per new token.

    Attributes:
        batched: whether it also runs in batches.
    """

    prompt: float
    new: float
    batched: bool

    @staticmethod
    def measure(outcome: RequestOutcome, prompt_tokens: int, *, batched: bool) -> Rate:
        """Return the rate of one request."""
        rest = max(1, len(outcome.ids) - outcome.prefill_tokens)
        decoding = max(0.0, outcome.seconds - outcome.prefill_seconds)
        return Rate(outcome.prefill_seconds / max(1, prompt_tokens), decoding / rest, batched)


class TimeEstimate:
    """Predicts the seconds of items from measured rates, corrected by finished items."""

    def __init__(self) -> None:
        self._rates: Sequence[Rate] = ()
        self._sizes: dict[TaskItem, tuple[int, int]] = {}
        self._predicted = self._measured = 0.0

    def calibrate(self, rates: Sequence[Rate]) -> None:
        """Set the rates of all systems."""
        self._rates = list(rates)

    def finish(self, items: Sequence[TaskItem], batch: int, seconds: float) -> None:
        """Count finished items and their total seconds in all systems."""
        self._predicted += self._predict(items, batch)
        self._measured += seconds

    def seconds(self, left: Sequence[tuple[Sequence[TaskItem], int]]) -> float | None:
        """Return the seconds that the remaining items take; None before `calibrate`.

        Args:
            left: remaining items, with the requests per pass.
        """
        if not self._rates:
            return None
        seconds = sum(self._predict(items, batch) for items, batch in left)
        return seconds * self._measured / self._predicted if self._predicted else seconds

    def _predict(self, items: Sequence[TaskItem], batch: int) -> float:
        rates = [rate for rate in self._rates if batch == 1 or rate.batched]
        per_prompt_token, per_new_token = sum(rate.prompt for rate in rates), sum(rate.new for rate in rates)
        seconds = 0.0
        for item in items:
            prompt, new = self._size(item)
            # A batched pass serves several requests; prompts are still read one at a time.
            seconds += prompt * per_prompt_token + new * per_new_token / batch
        return seconds

    def _size(self, item: TaskItem) -> tuple[int, int]:
        """Return the maximum number of tokens that an item reads and decodes, as if each turn were like the first."""
        if item not in self._sizes:
            request = item.request([])
            size = (0, 0) if request is None else (len(request.prompt), request.max_new_tokens)
            self._sizes[item] = (item.turns * size[0], item.turns * size[1])
        return self._sizes[item]
