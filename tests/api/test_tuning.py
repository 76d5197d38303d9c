"""The measured step cost: a curve that sizing can read, kept apart for each model, dtype and device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from caches import use_empty_cache
from models import tiny_model
from speculant import Speculator
from speculant.api.tuning import measure_step_cost, step_cost_file, stored_step_cost
from speculant.cli.main import main
from speculant.core.errors import UsageError
from speculant.sizing.step_cost import read_step_cost


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_empty_cache(monkeypatch, tmp_path)


def test_every_size_is_timed(tmp_path: Path) -> None:
    """The curve begins at plain decoding, ends at the most nodes, and reads back as what replay and sizing take."""
    speculator = Speculator.from_transformers(tiny_model("llama"), method="none")
    curve = measure_step_cost(speculator.engine, maximum=10, prefixes=(4, 20), seconds=0.01)
    assert curve["nodes"] == [*range(11)]
    assert [found["prefix"] for found in curve["by_prefix"]] == [4, 20]
    assert all(found["rounds"] >= 3 for found in curve["by_prefix"])
    (tmp_path / "curve").write_text(json.dumps(curve))
    assert read_step_cost(tmp_path / "curve").seconds.tolist() == curve["seconds"]


def test_no_size_is_timed_in_the_wake_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the order: plain passes that always followed the largest draft seemed dearer than those of one node."""
    speculator, before = Speculator.from_transformers(tiny_model("llama"), method="none"), [0]

    def scripted(engine: Any, cache: Any, nodes: int) -> float:
        seconds = (
            1 + 0.1 * nodes + (0.05 * before[0] if before[0] > 2 * nodes + 8 else 0)
        )  # what it evicted is read anew
        before[0] = nodes
        return seconds

    monkeypatch.setattr("speculant.api.tuning._timed_pass", scripted)
    curve = measure_step_cost(speculator.engine, maximum=64, prefixes=(4,), seconds=1e-3)
    assert curve["seconds"] == pytest.approx([1 + 0.1 * nodes for nodes in curve["nodes"]])


def test_a_model_without_room_is_refused() -> None:
    """A model with few positions says so instead of failing inside a pass."""
    speculator = Speculator.from_transformers(tiny_model("llama", max_position_embeddings=64), method="none")
    with pytest.raises(UsageError, match="64 positions leave no room for 64 nodes"):
        measure_step_cost(speculator.engine, maximum=64)


def test_each_model_has_a_file_of_its_own() -> None:
    """What the cost depends on names the file; a broken one is as good as none."""
    speculator = Speculator.from_transformers(tiny_model("llama"), method="none")
    path = file_of(tiny_model("llama"))
    assert stored_step_cost(speculator.engine, maximum=64) is None
    assert path == file_of(tiny_model("llama"))
    assert path != file_of(tiny_model("llama").to(torch.bfloat16))
    assert path != file_of(tiny_model("qwen3"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"nodes": [0, 64], "seconds": [1, 2]}')
    found = stored_step_cost(speculator.engine, maximum=64)
    assert found is not None
    assert found.seconds.tolist() == [1, 2]
    assert stored_step_cost(speculator.engine, maximum=65) is None
    path.write_text("{")
    assert stored_step_cost(speculator.engine, maximum=64) is None


def file_of(model: Any) -> Path:
    """Return where a model's latency is kept."""
    speculator = Speculator.from_transformers(model, method="none")
    return step_cost_file(speculator.engine)


def test_decoding_by_size_gives_the_text_of_plain_decoding() -> None:
    """Sizes change from round to round, the text never; the report says why they were what they were."""
    model = tiny_model("llama")
    ids = torch.arange(1, 20)[None]
    plain = Speculator.from_transformers(model, method="none").generate(ids, max_new_tokens=80, temperature=0)
    sized = Speculator.from_transformers(model, nodes="auto").generate(ids, max_new_tokens=80, temperature=0)
    assert sized.ids == plain.ids
    assert "nodes per round" in sized.stats.report()
    assert plain.stats.sizes == ""
    with pytest.raises(UsageError, match="0 or more, or 'auto'"):
        Speculator.from_transformers(model, nodes="many")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints a line for each size, keeps the curve where decoding finds it, and writes it where asked."""
    out = tmp_path / "curve.json"
    assert main(["tune", "--nodes", "4", "--seconds", "1", "--json", str(out)]) == 0
    printed = capsys.readouterr()
    assert [line.split()[0] for line in printed.out.splitlines()] == ["nodes", "0", "1", "2", "3", "4"]
    assert "starts from it" in printed.err
    kept = json.loads(out.read_text())
    assert kept["nodes"] == [0, 1, 2, 3, 4]
    speculator = Speculator.from_pretrained(method="none")
    stored = stored_step_cost(speculator.engine, maximum=4)
    assert stored is not None
    assert stored.seconds.tolist() == kept["seconds"]
