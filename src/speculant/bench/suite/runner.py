"""The benchmark's order of play: plain decoding first, then every other method, request by request.

All methods answer a request one after the other, so that a machine that slows down for a while slows all of them
down. Memory is empty at the start of each task and trial, and kept within it. After each item it is written beside
the rows, from where an interrupted run takes it up again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from speculant.api.speculator import Speculator
from speculant.bench.suite.margins import margins
from speculant.bench.suite.rows import Divergence, Row, RowFile
from speculant.bench.suite.tasks import Item, Request, Sampling, Task
from speculant.bench.suite.together import Answers
from speculant.bench.systems.system import Contestant, Own

WARM_UP_TOKENS = 8
GROUP = 8  # items of a group, by the size of the batch they go through


@dataclass(frozen=True, slots=True)
class Contest:
    """What is compared.

    Attributes:
        tasks: in the order of play.
        contestants: plain decoding first.
        plain: a speculator of method `none` with transformers' own passes, which judges outputs that differ.
        samplings: ways to choose tokens, one after the other.
        batches: how many requests a pass takes at most, one size after the other; above 1 our own methods alone play.
        trials: how often everything is played.
    """

    tasks: Sequence[Task]
    contestants: Sequence[Contestant]
    plain: Speculator
    samplings: Sequence[Sampling]
    trials: int
    batches: Sequence[int] = (1,)

    @property
    def plays(self) -> int:
        """How many items there are to play, over all trials."""
        return sum(len(task.items) for task in self.tasks) * len(self.samplings) * self.trials * len(self.batches)

    def left(self, file: RowFile) -> int:
        """Return how many of them are not in the file yet."""
        done = (
            file.items(task.name, sampling.temperature, trial, batch)
            for batch in self.batches
            for sampling in self.samplings
            for task in self.tasks
            for trial in range(self.trials)
        )
        return self.plays - sum(done)

    def warm_up(self) -> None:
        """Let every contestant answer the beginning of a request; nothing of it is kept."""
        request = self.tasks[0].items[0].request([])
        assert request is not None  # tasks hold none that cannot begin
        most = min(request.most, WARM_UP_TOKENS)
        forced = None if request.forced is None else request.forced[:most]
        for contestant in self.contestants:
            contestant.practise()
            contestant.play(replace(request, most=most, forced=forced), self.samplings[0])
            contestant.renew()

    def play(self, file: RowFile, advance: Callable[[int], object]) -> None:
        """Play what is not in the file yet; `advance` is told how many items were played or found there."""
        for batch in self.batches:
            for sampling in self.samplings:
                for task in self.tasks:
                    for trial in range(self.trials):
                        self._task(task, sampling, trial, batch, file, advance)

    def _task(
        self, task: Task, sampling: Sampling, trial: int, batch: int, file: RowFile, advance: Callable[[int], object]
    ) -> None:
        begin = file.items(task.name, sampling.temperature, trial, batch)
        advance(begin)
        if begin == len(task.items):
            return
        memory = _Memory(file.folder / "memory", [each for each in self.contestants if each.learns])
        for contestant in self.contestants:
            contestant.renew()
        if begin:
            memory.load(begin)
        while begin < len(task.items):
            end = begin + 1 if batch == 1 else min(begin + GROUP * batch, len(task.items))
            if batch == 1:
                rows = self._item(task, begin, sampling, trial)
            else:
                rows = self._group(task, range(begin, end), sampling, trial, batch)
            if end < len(task.items):
                memory.save(end)
            file.append(rows)
            memory.forget(begin)
            advance(end - begin)
            begin = end
        memory.clear()

    def _group(self, task: Task, numbers: range, sampling: Sampling, trial: int, batch: int) -> list[Row]:
        items, rows, plain = [task.items[number] for number in numbers], list[Row](), None
        categories = {item.category for item in items}
        for contestant in self.contestants:
            if not isinstance(contestant, Own):
                continue
            _reset_peak(self.plain.model)
            found = contestant.play_together(items, sampling, size=batch, said=plain)
            plain = plain or found.answers
            divergence = self._first_divergence(items, plain, found.answers, sampling)
            rows.append(
                Row(
                    task=task.name,
                    category=categories.pop() if len(categories) == 1 else "all",
                    item=numbers[-1],
                    turn=0,
                    temperature=sampling.temperature,
                    trial=trial,
                    method=contestant.name,
                    prompt_tokens=found.prompt_tokens,
                    tokens=found.stats.tokens,
                    prefill_tokens=len(found.each),
                    rounds=found.stats.sequences,
                    drafted=found.stats.drafted,
                    offered_by_depth=_added([stats.offered_by_depth for stats in found.each]),
                    accepted_by_depth=_added([stats.accepted_by_depth for stats in found.each]),
                    seconds=found.stats.seconds,
                    prefill_seconds=found.stats.prefill_seconds,
                    draft_seconds=found.stats.draft_seconds,
                    target_seconds=found.stats.target_seconds,
                    memory_bytes=contestant.memory_bytes,
                    device_bytes=_peak(self.plain.model),
                    identical=divergence is None,
                    divergence=divergence,
                    batch=batch,
                    requests=len(found.each),
                )
            )
        return rows

    def _first_divergence(
        self, items: Sequence[Item], plain: Answers, answers: Answers, sampling: Sampling
    ) -> Divergence | None:
        for item, expected, said in zip(items, plain, answers, strict=True):
            for turn, (one, other) in enumerate(zip(expected, said, strict=True)):
                request = item.request(expected[:turn])
                if one != other and request is not None:
                    return self._divergence(request, one, other, sampling)
        return None

    def _item(self, task: Task, number: int, sampling: Sampling, trial: int) -> list[Row]:
        item, rows, answers = task.items[number], list[Row](), list[list[int]]()
        while (request := item.request(answers)) is not None:
            expected: list[int] = []
            for contestant in self.contestants:
                _reset_peak(self.plain.model)
                outcome = contestant.play(request, sampling)
                expected = expected or outcome.ids
                identical = outcome.ids == expected if contestant.same_tokens(sampling) else None
                rows.append(
                    Row(
                        task=task.name,
                        category=item.category,
                        item=number,
                        turn=len(answers),
                        temperature=sampling.temperature,
                        trial=trial,
                        method=contestant.name,
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

    def _divergence(self, request: Request, expected: list[int], ids: list[int], sampling: Sampling) -> Divergence:
        shared = zip(expected, ids, strict=False)
        place = next((i for i, (one, other) in enumerate(shared) if one != other), min(len(expected), len(ids)))
        if sampling.temperature or place >= min(len(expected), len(ids)):
            return Divergence(place + 1, None, None)
        margin = margins(self.plain, request.prompt, ids[: place + 1])[-1]
        return Divergence(place + 1, margin.value, margin.near_tie)


def _added(counts: Sequence[Sequence[int]]) -> list[int]:
    """Return the sums place by place of lists of different lengths."""
    return [sum(each) for each in zip_longest(*counts, fillvalue=0)]


class _Memory:
    """What the contestants had learned after so many items, in files that a crash leaves whole."""

    def __init__(self, folder: Path, contestants: Sequence[Contestant]) -> None:
        self._folder, self._contestants = folder, contestants
        folder.mkdir(exist_ok=True)

    def save(self, items: int) -> None:
        for contestant in self._contestants:
            contestant.save(self._path(contestant, items))

    def load(self, items: int) -> None:
        for contestant in self._contestants:
            contestant.load(self._path(contestant, items))

    def forget(self, items: int) -> None:
        for contestant in self._contestants:
            self._path(contestant, items).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the folder, whose files have all been forgotten."""
        with contextlib.suppress(OSError):  # someone put something there
            self._folder.rmdir()

    def _path(self, contestant: Contestant, items: int) -> Path:
        return self._folder / f"{contestant.name}-{items}"


def _reset_peak(model: Any) -> None:
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(model.device)


def _peak(model: Any) -> int | None:
    return torch.cuda.max_memory_allocated(model.device) if model.device.type == "cuda" else None
