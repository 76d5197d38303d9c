"""The search of layers to skip: what it finds, what it costs, and its command."""

from __future__ import annotations

import copy
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from models import deep_model
from speculant import Speculator
from speculant.api.layer_tuning import expected_speed, search_skipped_layers, sublayer_shares
from speculant.cli.main import main
from speculant.core import packages
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sublayers import Sublayers

PROMPTS = [[5, 9, 14, 3], [11] * 9]


@pytest.fixture(scope="module")
def target() -> Speculator:
    """A target of which two layers hardly matter."""
    model = deep_model("llama", num_hidden_layers=5)
    with torch.no_grad():
        for index in (1, 3):
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                model.model.layers[index].get_submodule(name).weight.mul_(0.001)
    return Speculator.from_transformers(model, method="none", fast=False)


def test_layers_that_do_not_matter_are_skipped(target: Speculator) -> None:
    """Guards the search: the set is the best one, its figures are those of its pass, and it can be repeated."""
    tried = list[None]()
    options: dict[str, Any] = {"tokens": 24, "trials": 20, "sublayers": True}
    found = search_skipped_layers(target, PROMPTS, advance=lambda: tried.append(None), **options)
    skipped = Sublayers.whole((1, 3))
    assert (found.skipped, found.setting, found.trials, len(tried)) == (skipped, "1,3", 20, 20)
    assert found.acceptance > 0.95
    shares = sublayer_shares(target.model)
    assert found.cost == pytest.approx(1 - 2 * shares["attention", 1] - 2 * shares["mlp", 1])
    assert found.speed == pytest.approx(expected_speed(found.acceptance, found.cost, found.length))
    assert search_skipped_layers(target, PROMPTS, **options) == found


def test_the_setting_is_what_layer_skip_takes(target: Speculator) -> None:
    """Guards the way from the search into decoding, and the acceptance that it promises."""
    found = search_skipped_layers(target, PROMPTS, tokens=24, trials=3)
    settings = {"skipped": found.setting, "threshold": 0.0, "adaptive": False}
    speculator = Speculator.from_transformers(
        target.model, method="layer-skip", nodes=3, settings=settings, fast=target.fast
    )
    stats = speculator.generate(PROMPTS[0], max_new_tokens=24, temperature=0).stats
    assert stats.accepted / stats.drafted > found.acceptance - 0.3


def test_expected_speed() -> None:
    """Guards the formula: at full acceptance n + 1 tokens in the time of 1 + n c passes, at none one."""
    assert expected_speed(1.0, 0.5, 4) == pytest.approx(5 / 3)
    assert expected_speed(0.0, 0.25, 4) == pytest.approx(0.5)
    assert expected_speed(0.5, 0.5, 1) == pytest.approx(1.0)


def test_shares_leave_room_for_the_head(target: Speculator) -> None:
    """Guards costs: layers are equal here, and the head is read for every drafted token."""
    shares = sublayer_shares(target.model)
    assert len(set(shares.values())) == 2
    assert 0.5 < sum(shares.values()) < 1
    layers = sublayer_shares(target.model, split=False)
    assert layers["attention", 2] > shares["attention", 2] + shares["mlp", 2]  # its norms
    assert sum(layers.values()) < 1


def test_sublayers_are_skipped_separately(target: Speculator) -> None:
    """Guards the search over both parts of each layer, and the one over whole layers that can be asked for."""
    model = copy.deepcopy(target.model)
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.mul_(4000)
    other = Speculator.from_transformers(model, method="none", fast=False)
    found = search_skipped_layers(other, PROMPTS, tokens=24, trials=60, sublayers=True)
    assert 1 in found.skipped.mlp
    assert 1 not in found.skipped.attention
    assert search_skipped_layers(other, PROMPTS, tokens=24, trials=10).skipped.are_whole


def test_what_cannot_be_searched(target: Speculator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards causes and ways out: texts that are too short, models without such layers, no optuna."""
    with pytest.raises(UsageError, match="two tokens or more"):
        search_skipped_layers(target, PROMPTS, tokens=1)
    with pytest.raises(UsageError, match="trials must be at least 1"):
        search_skipped_layers(target, PROMPTS, trials=0)
    bloom = Speculator.from_transformers(deep_model("bloom"), method="none")
    with pytest.raises(UnsupportedError, match="cannot be left out"):
        search_skipped_layers(bloom, PROMPTS)
    monkeypatch.setattr(packages, "find_spec", lambda _name: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'speculant\[search\]'"):
        search_skipped_layers(target, PROMPTS)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the line that can be pasted behind a command, and the file."""
    prompts, out = tmp_path / "prompts.txt", tmp_path / "layers.json"
    prompts.write_text("Once upon a time\n")
    given = ["--prompts", str(prompts), "--trials", "2", "--max-new-tokens", "8", "--json", str(out)]
    assert main(["tune-layers", *given]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(("--method layer-skip --set skipped=", "--method layer-skip --set 'skipped="))
    assert "speed of plain decoding" in printed.err
    found = json.loads(out.read_text())
    assert shlex.split(printed.out)[-1] == f"skipped={found['setting']}"
    assert set(found["skipped"]) == {"attention", "mlp"}
    assert main(["tune-layers"]) == 2
    assert "--prompts" in capsys.readouterr().err
