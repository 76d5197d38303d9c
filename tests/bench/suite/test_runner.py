"""The order of a run, what is compared, and resuming after an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import tiny_model
from scripted import recording
from speculant.api.speculator import Speculator
from speculant.bench.suite.estimate import RunProgress
from speculant.bench.suite.rows import ResultRow, RowFile
from speculant.bench.suite.runner import Runner
from speculant.bench.suite.tasks import Task, TaskRequest, TaskSampling, make_recorded_task
from speculant.bench.systems.selection import build_systems, parse_methods
from speculant.bench.systems.system import RequestOutcome, SpeculantSystem, System
from speculant.core.errors import SpeculantError

TEXT = [7, 8, 9, 10] * 3
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a random model."""
    return tiny_model("llama")


def plain(model: Any) -> Speculator:
    return Speculator.from_transformers(model, method="none", fast=False)


def runner(model: Any, methods: str = "mix,hf:generate", tasks: Sequence[Task] = (), **changes: Any) -> Runner:
    names = parse_methods(methods, forced=True, draft_model=False)
    return Runner(
        tasks=tasks
        or [make_recorded_task(name, [recording(TEXT, prompt=[3, i]) for i in range(2)], 256) for name in "ab"],
        systems=changes.pop("systems", None) or build_systems(names, model, nodes=8, memory_limit=LIMIT, fast=None),
        plain=plain(model),
        samplings=[TaskSampling()],
        trials=2,
        **changes,
    )


