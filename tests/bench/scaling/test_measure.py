"""How the cost of a round is measured as text and draft grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from architecture_matrix.catalogue import build, names
from models import SHAPE, tiny_model
from speculant.api.speculator import Speculator
from speculant.bench.report.scaling_section import scaling_section
from speculant.bench.report.scaling_table import scaling_findings, scaling_table
from speculant.bench.scaling.measure import FEW_NODES, NODES, clock_of, lengths_of, measure_scaling
from speculant.cli.main import main
from speculant.core.errors import UsageError
from speculant.engines.hf.engine import HFEngine

POSITIONS = 1024


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a random model."""
    return tiny_model("llama", max_position_embeddings=POSITIONS)


@pytest.fixture(scope="module")
def scaling(model: Any) -> dict[str, Any]:
    """Return what two repeats give."""
    return measure_scaling(lambda: Speculator.from_transformers(model), repeats=2)


@pytest.mark.parametrize(
    ("positions", "lengths"),
    [
        (None, [512, 1024, 2048, 4096, 8192]),
        (8192, [512, 1024, 2048, 4096, 7935]),
        (1300, [512, 1024]),
        (POSITIONS, [512, 767]),
    ],
)
def test_lengths(positions: int | None, lengths: list[int]) -> None:
    """Lengths double, and the last leaves room for the largest draft."""
    assert lengths_of(positions) == lengths


def test_a_model_with_too_few_positions() -> None:
    """It is refused with a way out."""
    with pytest.raises(UsageError, match=r"has 800 positions.*Leave --growth out"):
        lengths_of(800)


def test_all_sizes_are_measured(scaling: dict[str, Any]) -> None:
    """Every size at the shortest length, a few at all; drafts have the requested nodes, and the parts add up."""
    rounds = scaling["rounds"]
    assert [(each["prefix"], each["nodes"]) for each in rounds] == [
        *((512, nodes) for nodes in NODES),
        *((767, nodes) for nodes in FEW_NODES),
    ]
    for each in rounds:
        assert each["nodes"] / 2 <= each["drafted"] <= each["nodes"]
        assert 0 < each["attention_seconds"] < each["pass_seconds"]
        assert 0 < each["rest_seconds"] < each["pass_seconds"]
        assert each["draft_seconds"] > 0
    per_token = (
        2 * 4 * SHAPE["num_hidden_layers"] * SHAPE["num_key_value_heads"] * 8
    )  # bytes of a token's keys and values
    for each in scaling["prefixes"]:
        assert each["cache_bytes"] % per_token == 0
        assert (
            each["prefix"] + NODES[-1] * (each["prefix"] == 512) < each["cache_bytes"] / per_token <= 3 * each["prefix"]
        )
        assert min(each["prefill_seconds"], each["learn_seconds"], each["drafter_bytes"]) > 0


def test_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single thread is timed by its CPU time; with several threads only wall time counts all of them."""
    device = torch.device("cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert clock_of(device)[0] == "cpu"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert clock_of(device)[0] == "wall"


def test_passes_are_rolled_back(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sizes see the same text."""
    lengths, forward = set[int](), HFEngine.forward

    def noted(engine: HFEngine, batch: Any, *rest: Any) -> Any:
        lengths.update(cache.length for cache, _, _ in batch)
        return forward(engine, batch, *rest)

    monkeypatch.setattr(HFEngine, "forward", noted)
    measure_scaling(lambda: Speculator.from_transformers(model, method="lookup"), repeats=1)
    assert lengths == {512, 767}


def test_the_model_s_attention_is_its_own_again(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a pass fails while its attention is timed."""
    plain, calls = ALL_ATTENTION_FUNCTIONS["sdpa"], list[int]()

    def interrupted(self: Any, *given: Any) -> Any:
        if ALL_ATTENTION_FUNCTIONS["sdpa"] is not plain:
            calls.append(1)
            raise KeyboardInterrupt
        return forward(self, *given)

    forward = HFEngine.forward
    monkeypatch.setattr(HFEngine, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure_scaling(lambda: Speculator.from_transformers(model), repeats=1)
    assert calls == [1]
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is plain


def test_attention_that_cannot_be_separated() -> None:
    """Eager attention is part of each model's own code; then it is left out, and the rest is shown."""
    model = tiny_model("llama", "eager", max_position_embeddings=POSITIONS)
    found = measure_scaling(lambda: Speculator.from_transformers(model, method="lookup"), repeats=1)
    assert {each["attention_seconds"] for each in found["rounds"]} == {None}
    assert all("attention" not in sentence for sentence in scaling_findings(found))
    assert scaling_table(found)[1][3:5] == ("-", "-")
    assert all("<svg" in chart.svg for chart in scaling_section(found).charts)


@pytest.fixture
def shape(tmp_path: Path) -> list[str]:
    """Return the arguments of a small shape."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(SHAPE | {"model_type": "llama", "max_position_embeddings": POSITIONS}))
    return ["bench", "--config", str(config), "--growth", "--device", "cpu", "--out", str(tmp_path / "out")]


def test_the_command(shape: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scaling alone needs no task; all reports have it."""
    assert main(shape) == 0
    assert "From 512 to 767 tokens" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert found["methods"] == []
    assert found["growth"]["drafter"] == "mix"
    assert found["labels"] == ["random weights"]
    for name in ("table.md", "report.html"):
        assert "How cost scales" in (tmp_path / "out" / name).read_text()


def test_beside_a_task(shape: list[str], tmp_path: Path) -> None:
    """A run may have both."""
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"prompt_ids": [1, 5], "output_ids": [4, 5, 6, 4, 5]}\n')
    assert main([*shape, "--forced", str(trace), "--methods", "lookup"]) == 0
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [row["method"] for row in found["methods"]] == ["none", "lookup"]
    assert found["growth"]["drafter"] == "lookup"
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.index("Speed-up over") < page.index("How cost scales")


def test_a_model_too_short_is_refused_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is decoded and no folder is made."""
    assert main(["bench", "--growth", "--config", str(write_short(tmp_path)), "--out", str(tmp_path / "out")]) == 2
    assert "64 positions" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def write_short(folder: Path) -> Path:
    """Return the config of a shape with hardly any positions."""
    config = folder / "short.json"
    config.write_text(json.dumps(SHAPE | {"model_type": "llama", "max_position_embeddings": 64}))
    return config


def test_texts_repeat(scaling: dict[str, Any]) -> None:
    """Otherwise drafts would be smaller than requested and cost less."""
    drafted = np.array([each["drafted"] / each["nodes"] for each in scaling["rounds"] if each["nodes"]])
    assert drafted.min() > 0.8


def test_a_model_with_states() -> None:
    """Guards that the bytes of states count, which do not grow with the text as rows do."""
    if "qwen3_5_text" not in names():
        pytest.skip("this release of transformers has no such class")
    model = build("qwen3_5_text", "eager", positions=POSITIONS)
    found = measure_scaling(lambda: Speculator.from_transformers(model, fast=False), repeats=1)
    first, *_, last = (each["cache_bytes"] for each in found["prefixes"])
    assert 0 < first < last
