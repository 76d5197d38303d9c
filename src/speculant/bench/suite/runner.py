"""Runs a benchmark: plain decoding first, then every other system, request by request.

All systems decode each request in turn, so that a temporary slowdown of the machine affects all of them. Memory is
empty at the start of each task and trial, and kept within it. After each item it is written next to the rows, from
where an interrupted run resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch

from speculant.api.speculator import Speculator
from speculant.bench.suite.batched import Answers
from speculant.bench.suite.checkpoint import MemoryCheckpoint
from speculant.bench.suite.estimate import Rate, RunProgress, TimeEstimate
from speculant.bench.suite.margins import margins
from speculant.bench.suite.rows import Divergence, ResultRow, RowFile
from speculant.bench.suite.tasks import Task, TaskItem, TaskRequest, TaskSampling
from speculant.bench.systems.system import SpeculantSystem, System

WARM_UP_TOKENS = 8
SHORT_WARM_UP_SECONDS = 2.0
GROUP = 8  # items per group, for each request in a pass


@dataclass(frozen=True, slots=True, eq=False)
class RunPart:
    """Items that share a memory: a task under one sampling, trial and batch size."""

    task: Task
    sampling: TaskSampling
    trial: int
    batch: int


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs every system on every item.

    Attributes:
        tasks: tasks in the order of the run.
        systems: plain decoding first.
        plain: a speculator with method `none` and transformers' own passes, which judges differing outputs.
        samplings: ways to choose tokens, run in sequence.
        trials: number of repetitions.
        batches: maximum requests per pass, run in sequence; above 1 only Speculant's own methods are run.
        estimate: estimate of the time left.
    """

    tasks: Sequence[Task]
    systems: Sequence[System]
    plain: Speculator
    samplings: Sequence[TaskSampling]
    trials: int
    batches: Sequence[int] = (1,)
    estimate: TimeEstimate = field(default_factory=TimeEstimate)

    @property
    def total_items(self) -> int:
        """The number of items to run, over all samplings, trials and batch sizes."""
        return sum(len(part.task.items) for part in self._parts())

    def remaining_items(self, file: RowFile) -> int:
        """Return how many items are not in the file yet."""
        return sum(len(part.task.items) - _is_finished(file, part) for part in self._parts())

    def estimate_seconds(self, file: RowFile) -> float | None:
        """Return an estimate of the seconds that the remaining items take; None before `warm_up` or a finished item."""
        left = [(part.task.items[_is_finished(file, part) :], part.batch) for part in self._parts()]
        return self.estimate.seconds(left)

    def warm_up(self) -> None:
        """Let every system decode the start of a request and measure it; the results are discarded."""
        request = self.tasks[0].items[0].request([])
        assert request is not None  # every item of a task has a first request
        tokens = min(request.max_new_tokens, WARM_UP_TOKENS)
        forced = None if request.forced is None else request.forced[:tokens]
        short = replace(request, max_new_tokens=tokens, forced=forced)
        rates = []
        for system in self.systems:
            system.warm_up()
            outcome = system.run(short, self.samplings[0])
            if outcome.seconds < SHORT_WARM_UP_SECONDS:  # the first run may have included compilation
                outcome = system.run(short, self.samplings[0])
            rates.append(Rate.measure(outcome, len(request.prompt), batched=isinstance(system, SpeculantSystem)))
            system.reset()
        self.estimate.calibrate(rates)

    def run(self, file: RowFile, progress: Callable[[RunProgress], object] = lambda _: None) -> None:
        """Run the items that are not in the file yet.

        Args:
            file: where rows are appended.
            progress: called at the start and after each item or group of items.
        """
        total = self.total_items
        progress(RunProgress(total - self.remaining_items(file), total, self.estimate_seconds(file)))
        for part in self._parts():
            for items, seconds in self._run_part(part, file):
                self.estimate.finish(items, part.batch, seconds)
                progress(RunProgress(total - self.remaining_items(file), total, self.estimate_seconds(file)))

    def _parts(self) -> Iterator[RunPart]:
        for batch in self.batches:
            for sampling in self.samplings:
                for task in self.tasks:
                    for trial in range(self.trials):
                        yield RunPart(task, sampling, trial, batch)

    def _run_part(self, part: RunPart, file: RowFile) -> Iterator[tuple[Sequence[TaskItem], float]]:
        """Run the remaining items; yield each group of items with its seconds after its rows are written."""
        items = part.task.items
        begin = _is_finished(file, part)
        if begin == len(items):
            return
        checkpoint = MemoryCheckpoint(file.folder / "memory", [each for each in self.systems if each.has_memory])
        for system in self.systems:
            system.reset()
        if begin:
            checkpoint.load(begin)
        while begin < len(items):
            end = begin + 1 if part.batch == 1 else min(begin + GROUP * part.batch, len(items))
            start = time.perf_counter()
            rows = self._run_item(part, begin) if part.batch == 1 else self._run_group(part, range(begin, end))
            seconds = time.perf_counter() - start
            if end < len(items):
                checkpoint.save(end)
            file.append(rows)
            checkpoint.remove(begin)
            yield items[begin:end], seconds
            begin = end
        checkpoint.close()

    def _run_group(self, part: RunPart, numbers: range) -> list[ResultRow]:
        items = [part.task.items[number] for number in numbers]
        rows, plain = list[ResultRow](), None
        categories = {item.category for item in items}
        category = categories.pop() if len(categories) == 1 else "all"
        for system in self.systems:
            if not isinstance(system, SpeculantSystem):
                continue
            _reset_peak(self.plain.model)
            found = system.run_batch(items, part.sampling, size=part.batch, plain_answers=plain)
            plain = plain or found.answers
            exact = system.token_identical(part.sampling)
            divergence = self._first_divergence(items, plain, found.answers, part.sampling) if exact else None
            rows.append(
                ResultRow(
                    task=part.task.name,
                    category=category,
                    item=numbers[-1],
                    turn=0,
                    temperature=part.sampling.temperature,
                    trial=part.trial,
                    method=system.name,
                    prompt_tokens=found.prompt_tokens,
                    tokens=found.stats.tokens,
                    prefill_tokens=len(found.each),
                    rounds=found.stats.sequences,
                    drafted=found.stats.drafted,
                    offered_by_depth=_sums([stats.offered_by_depth for stats in found.each]),
                    accepted_by_depth=_sums([stats.accepted_by_depth for stats in found.each]),
                    seconds=found.stats.seconds,
                    prefill_seconds=found.stats.prefill_seconds,
                    draft_seconds=found.stats.draft_seconds,
                    target_seconds=found.stats.target_seconds,
                    memory_bytes=system.memory_bytes,
                    device_bytes=_peak(self.plain.model),
                    identical=divergence is None if exact else None,
                    divergence=divergence,
                    batch=part.batch,
                    requests=len(found.each),
                )
            )
        return rows

    def _first_divergence(
        self, items: Sequence[TaskItem], plain: Answers, answers: Answers, sampling: TaskSampling
    ) -> Divergence | None:
        for item, expected, found in zip(items, plain, answers, strict=True):
            for turn, (one, other) in enumerate(zip(expected, found, strict=True)):
                request = item.request(expected[:turn])
                if one != other and request is not None:
                    return self._divergence(request, one, other, sampling)
        return None

    def _run_item(self, part: RunPart, number: int) -> list[ResultRow]:
        item, sampling = part.task.items[number], part.sampling
        rows, answers = list[ResultRow](), list[list[int]]()
        while (request := item.request(answers)) is not None:
            expected: list[int] = []
            for system in self.systems:
                _reset_peak(self.plain.model)
                outcome = system.run(request, sampling)
                expected = expected or outcome.ids
                identical = outcome.ids == expected if system.token_identical(sampling) else None
                rows.append(
                    ResultRow(
                        task=part.task.name,
                        category=item.category,
                        item=number,
                        turn=len(answers),
                        temperature=sampling.temperature,
                        trial=part.trial,
                        method=system.name,
                        prompt_tokens=len(request.prompt),
                        tokens=len(outcome.ids),
                        prefill_tokens=outcome.prefill_tokens,
                        rounds=outcome.rounds,
                        drafted=outcome.drafted,
                        offered_by_depth=outcome.offered_by_depth,
                        accepted_by_depth=outcome.accepted_by_depth,
                        seconds=outcome.seconds,
                        prefill_seconds=outcome.prefill_seconds,
                        draft_seconds=outcome.draft_seconds,
                        target_seconds=outcome.target_seconds,
                        memory_bytes=outcome.memory_bytes,
                        device_bytes=_peak(self.plain.model),
                        identical=identical,
                        divergence=self._divergence(request, expected, outcome.ids, sampling)
                        if identical is False
                        else None,
                    )
                )
            answers.append(expected)
        return rows

    def _divergence(
        self, request: TaskRequest, expected: list[int], ids: list[int], sampling: TaskSampling
    ) -> Divergence:
        shared = zip(expected, ids, strict=False)
        place = next((i for i, (one, other) in enumerate(shared) if one != other), min(len(expected), len(ids)))
        if sampling.temperature or place >= min(len(expected), len(ids)):
            return Divergence(place + 1, None, None)
        margin = margins(self.plain, request.prompt, ids[: place + 1])[-1]
        return Divergence(place + 1, margin.value, margin.near_tie)


def _is_finished(file: RowFile, part: RunPart) -> int:
    return file.finished_items(part.task.name, part.sampling.temperature, part.trial, part.batch)


def _sums(counts: Sequence[Sequence[int]]) -> list[int]:
    """Return the position-wise sums of lists of different lengths."""
    return [sum(each) for each in zip_longest(*counts, fillvalue=0)]


def _reset_peak(model: Any) -> None:
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(model.device)


def _peak(model: Any) -> int | None:
    return torch.cuda.max_memory_allocated(model.device) if model.device.type == "cuda" else None