def untimed(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the rows without what a clock measured."""
    times = {"seconds": 0.0, "prefill_seconds": 0.0, "draft_seconds": None, "target_seconds": None}
    return [replace(row, **times) for row in rows]


def test_everything_is_run_in_order(model: Any, tmp_path: Path) -> None:
    """Plain decoding first on every request, trial by trial; memory is empty at each start and grows within it."""
    run, reports = runner(model), list[RunProgress]()
    file = RowFile(tmp_path, {})
    assert run.estimate_seconds(file) is None
    run.warm_up()
    assert (run.estimate_seconds(file) or 0) > 0
    assert run.remaining_items(file) == run.total_items == 8
    run.run(file, reports.append)
    assert [(each.done, each.total) for each in reports] == [(done, 8) for done in range(9)]
    assert all(each.seconds_left is not None and each.seconds_left > 0 for each in reports[:-1])
    assert reports[-1].seconds_left == 0
    assert run.remaining_items(file) == 0
    assert [(row.task, row.trial, row.item, row.method) for row in file.rows] == [
        (task, trial, item, method)
        for task in "ab"
        for trial in range(2)
        for item in range(2)
        for method in ("none", "mix", "hf:generate")
    ]
    rounds = [row.rounds for row in file.rows if row.method == "mix"]
    assert rounds == rounds[:2] * 4
    assert rounds[0] > rounds[1]
    assert all(row.identical for row in file.rows)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl"}


@pytest.mark.parametrize("after", [1, 2])
def test_an_interrupted_run_is_resumed(after: int, model: Any, tmp_path: Path) -> None:
    """Wherever it was interrupted, the rest runs as it would have, with the memory of that moment."""

    def interrupt(now: RunProgress) -> None:
        if now.done == after:
            raise KeyboardInterrupt

    complete, file = RowFile(tmp_path / "complete", {}), RowFile(tmp_path / "parts", {})
    runner(model, "mix").run(complete)
    with pytest.raises(KeyboardInterrupt):
        runner(model, "mix").run(file, interrupt)
    again = RowFile(tmp_path / "parts", {})
    assert 0 < len(again.rows) < len(complete.rows)
    runner(model, "mix").run(again)
    assert untimed(again.rows) == untimed(complete.rows)


class Wrong(SpeculantSystem):
    """Returns other tokens from the sixth on."""

    name = "wrong"

    def run(self, request: TaskRequest, sampling: TaskSampling) -> RequestOutcome:
        """Decode."""
        outcome = super().run(request, sampling)
        return replace(outcome, ids=[*outcome.ids[:5], *((token + 1) % 50 for token in outcome.ids[5:])])


def test_a_difference_is_found_and_judged(model: Any, tmp_path: Path) -> None:
    """Its position, and by how much the plain model would have preferred its own token."""
    free = replace(make_recorded_task("a", [recording(TEXT)], 256), items=[Free()])
    systems: list[System] = [kind("none", lambda: plain(model)) for kind in (SpeculantSystem, Wrong)]
    file = RowFile(tmp_path, {})
    runner(model, tasks=[free], systems=systems).run(file)
    right, wrong = file.rows[:2]
    assert right.identical
    assert wrong.divergence is not None
    assert wrong.divergence.position == 6
    assert wrong.divergence.margin is not None
    assert wrong.divergence.margin > 0
    assert not wrong.divergence.near_tie


class Free:
    """An item that is decoded freely."""

    category = "c"
    turns = 1

    def request(self, answers: Sequence[Sequence[int]]) -> TaskRequest | None:
        """Return its one request."""
        return None if answers else TaskRequest(recording([1], prompt=[3, 4]).prompt, 12)


@pytest.mark.parametrize(
    ("names", "message"),
    [("mxi", "Did you mean 'mix'"), (" ,", "no method"), ("hf:x", "hf:generate"), ("hf:assisted", "--draft-model")],
)
def test_methods_are_checked_by_name(names: str, message: str) -> None:
    """Misspelt names are refused before a model is loaded; plain decoding is always there, once."""
    with pytest.raises(SpeculantError, match=message):
        parse_methods(names, forced=False, draft_model=False)
    assert parse_methods("mix,none, mix", forced=True, draft_model=False) == ["none", "mix"]


def test_batches_are_run_in_groups(model: Any, tmp_path: Path) -> None:
    """One row per group and method of Speculant, with the counts of all its requests; an interrupted run resumes."""
    recordings = [recording(TEXT[: 4 + i % 4], prompt=[3, i]) for i in range(20)]
    run = runner(model, tasks=[make_recorded_task("a", recordings, 256)], batches=[1, 2])
    file = RowFile(tmp_path, {})
    assert run.remaining_items(file) == run.total_items == 2 * 2 * 20
    run.run(file)
    rows = [row for row in file.rows if row.batch == 2]
    assert [(row.trial, row.method, row.item, row.requests) for row in rows] == [
        (trial, method, item, requests)
        for trial in range(2)
        for item, requests in ((15, 16), (19, 4))
        for method in ("none", "mix")
    ]
    assert {row.category for row in rows} == {"a"}
    alone = [row for row in file.rows if row.batch == 1 and row.method == "none" and row.trial == 0]
    assert sum(row.tokens for row in rows[::2]) == 2 * sum(row.tokens for row in alone)
    assert sum(row.rounds for row in rows[::2]) == 2 * sum(row.rounds for row in alone)
    assert all(row.identical and row.prefill_tokens == row.requests for row in rows)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join(lines[:-1]))
    again = RowFile(tmp_path, {})
    assert run.remaining_items(again) == 4


def test_the_turns_of_a_batch_follow_plain_answers(model: Any, tmp_path: Path) -> None:
    """A later turn is admitted when the one before has ended, and every method gets the same prompts."""

    class Turns:
        category = "c"
        turns = 3

        def request(self, answers: Sequence[Sequence[int]]) -> TaskRequest | None:
            before = [token for answer in answers for token in answer]
            return TaskRequest(np.array([3, 4, *before], np.int32), 5) if len(answers) < 3 else None

    file = RowFile(tmp_path, {})
    runner(model, methods="mix", tasks=[Task("t", [Turns()] * 3)], batches=[2]).run(file)
    assert {(row.method, row.requests, row.identical) for row in file.rows} == {("none", 9, True), ("mix", 9, True)}
    assert len({row.prompt_tokens for row in file.rows}) == 1
