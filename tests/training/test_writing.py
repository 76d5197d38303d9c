"""Texts that a target writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import deep_model
from speculant.core.errors import FileError, OutOfMemoryError, UsageError
from speculant.training.continuing import TokenPrompt, continue_texts
from speculant.training.shards import read_manifest, read_shard, shard_files
from speculant.training.writing import Drawing, WritingSettings, write_texts
from trainings import tiny_identity

PROMPTS = [[3 + i, 5, 7 + i][: 1 + i % 3] for i in range(10)]
SETTINGS = WritingSettings(texts=24, rows=4, new_tokens=10, seed=1)


def written(out: Path, settings: WritingSettings = SETTINGS, prompts: Any = PROMPTS, model: Any = None) -> Any:
    """Write texts with a tiny model."""
    model = model or deep_model("llama")
    return write_texts(model, prompts, out, settings, tiny_identity(model))


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_greedy_texts_are_those_of_generate(name: str) -> None:
    """Guards padding, positions, ends of texts, and the removal of rows that have ended."""
    model = deep_model(name)
    model.generation_config.eos_token_id = model.config.eos_token_id = [2, 11, 17, 23, 29, 31, 37, 41, 43]
    prompts = [list(range(3, 3 + n)) for n in (2, 5, 3, 7, 1, 4)]
    texts = continue_texts(model, [TokenPrompt(ids, 0.0) for ids in prompts], new_tokens=30, seed=[0])
    for row, ids in enumerate(prompts):
        wanted = model.generate(torch.tensor([ids]), max_new_tokens=30, do_sample=False)[0].tolist()
        assert texts[row].tolist() == wanted
        assert texts.prompts[row] == len(ids)


def test_sampled_texts_follow_the_temperature() -> None:
    """Guards the temperature of each row: a low one follows the greedy text, a high one leaves it."""
    model = deep_model("llama")
    rows = [TokenPrompt([5, 6], heat) for heat in (0.0, 1e-4, 50.0)]
    greedy, cold, hot = (continue_texts(model, rows, new_tokens=20, seed=[3])[row].tolist() for row in range(3))
    assert greedy == cold
    assert greedy != hot


def test_an_interrupted_run_goes_on_to_the_same_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards resuming: shards that are there stay, the others are as they would have been."""
    found = written(tmp_path / "whole")
    assert (found.shards, found.found) == (6, 0)

    def interrupted(*arguments: Any, seed: Any, **options: Any) -> Any:
        if seed[1] == 3:
            raise KeyboardInterrupt
        return continue_texts(*arguments, seed=seed, **options)

    with monkeypatch.context() as patch:
        patch.setattr("speculant.training.writing.continue_texts", interrupted)
        with pytest.raises(KeyboardInterrupt):
            written(tmp_path / "parts")
    again = written(tmp_path / "parts")
    assert (again.shards, again.found) == (3, 3)
    for one, other in zip(shard_files(tmp_path / "whole"), shard_files(tmp_path / "parts"), strict=True):
        assert read_shard(one, 61).digest() == read_shard(other, 61).digest()


def test_more_texts_leave_the_first_ones_as_they_are(tmp_path: Path) -> None:
    """Guards adding to a folder."""
    written(tmp_path, replace(SETTINGS, texts=8))
    before = [read_shard(path, 61).digest() for path in shard_files(tmp_path)]
    written(tmp_path, replace(SETTINGS, texts=16))
    after = [read_shard(path, 61).digest() for path in shard_files(tmp_path)]
    assert after[:2] == before
    assert len(after) == 4
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest["shards"] == 4


def test_every_prompt_comes_once_before_any_comes_again() -> None:
    """Guards the choice of prompts, and greedy texts, which would come out the same again."""
    settings = replace(SETTINGS, rows=5, temperatures=((0.5, 0.0), (0.5, 1.0)))
    drawing = Drawing(PROMPTS, settings)
    drawn = [prompt for number in range(16) for prompt in drawing.shard(number)]
    starts = [tuple(prompt.ids) for prompt in drawn]
    assert {starts.count(tuple(prompt)) for prompt in PROMPTS} == {8}
    assert 0 < sum(prompt.temperature == 0 for prompt in drawn) <= len(PROMPTS)


def test_openings_are_the_first_tokens_of_prompts(tmp_path: Path) -> None:
    """Guards --opening."""
    prompts = [list(range(3, 40))]
    written(tmp_path, replace(SETTINGS, opening=(2, 5)), prompts)
    given = np.concatenate([read_shard(path, 61).prompts for path in shard_files(tmp_path)])
    assert set(given.tolist()) == {2, 3, 4, 5}
    shard = read_shard(shard_files(tmp_path)[0], 61)
    assert shard[0][: shard.prompts[0]].tolist() == prompts[0][: shard.prompts[0]]


def test_folders_of_other_texts_are_refused(tmp_path: Path) -> None:
    """Guards against texts of two targets, prompts or settings in one folder, and against users' files."""
    written(tmp_path / "texts")
    with pytest.raises(UsageError, match="other target"):
        written(tmp_path / "texts", model=deep_model("llama", num_hidden_layers=2))
    with pytest.raises(UsageError, match="other prompts"):
        written(tmp_path / "texts", prompts=PROMPTS[1:])
    with pytest.raises(UsageError, match="other settings"):
        written(tmp_path / "texts", replace(SETTINGS, seed=9))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="other files"):
        written(tmp_path / "mine")
    with pytest.raises(UsageError, match="no prompts"):
        written(tmp_path / "none", prompts=[])


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    """Guards against a manifest that was cut off."""
    written(tmp_path)
    (tmp_path / "data.json").write_text(json.dumps({"target": 3}))
    with pytest.raises(FileError, match=r"data\.json"):
        written(tmp_path)


def test_a_full_device_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards memory that runs out while writing."""

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("speculant.training.continuing._run", full)
    with pytest.raises(OutOfMemoryError, match="--rows"):
        written(tmp_path)
