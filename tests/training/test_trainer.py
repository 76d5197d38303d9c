"""The loop: what is learned, kept, measured, saved and gone on with."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from models import deep_model
from speculant.core.errors import FileError, OutOfMemoryError, SpeculantError, UsageError
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.evaluate import measure_acceptance
from speculant.training.kinds import find_kind
from speculant.training.texts import from_parts
from speculant.training.trainer import Trainer
from trainings import sharp_model, tiny_data, tiny_features, tiny_texts, tiny_training


def weights(out: Path) -> dict[str, Tensor]:
    """Return the weights of a head."""
    return load_file(out / "model.safetensors")


def assert_same(one: Path, other: Path) -> None:
    """Compare two heads bit for bit, and what was measured."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    histories = [json.loads((out / "training.json").read_text())["history"] for out in (one, other)]
    assert histories[0] == histories[1]


def interrupting(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let Ctrl-C come in the middle of a step."""
    train = Trainer._step

    def interrupted(self: Trainer, done: float) -> None:
        if self.state.step == step:
            signal.raise_signal(signal.SIGINT)
        train(self, done)

    monkeypatch.setattr(Trainer, "_step", interrupted)


def test_a_head_learns_what_its_target_writes(tmp_path: Path) -> None:
    """Guards the whole path: on text that the target wrote greedily, acceptance rises and the best head is kept."""
    model = sharp_model()
    prompts = torch.arange(3, 27).view(12, 2)
    with torch.no_grad():
        ids = model.generate(prompts, max_new_tokens=24, do_sample=False, eos_token_id=None)
    data = tiny_data(from_parts([*ids.numpy().astype(np.int32)], [2] * 12))
    record = tiny_training(tmp_path / "head", model=model, data=data, steps=60, evaluate_every=20, anchors=16, lr=5e-3)
    assert record is not None
    history = record["history"]
    assert history[-1]["losses"][0] < history[1]["losses"][0] / 2
    assert record["best"]["overlap"][0] > 1.3 * history[0]["overlap"][0]
    assert record["best"]["greedy"] == max(entry["greedy"] for entry in history)


def test_the_best_weights_are_written(tmp_path: Path) -> None:
    """Guards against overtrained heads: what is saved measures as the best entry of the history does."""
    record = tiny_training(tmp_path / "head", steps=10, lr=0.3, schedule="constant", clip=0.0, measured=4)
    assert record is not None
    model = deep_model("llama")
    loaded: Any = load_head(tmp_path / "head", HFTargetParts(model)).head
    held_out = tiny_data_held_out(record)
    found = measure_acceptance(find_kind("eagle").new_recipe(loaded, 4), held_out, HFTargetParts(model))
    assert found.agreement == pytest.approx(record["best"]["agreement"])
    assert record["best"]["step"] == max(record["history"], key=lambda entry: entry["greedy"])["step"]


def tiny_data_held_out(record: dict[str, Any]) -> Any:
    """Return the features of the texts that `tiny_training` holds out."""
    from speculant.training.batches import split

    texts = tiny_texts()
    _, held_out = split(len(texts), record["held_out"], 0)
    return tiny_features(deep_model("llama"), texts.select(held_out), depth=4)


@pytest.mark.parametrize("changes", [{}, {"optimizer": "muon", "accumulate": 2, "depth": 3, "depth_from": 0.5}])
def test_ctrl_c_saves_and_resuming_gives_the_same_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Guards the promise of --resume, bit for bit, with weights, optimizer, order, anchors and history."""
    tiny_training(tmp_path / "whole", **changes)
    with monkeypatch.context() as patch:
        interrupting(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            tiny_training(tmp_path / "parts", **changes)
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    tiny_training(tmp_path / "parts", files={"resume": True}, **changes)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    assert sorted(each.name for each in (tmp_path / "parts").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "training.json",
    ]


def test_a_process_that_ends_between_checkpoints_loses_only_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards --resume where nothing could be saved: it goes on from the last checkpoint, and measures again."""
    tiny_training(tmp_path / "whole")
    train = Trainer._step

    def lost(self: Trainer, done: float) -> None:
        if self.state.step == 5:
            raise SystemError("the power failed")
        train(self, done)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", lost)
        with pytest.raises(SystemError):
            tiny_training(tmp_path / "parts", files={"checkpoint_steps": 3})
    tiny_training(tmp_path / "parts", files={"resume": True})
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_cache_changes_nothing_where_a_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards resuming with states on disk, some of which were written after the checkpoint."""
    tiny_training(tmp_path / "whole", files={"cache": 8000})
    with monkeypatch.context() as patch:
        interrupting(patch, 4)
        with pytest.raises(KeyboardInterrupt):
            tiny_training(tmp_path / "parts", files={"cache": 8000})
    tiny_training(tmp_path / "parts", files={"cache": 8000, "resume": True})
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    """Guards the scale of accumulated gradients: two batches of the same texts are as one."""
    record = tiny_training(tmp_path / "head", accumulate=3, steps=2)
    assert record is not None
    assert record["steps"] == 2
    assert record["tokens"] > 2 * 2 * 4 * 12


def test_training_ends_when_nothing_is_gained(tmp_path: Path) -> None:
    """Guards early stopping: after `patience` measurements without gain."""
    record = tiny_training(tmp_path / "head", steps=50, evaluate_every=1, patience=3, lr=1e-9)
    assert record is not None
    assert record["steps"] == 3
    assert record["best"]["step"] == 0


def test_the_last_weights_are_kept_on_request(tmp_path: Path) -> None:
    """Guards --keep: the last weights are those of the record, and patience counts gains as ever."""
    record = tiny_training(tmp_path / "head", steps=50, evaluate_every=1, patience=3, lr=1e-9, keep="last")
    assert record is not None
    assert record["steps"] == record["best"]["step"] == 3
    assert "step 3, the last ones" in (tmp_path / "head" / "README.md").read_text()


def test_minutes_end_a_training(tmp_path: Path) -> None:
    """Guards --minutes: the last step is measured, and the head written."""
    record = tiny_training(tmp_path / "head", steps=None, minutes=1e-4)
    assert record is not None
    assert record["history"][-1]["step"] == record["steps"]


def test_without_steps_or_minutes_the_data_is_read_five_times(tmp_path: Path) -> None:
    """Guards the default length."""
    record = tiny_training(tmp_path / "head", steps=None)
    assert record is not None
    assert record["steps"] == 14  # 11 texts 5 times, 4 a step


def test_what_another_training_left_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against going on with other data, another target or other settings, each named."""
    out = tmp_path / "head"
    with monkeypatch.context() as patch:
        interrupting(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            tiny_training(out)
    resume = {"resume": True}
    with pytest.raises(UsageError, match=r"lr was 0\.003"):
        tiny_training(out, files=resume, lr=1e-4)
    with pytest.raises(UsageError, match="another data"):
        tiny_training(out, files=resume, data=tiny_data(tiny_texts(seed=4)))
    with pytest.raises(UsageError, match="another target"):
        tiny_training(out, files=resume, model=deep_model("llama", rms_norm_eps=1e-3, num_hidden_layers=2))
    with pytest.raises(UsageError, match="--resume"):
        tiny_training(out)
    record = tiny_training(out, files=resume, texts=2, accumulate=2)  # what memory allows may change
    assert record is not None
    assert record["steps"] == 6


def test_folders_with_other_content_are_left_alone(tmp_path: Path) -> None:
    """Guards users' files, and heads that were trained before."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="other files"):
        tiny_training(tmp_path)
    with pytest.raises(UsageError, match="is a file"):
        tiny_training(tmp_path / "notes.txt")
    tiny_training(tmp_path / "head", steps=1)
    with pytest.raises(UsageError, match="trained head"):
        tiny_training(tmp_path / "head", steps=1)
    with pytest.raises(UsageError, match="is finished, so there is nothing to go on with"):
        tiny_training(tmp_path / "head", steps=1, files={"resume": True})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    """Guards against a state that is cut off, with the way out."""
    state = tmp_path / "head" / ".training" / "state.pt"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(FileError, match="Delete"):
        tiny_training(tmp_path / "head", files={"resume": True})


def test_a_full_device_saves_the_training_and_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards work done: memory that runs out in a step loses no step before it."""
    tiny_training(tmp_path / "whole")
    recipe = find_kind("eagle").new_recipe
    train = Trainer._step

    def full(self: Trainer, done: float) -> None:
        if self.state.step == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        train(self, done)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", full)
        with pytest.raises(OutOfMemoryError, match=r"step 4.*--texts.*--accumulate"):
            tiny_training(tmp_path / "head")
    tiny_training(tmp_path / "head", files={"resume": True})
    assert_same(tmp_path / "whole", tmp_path / "head")
    assert recipe is not None


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path) -> None:
    """Guards against hours spent on NaN."""
    with pytest.raises(SpeculantError, match="--lr"):
        tiny_training(tmp_path / "head", steps=20, lr=1e30, clip=0.0, schedule="constant")


def test_a_head_goes_on_from_another(tmp_path: Path) -> None:
    """Guards --init: the first measurement is that of the head it begins with."""
    first = tiny_training(tmp_path / "one", steps=8)
    second = tiny_training(tmp_path / "two", steps=2, files={"init": str(tmp_path / "one")})
    assert first is not None
    assert second is not None
    assert second["history"][0]["overlap"] == pytest.approx(first["best"]["overlap"], abs=1e-5)


def test_the_target_is_as_it_was(tmp_path: Path) -> None:
    """Guards the user's model: neither its weights nor their gradients are touched."""
    model = deep_model("llama")
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    tiny_training(tmp_path / "head", model=model)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])
        assert weight.requires_grad
        assert weight.grad is None


def test_bfloat16_arithmetic_keeps_float32_weights(tmp_path: Path) -> None:
    """Guards mixed precision."""
    record = tiny_training(tmp_path / "head", precision="bfloat16")
    assert record is not None
    assert {tensor.dtype for tensor in weights(tmp_path / "head").values()} == {torch.float32}


@pytest.mark.parametrize(
    "changes", [{"lr": 1e-3, "optimizer": "sgd"}, {"texts": 0}, {"loss": "mse"}, {"schedule": "x"}, {"keep": "first"}]
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    """Guards settings from Python, which no option parser has seen."""
    with pytest.raises(UsageError):
        tiny_training(tmp_path / "head", **changes)


def test_too_little_data_is_refused(tmp_path: Path) -> None:
    """Guards against a training on nothing, with the reason."""
    short = from_parts([np.arange(3, 7, dtype=np.int32)] * 8)
    with pytest.raises(UsageError, match="0 have the 7 tokens"):
        tiny_training(tmp_path / "head", data=tiny_data(short))
