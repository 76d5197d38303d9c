"""Heads trained together with a copy of their model: the copy, the two stages, what is written."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from models import tiny_model
from quantizing import quantized_model
from speculant.api.speculator import Speculator
from speculant.core.errors import UnsupportedError, UsageError
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.fingerprint import weights_digest
from speculant.training.joint.backbone import Backbone
from speculant.training.joint.changes import measure_changes
from speculant.training.optimizers import build_optimizers
from speculant.training.trainer import Trainer
from trainings import sharp_model, tiny_features, tiny_texts, tiny_training

JOINT = {"kind": "medusa", "joint": True, "joint_from": 0.5, "rank": 2, "depth": 2, "keep": "last"}


@pytest.mark.parametrize("rank", [0, 2])
def test_a_copy_starts_as_the_target_and_never_changes_it(rank: int) -> None:
    """Guards the starting point and the original: low-rank additions begin at zero, and other weights are shared."""
    model, ids = tiny_model("llama"), torch.arange(3, 15)[None]
    copied = Backbone(model, rank)
    wanted = model.base_model(ids).last_hidden_state
    assert torch.equal(copied.states(ids), wanted)
    shared = {id(weight) for weight in model.parameters()} & {id(weight) for weight in copied.copied.parameters()}
    assert bool(shared) == bool(rank)
    with torch.no_grad():
        for weight in copied.parameters():
            weight += 0.05
    assert not torch.allclose(copied.states(ids), wanted, atol=1e-3)
    assert torch.equal(model.base_model(ids).last_hidden_state, wanted)


def test_merged_weights_are_those_that_were_trained() -> None:
    """Guards what is written: the finished model computes what the copy computed, without separate additions."""
    copied, ids = Backbone(tiny_model("llama"), 2), torch.arange(3, 15)[None]
    with torch.no_grad():
        for weight in copied.parameters():
            weight += 0.05
        wanted = copied.states(ids)
        tuned = copied.finish()
        assert torch.allclose(tuned.base_model(ids).last_hidden_state, wanted, atol=1e-5)
    assert {type(each) for each in tuned.modules() if isinstance(each, nn.Linear)} == {nn.Linear}
    assert tuned.state_dict().keys() == tiny_model("llama").state_dict().keys()


def test_an_untouched_copy_has_not_changed() -> None:
    """Guards the reported change: none without training, and a positive divergence after any."""
    model = sharp_model()
    features, copied, target = tiny_features(model, tiny_texts()), Backbone(model, 0), HFTargetParts(model)
    found = measure_changes(copied, features, target)
    assert found["kl"] == pytest.approx(0, abs=1e-6)
    assert found["agreement"] == 1
    assert found["perplexity"] == pytest.approx(found["perplexity_tuned"])
    with torch.no_grad():
        copied.copied.lm_head.weight.mul_(0.5)
    assert measure_changes(copied, features, target)["kl"] > 0.01


@pytest.mark.parametrize("rank", [0, 2])
def test_the_heads_draft_for_the_tuned_model(tmp_path: Path, rank: int) -> None:
    """Guards the promise of the docs: with the written pair, drafts change nothing in the tuned model's text."""
    model = sharp_model()
    before = weights_digest(model)
    record = tiny_training(tmp_path / "out", model=model, **(JOINT | {"rank": rank}))
    assert record is not None
    assert weights_digest(model) == before
    assert record["joint"]["kl"] > 0
    assert "is not that of" in (tmp_path / "out" / "README.md").read_text()
    tuned = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    assert weights_digest(tuned) == record["joint"]["model"] != before
    prompt = list(range(5, 13))
    plain = tuned.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None)
    speculator = Speculator.from_transformers(tuned, None, head=str(tmp_path / "out"), method="medusa", nodes=6)
    assert speculator.generate(prompt, max_new_tokens=16, temperature=0).ids == plain[0, len(prompt) :].tolist()


def test_only_the_heads_learn_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the heads' warm-up: the copy has no gradients before its share of the training, and has them after it."""
    learned: list[bool] = []
    step = Trainer._step

    def watched(self: Any, done: float) -> None:
        was = [weight.clone() for weight in self.head.backbone.parameters()]
        step(self, done)
        pairs = zip(was, self.head.backbone.parameters(), strict=True)
        learned.append(any(not torch.equal(one, other) for one, other in pairs))

    monkeypatch.setattr(Trainer, "_step", watched)
    tiny_training(tmp_path / "out", **JOINT)
    assert learned == [False] * 3 + [True] * 3


def test_an_interrupted_joint_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards --resume with a copy in training: the same heads and the same tuned model, bit for bit."""
    whole = tiny_training(tmp_path / "whole", **JOINT)
    train = Trainer._step

    def interrupted(self: Trainer, done: float) -> None:
        if self.state.step == 4:
            signal.raise_signal(signal.SIGINT)
        train(self, done)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tiny_training(tmp_path / "parts", **JOINT)
    parts = tiny_training(tmp_path / "parts", files={"resume": True}, **JOINT)
    assert whole is not None
    assert parts is not None
    assert whole["joint"] == parts["joint"]
    for name in ("medusa_lm_head.safetensors", "model/model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    written = json.loads((tmp_path / "parts" / "training.json").read_text())
    assert written["joint"] == whole["joint"]


def test_learning_rates_differ() -> None:
    """Guards the differential rates: weights with a factor are in groups of their own, with it."""
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    for name in ("adamw", "muon"):
        slow = dict.fromkeys(module[1].parameters(), 0.25)
        groups = [
            g
            for each in build_optimizers(module, name, lr=1.0, weight_decay=0.1, factors=slow)
            for g in each.param_groups
        ]
        found = {id(weight): group["factor"] for group in groups for weight in group["params"]}
        assert found == {id(weight): slow.get(weight, 1.0) for weight in module.parameters()}


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    """Guards against long work in vain: kinds with a fixed model, packed weights."""
    with pytest.raises(UsageError, match="fixed model"):
        tiny_training(tmp_path / "one", joint=True)
    packed = quantized_model(tiny_model("llama"))
    with pytest.raises(UnsupportedError, match="quantised"):
        tiny_training(tmp_path / "two", model=packed, **JOINT)
