"""The order of play, what is compared, and going on after an interruption."""

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
from speculant.bench.suite.rows import Row, RowFile
from speculant.bench.suite.runner import Contest
from speculant.bench.suite.tasks import Request, Sampling, Task, recorded_task
from speculant.bench.systems.selection import line_up, named_methods
from speculant.bench.systems.system import Contestant, Outcome, Own
from speculant.core.errors import SpeculantError

TEXT = [7, 8, 9, 10] * 3
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a random model."""
    return tiny_model("llama")


def plain(model: Any) -> Speculator:
    return Speculator.from_transformers(model, method="none", fast=False)


def contest(model: Any, methods: str = "mix,hf:generate", tasks: Sequence[Task] = (), **changes: Any) -> Contest:
    names = named_methods(methods, forced=True, assisted=False)
    return Contest(
        tasks=tasks or [recorded_task(name, [recording(TEXT, prompt=[3, i]) for i in range(2)], 256) for name in "ab"],
        contestants=changes.pop("contestants", None)
        or line_up(names, model, assistant=None, nodes=8, memory_limit=LIMIT, fast=None),
        plain=plain(model),
        samplings=[Sampling()],
        trials=2,
        **changes,
    )


def counts(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without what the clock said."""
    still = {"seconds": 0.0, "prefill_seconds": 0.0, "draft_seconds": None, "target_seconds": None}
    return [replace(row, **still) for row in rows]


def test_everything_is_played_in_order(model: Any, tmp_path: Path) -> None:
    """Plain decoding first on every request, trial by trial; memory begins empty with each and grows within it."""
    whole, told = contest(model), list[int]()
    file = RowFile(tmp_path, {})
    whole.warm_up()
    assert whole.left(file) == whole.plays == 8
    whole.play(file, told.append)
    assert sum(told) == 8
    assert whole.left(file) == 0
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
def test_an_interrupted_run_goes_on(after: int, model: Any, tmp_path: Path) -> None:
    """Wherever it ends, what is played afterwards is what would have been played, with what was learned by then."""

    def interrupt(items: int) -> None:
        nonlocal after
        after -= items
        if not after:
            raise KeyboardInterrupt

    whole, file = RowFile(tmp_path / "whole", {}), RowFile(tmp_path / "parts", {})
    contest(model, "mix").play(whole, lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        contest(model, "mix").play(file, interrupt)
    again = RowFile(tmp_path / "parts", {})
    assert 0 < len(again.rows) < len(whole.rows)
    contest(model, "mix").play(again, lambda _: None)
    assert counts(again.rows) == counts(whole.rows)


class Wrong(Own):
    """Says something else from the sixth token on."""

    name = "wrong"

    def play(self, request: Request, sampling: Sampling) -> Outcome:
        """Answer."""
        outcome = super().play(request, sampling)
        return replace(outcome, ids=[*outcome.ids[:5], *((token + 1) % 50 for token in outcome.ids[5:])])


def test_a_difference_is_found_and_judged(model: Any, tmp_path: Path) -> None:
    """Where it is, and by how much the plain model would have preferred its own."""
    free = replace_forced(recorded_task("a", [recording(TEXT)], 256))
    players: list[Contestant] = [kind("none", lambda: plain(model)) for kind in (Own, Wrong)]
    file = RowFile(tmp_path, {})
    contest(model, tasks=[free], contestants=players).play(file, lambda _: None)
    right, wrong = file.rows[:2]
    assert right.identical
    assert wrong.divergence is not None
    assert wrong.divergence.position == 6
    assert wrong.divergence.margin is not None
    assert wrong.divergence.margin > 0
    assert not wrong.divergence.near_tie


class Free:
    """An item whose text is the model's own."""

    category = "c"

    def request(self, answers: Sequence[Sequence[int]]) -> Request | None:
        """Return its one request."""
        return None if answers else Request(recording([1], prompt=[3, 4]).prompt, 12)


def replace_forced(task: Task) -> Task:
    return replace(task, items=[Free()])


@pytest.mark.parametrize(
    ("names", "message"),
    [("mxi", "Did you mean 'mix'"), (" ,", "no method"), ("hf:x", "hf:generate"), ("hf:assisted", "--assistant")],
)
def test_methods_are_checked_by_name(names: str, message: str) -> None:
    """Misspelled ones end the run before a model is loaded; plain decoding is always there, once."""
    with pytest.raises(SpeculantError, match=message):
        named_methods(names, forced=False, assisted=False)
    assert named_methods("mix,none, mix", forced=True, assisted=False) == ["none", "mix"]


def test_batches_are_played_in_groups(model: Any, tmp_path: Path) -> None:
    """One row per group and method of our own, with the counts of all its requests; an interrupted run goes on."""
    recordings = [recording(TEXT[: 4 + i], prompt=[3, i]) for i in range(20)]
    whole = contest(model, tasks=[recorded_task("a", recordings, 256)], batches=[1, 2])
    file = RowFile(tmp_path, {})
    assert whole.left(file) == whole.plays == 2 * 2 * 20
    whole.play(file, lambda _: None)
    rows = [row for row in file.rows if row.batch == 2]
    assert [(row.trial, row.method, row.item, row.requests) for row in rows] == [
        (trial, method, item, requests)
        for trial in range(2)
        for item, requests in ((15, 16), (19, 4))
        for method in ("none", "mix")
    ]
    alone = [row for row in file.rows if row.batch == 1 and row.method == "none" and row.trial == 0]
    assert sum(row.tokens for row in rows[::2]) == 2 * sum(row.tokens for row in alone)
    assert sum(row.rounds for row in rows[::2]) == 2 * sum(row.rounds for row in alone)
    assert all(row.identical and row.prefill_tokens == row.requests for row in rows)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join(lines[:-1]))
    again = RowFile(tmp_path, {})
    assert whole.left(again) == 4


def test_the_turns_of_a_batch_build_on_plain_answers(model: Any, tmp_path: Path) -> None:
    """A later turn takes a seat when the one before has ended, and every method is asked the same."""

    class Turns:
        category = "c"

        def request(self, answers: Sequence[Sequence[int]]) -> Request | None:
            said = [token for answer in answers for token in answer]
            return Request(np.array([3, 4, *said], np.int32), 5) if len(answers) < 3 else None

    whole = contest(model, methods="mix", tasks=[Task("t", [Turns()] * 3)], batches=[2])
    file = RowFile(tmp_path, {})
    whole.play(file, lambda _: None)
    assert {(row.method, row.requests, row.identical) for row in file.rows} == {("none", 9, True), ("mix", 9, True)}
    assert len({row.prompt_tokens for row in file.rows}) == 1
