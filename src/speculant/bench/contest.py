"""The benchmark's order of play: plain decoding first, then every other method, request by request.

All methods answer a request one after the other, so that a machine that slows down for a while slows all of them
down. Memory is empty at the start of each task and trial, and kept within it. After each item it is written beside
the rows, from where an interrupted run takes it up again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from speculant.bench.contestants import Contestant, Sampling
from speculant.bench.margins import margins
from speculant.bench.rows import Divergence, Row, RowFile
from speculant.bench.tasks import Request, Task
from speculant.speculator import Speculator

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Contest:
    """What is compared.

    Attributes:
        tasks: in the order of play.
        contestants: plain decoding first.
        plain: a speculator of method `none` with transformers' own passes, which judges outputs that differ.
        samplings: ways to choose tokens, one after the other.
        trials: how often everything is played.
    """

    tasks: Sequence[Task]
    contestants: Sequence[Contestant]
    plain: Speculator
    samplings: Sequence[Sampling]
    trials: int

    @property
    def plays(self) -> int:
        """How many items there are to play, over all trials."""
        return sum(len(task.items) for task in self.tasks) * len(self.samplings) * self.trials

    def left(self, file: RowFile) -> int:
        """Return how many of them are not in the file yet."""
        done = (
            file.items(task.name, sampling.temperature, trial)
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
        for sampling in self.samplings:
            for task in self.tasks:
                for trial in range(self.trials):
                    self._task(task, sampling, trial, file, advance)

    def _task(
        self, task: Task, sampling: Sampling, trial: int, file: RowFile, advance: Callable[[int], object]
    ) -> None:
        done = file.items(task.name, sampling.temperature, trial)
        advance(done)
        if done == len(task.items):
            return
        memory = _Memory(file.folder / "memory", [each for each in self.contestants if each.learns])
        for contestant in self.contestants:
            contestant.renew()
        if done:
            memory.load(done)
        for number in range(done, len(task.items)):
            rows = self._item(task, number, sampling, trial)
            if number + 1 < len(task.items):
                memory.save(number + 1)
            file.append(rows)
            memory.forget(number)
            advance(1)
        memory.clear()

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
