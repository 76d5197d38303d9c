"""A model answers prompts until there is enough."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from speculant import Speculator
from speculant.api.batch import Batch
from speculant.core.errors import PromptError
from speculant.corpus.answering import AnsweringSettings, answer_prompts, fitting_prompts
from speculant.corpus.answers import AnswerFile

SETTINGS = AnsweringSettings(
    tokens=48, seconds=None, batch=2, repeat=True, seed=3, options={"max_new_tokens": 8, "temperature": 0.8}
)


@pytest.fixture(scope="module")
def speculator() -> Speculator:
    return Speculator.from_pretrained()


@pytest.fixture(scope="module")
def prompts(speculator: Speculator) -> list[list[int]]:
    return [speculator.tokenizer(text)["input_ids"] for text in ("Once upon a time", "The dog", "One day")]


def run(speculator: Speculator, prompts: list[list[int]], path: Path, settings: AnsweringSettings) -> list[dict]:  # type: ignore[type-arg]
    file = AnswerFile(path, tokenizer="t")
    try:
        answer_prompts(speculator, prompts, file, settings, advance=lambda _: None)
    finally:
        file.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_are_the_models_own(speculator: Speculator, prompts: list[list[int]], tmp_path: Path) -> None:
    """Each is what the model writes with the seed of its place; prompts come again with other answers."""
    rows = run(speculator, prompts, tmp_path / "a.jsonl", SETTINGS)
    assert sum(len(row["output_ids"]) for row in rows) >= 48
    assert sorted(row["place"] for row in rows) == list(range(len(rows)))
    plain = Speculator.from_pretrained(method="none")
    for row in rows:
        alone = plain.generate(row["prompt_ids"], seed=3 + row["place"], **SETTINGS.options).ids
        assert row["output_ids"] == alone[: len(row["output_ids"])]
    firsts = [row["output_ids"] for row in rows if row["prompt_ids"] == prompts[0]]
    assert len(firsts) > 1
    assert firsts[0] != firsts[1]
    assert {tuple(row["prompt_ids"]) for row in rows if row["place"] < 3} == set(map(tuple, prompts))


def test_it_goes_on_after_an_interrupt(
    speculator: Speculator, prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not finished is kept, and the next run asks what was not asked."""
    path, step, steps = tmp_path / "a.jsonl", Batch.step, 0

    def interrupted(batch: Batch) -> object:
        nonlocal steps
        steps += 1
        if steps == 4:
            raise KeyboardInterrupt
        return step(batch)

    monkeypatch.setattr(Batch, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(speculator, prompts, path, SETTINGS)
    before = path.read_text()
    assert 0 < len(before.splitlines()) < 4
    rows = run(speculator, prompts, path, SETTINGS)
    assert path.read_text().startswith(before)
    assert sorted(row["place"] for row in rows) == list(range(len(rows)))


def test_greedy_answers_come_once(speculator: Speculator, prompts: list[list[int]], tmp_path: Path) -> None:
    """Repeated they would be the same."""
    settings = replace(SETTINGS, repeat=False, options={"max_new_tokens": 3, "temperature": 0})
    rows = run(speculator, prompts, tmp_path / "a.jsonl", settings)
    assert sorted(tuple(row["prompt_ids"]) for row in rows) == sorted(map(tuple, prompts))
    assert run(speculator, prompts, tmp_path / "a.jsonl", settings) == rows


def test_time_ends_it(speculator: Speculator, prompts: list[list[int]], tmp_path: Path) -> None:
    """With seconds the number of tokens is whatever was written."""
    ticks = iter(range(100))
    file = AnswerFile(tmp_path / "a.jsonl", tokenizer="t")
    settings = replace(SETTINGS, tokens=None, seconds=5.0)
    answer_prompts(speculator, prompts, file, settings, advance=lambda _: None, clock=lambda: next(ticks))
    file.close()
    assert next(ticks) == 6
    assert 2 <= file.rows <= 6


def test_long_prompts_are_left_out() -> None:
    """An answer needs room."""
    assert fitting_prompts([[1] * 6, [1] * 5, []], 10) == [[1] * 5]
    with pytest.raises(PromptError, match="every prompt"):
        fitting_prompts([[1] * 6], 10)
