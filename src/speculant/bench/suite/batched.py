"""Runs a method on many requests at once: a task's items go through a batch, as on a server under constant load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speculant.api.batch import Batch
from speculant.api.result import Generation
from speculant.api.speculator import Speculator
from speculant.bench.suite.tasks import TaskItem, TaskRequest, TaskSampling
from speculant.bench.systems.forced import make_forced_components, make_forced_request
from speculant.core.stats import BatchStats, Stats

Answers = list[list[list[int]]]
"""Token ids by item and turn."""


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The outputs of a group of items and their statistics.

    Attributes:
        answers: for every item, a list of answers per turn.
        prompt_tokens: total prompt tokens.
        stats: statistics of the batch; each: of the individual requests.
    """

    answers: Answers
    prompt_tokens: int
    stats: BatchStats
    each: list[Stats]


def run_batch(
    speculator: Speculator,
    items: Sequence[TaskItem],
    sampling: TaskSampling,
    *,
    size: int,
    plain_answers: Answers | None = None,
) -> BatchOutcome:
    """Decode items, with up to `size` requests per pass; an item's next turn is submitted when the previous one ends.

    Args:
        speculator: the method to run.
        items: the conversations.
        sampling: how tokens are chosen.
        size: maximum requests per pass.
        plain_answers: the answers of plain decoding, which the prompts of later turns contain; None to use the
            method's own.
    """
    forced = any(request.forced is not None for request in (item.request([]) for item in items) if request)
    parts = make_forced_components(speculator, size) if forced else speculator.parts(size)
    batch = Batch(speculator.prepare, parts, speculator.engine, size=size)
    answers: Answers = [[] for _ in items]
    owners: dict[Generation, int] = {}
    generations: list[Generation] = []

    def submit_next(place: int) -> None:
        before = answers[place] if plain_answers is None else plain_answers[place][: len(answers[place])]
        request = items[place].request(before)
        if request is not None:
            generations.append(_generation(speculator, request, sampling))
            owners[batch.submit(generations[-1])] = place

    for place in range(len(items)):
        submit_next(place)
    try:
        for generation, _ in batch:
            if generation.error is not None:
                raise generation.error
            if generation.done:
                answers[owners[generation]].append(generation.result.ids)
                submit_next(owners[generation])
    finally:
        batch.close()
    each = [generation.sequence.stats for generation in generations]
    return BatchOutcome(answers, sum(stats.prompt_tokens for stats in each), batch.stats, each)


def _generation(speculator: Speculator, request: TaskRequest, sampling: TaskSampling) -> Generation:
    if request.forced is not None:
        return make_forced_request(speculator, request.prompt, request.forced.tolist())
    return speculator.prepare(
        request.prompt.tolist(),
        max_new_tokens=request.max_new_tokens,
        temperature=sampling.temperature,
        seed=sampling.seed if sampling.temperature else None,
    )
