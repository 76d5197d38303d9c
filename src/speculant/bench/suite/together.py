"""A method on many requests at once: a task's items go through a batch, as on a server that is never idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speculant.api.batch import Ticket
from speculant.api.result import Run
from speculant.api.speculator import Speculator
from speculant.bench.suite.tasks import Item, Request, Sampling
from speculant.bench.systems.forced import ForcedSampler, forced_run
from speculant.core.stats import BatchStats, Stats

Answers = list[list[list[int]]]
"""Token ids by item and turn."""


@dataclass(frozen=True, slots=True)
class Together:
    """What came of a group of items.

    Attributes:
        answers: of every item, a list per turn.
        prompt_tokens: of all requests.
        stats: of the batch; each: of the requests.
    """

    answers: Answers
    prompt_tokens: int
    stats: BatchStats
    each: list[Stats]


def play_together(
    speculator: Speculator, items: Sequence[Item], sampling: Sampling, *, size: int, said: Answers | None = None
) -> Together:
    """Decode items, up to `size` requests in a pass; an item's next turn takes a seat when its last one has ended.

    Args:
        speculator: decodes.
        items, sampling: what is asked, and how.
        size: of the batch.
        said: plain decoding's answers, which later turns build on; None for this method's own.
    """
    batch = speculator.batch(size)
    answers: Answers = [[] for _ in items]
    owners: dict[Ticket, int] = {}
    runs: list[Run] = []

    def ask(place: int) -> None:
        before = answers[place] if said is None else said[place][: len(answers[place])]
        request = items[place].request(before)
        if request is not None:
            runs.append(_run(speculator, request, sampling))
            owners[batch.take(runs[-1])] = place

    for place in range(len(items)):
        ask(place)
    try:
        for ticket, _ in batch:
            if ticket.error is not None:
                raise ticket.error
            if ticket.done:
                answers[owners[ticket]].append(ticket.result.ids)
                ask(owners[ticket])
    finally:
        batch.close()
    each = [run.stats for run in runs]
    return Together(answers, sum(stats.prompt_tokens for stats in each), batch.stats, each)


def _run(speculator: Speculator, request: Request, sampling: Sampling) -> Run:
    if request.forced is not None:
        return forced_run(speculator, request.prompt, ForcedSampler(request.forced.tolist()))
    return speculator.prepare(
        request.prompt.tolist(),
        max_new_tokens=request.max_new_tokens,
        temperature=sampling.temperature,
        seed=sampling.seed if sampling.temperature else None,
    )
