"""Small models for the commands to load, each loaded once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from models import tiny_model
from speculant.api import loading
from speculant.api.loading import load_tokenizer
from speculant.bench.report import charts
from speculant.cli.main import main


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a random model of 48 positions, with the bundled tokenizer but no chat template."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = load_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    tiny_model("llama", vocab_size=4096, max_position_embeddings=48).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def loaded() -> dict[Any, Any]:
    """Return the models that were loaded so far, by how they were."""
    return {}


@pytest.fixture(autouse=True)
def models_loaded_once(loaded: dict[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands share the bundled model, which they do not change."""
    load = loading.load_model

    def cached(name: str | None = None, **options: Any) -> Any:
        if name is not None:
            return load(name, **options)
        key = tuple(sorted(options.items(), key=str))
        if key not in loaded:
            loaded[key] = load(name, **options)
        return loaded[key]

    monkeypatch.setattr("speculant.api.loading.load_model", cached)
    monkeypatch.setattr("speculant.api.speculator.load_model", cached)
    monkeypatch.setattr("speculant.cli.loading.load_model", cached)


@pytest.fixture(autouse=True)
def silent_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print no progress, however slow the machine is and whatever has to be compiled."""
    monkeypatch.setattr("speculant.cli.heartbeat.FIRST", 1e6)
    monkeypatch.setattr("speculant.cli.compiling.say", lambda _: None)


@pytest.fixture(autouse=True)
def threads_kept() -> Iterator[None]:
    """Undo what a command made of the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write pages without charts, which take longer than the run; some runs and the tests of reports draw them."""
    monkeypatch.setattr(charts, "_svg", lambda _figure, _label: "<svg></svg>")


@pytest.fixture
def two_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare two runs of each kind instead of five."""
    monkeypatch.setattr("speculant.cli.comparison.PAIRS", 2)


@pytest.fixture
def record(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return what runs `generate` and returns its record."""

    def run(*argv: str) -> Any:
        assert main(["generate", *argv, "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return run
