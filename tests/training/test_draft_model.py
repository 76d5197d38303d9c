"""Training of draft models: batches, what is learned, resuming, and the folder."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from models import perturbed, tiny_model
from speculant import Speculator
from speculant.core.errors import UsageError
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.files import Files
from speculant.training.kinds import DRAFT_MODEL, find_kind
from speculant.training.run import train_head
from speculant.training.student import Student
from speculant.training.student_features import StudentFeatures, cut_unknown, is_on_policy
from speculant.training.texts import Texts, from_parts
from speculant.training.trainer import Trainer
from trainings import tiny_data, tiny_identity, tiny_settings, tiny_texts

ON_POLICY = {"on_policy": 0.5, "opening": 6, "new_tokens": 8}


def draft_settings(**changes: Any) -> Any:
    """Return the settings of a training of a second."""
    return tiny_settings(**{"feature_weight": 0.0, "anchors": 64, "lr": 1e-3} | changes)


def draft_training(
    out: Path, *, files: dict[str, Any] | None = None, texts: Texts | None = None, **changes: Any
) -> Any:
    """Train a draft model for a tiny target into a folder; return its figures."""
    model = tiny_model("llama")
    data = tiny_data(texts)
    return train_head(
        DRAFT_MODEL, model, data, tiny_identity(model), draft_settings(**changes), Files(out=out, **files or {})
    )


def target_texts(target: Any, count: int = 12) -> Texts:
    """Return texts of 30 tokens that a target wrote greedily after 6."""
    prompts = torch.randint(3, 61, (count, 6), generator=torch.Generator().manual_seed(1))
    ids = target.generate(prompts, max_new_tokens=24, min_new_tokens=24, do_sample=False)
    return from_parts([row.numpy().astype(np.int32) for row in ids], [6] * count)


def batches_of(student: Any, texts: Texts, before: tuple[Any, ...] = (), **changes: Any) -> StudentFeatures:
    """Return the batches of a student for a tiny target."""
    model, settings = tiny_model("llama"), draft_settings(**changes)
    target = HFTargetParts(model)
    opened = DRAFT_MODEL.open_features(model, target, texts, Student(student), settings, 1, tuple(map(Student, before)))
    assert isinstance(opened, StudentFeatures)
    return opened


@pytest.fixture(scope="module")
def student_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a draft model that is near the tiny target."""
    folder = tmp_path_factory.mktemp("student")
    perturbed(tiny_model("llama"), 0.4).save_pretrained(folder)
    return str(folder)


def weights(out: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a folder."""
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "phi3"])
def test_a_student_computes_what_its_model_does(name: str) -> None:
    """Guards the way around logits of all positions, which takes most of the memory."""
    model, ids = tiny_model(name), torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(0))
    student = Student(model)
    with torch.no_grad():
        torch.testing.assert_close(student.project(student.states(ids)), model(ids).logits)
    assert not student.train().training


@pytest.mark.parametrize(
    ("loss", "on_policy"),
    [("ce", 0.0), ("kl", 1.0), ("tvd", 0.5), pytest.param("rkl", 1.0, marks=pytest.mark.slow), ("jsd", 0.0)],
)
def test_acceptance_rises(loss: str, on_policy: float, student_folder: str, tmp_path: Path) -> None:
    """Guards every way of alignment: what is written is nearer to the target than what was begun with."""
    record = draft_training(
        tmp_path / "draft",
        files={"init": student_folder},
        texts=target_texts(tiny_model("llama")),
        loss=loss,
        steps=12,
        evaluate_every=6,
        **ON_POLICY | {"on_policy": on_policy},
    )
    first, middle, last = record["history"]
    if loss == "ce":  # greedy texts make a distribution sharper than the target's
        assert last["losses"] < middle["losses"]
    else:
        assert sum(last["overlap"]) > sum(first["overlap"])


def test_the_last_token_of_a_text_is_learned() -> None:
    """Guards the end of texts: all tokens behind the root are trained, the last one too."""
    texts = tiny_texts(2, prompts=4)
    batch = batches_of(tiny_model("llama"), texts).training_batch(0)
    for text, length in enumerate(batch.lengths.tolist()):
        learned = batch.anchors[batch.anchors[:, 0] == text, 1] + 2
        assert learned.tolist() == [*range(5, length)]


def test_on_policy_texts_are_the_students_own() -> None:
    """Guards DistillSpec: prompts are kept, continued by the student, and learned up to the end of the text."""
    student, texts = perturbed(tiny_model("llama"), 0.4), tiny_texts(8, prompts=5)
    features = batches_of(student, texts, on_policy=1.0, temperature=1e-4, new_tokens=8)
    batch = features.training_batch(1)
    openings = {tuple(texts[index][:5].tolist()) for index in range(8)}
    for text, (ids, length) in enumerate(zip(batch.ids, batch.lengths.tolist(), strict=True)):
        assert tuple(ids[:5].tolist()) in openings
        with torch.no_grad():
            best = student(ids[None, :length]).logits[0, :-1].argmax(-1)
        assert ids[5:length].tolist() == best[4:].tolist()
        assert length == 13 or ids[length - 1] == 2
        assert batch.anchors[batch.anchors[:, 0] == text, 1].tolist() == [*range(4, length - 2)]


def test_on_policy_texts_depend_on_seed_batch_and_weights() -> None:
    """Guards repeatable trainings: the same batch is written again, another batch or seed is not."""
    texts = tiny_texts(4)

    def written(number: int, student: Any = None, **changes: Any) -> list[list[int]]:
        student = student or tiny_model("llama")
        return (
            batches_of(student, texts, **ON_POLICY | {"on_policy": 1.0} | changes).training_batch(number).ids.tolist()
        )

    assert written(0) == written(0)
    assert written(0) != written(4)
    assert written(0) != written(0, seed=1)
    assert written(0) != written(0, perturbed(tiny_model("llama"), 0.4))


def test_on_policy_batches_are_spread_evenly() -> None:
    """Guards the share, and that without it no text is written."""
    assert [is_on_policy(number, 0.25) for number in range(8)] == [False, False, False, True] * 2
    assert not any(is_on_policy(number, 0.0) for number in range(9))
    assert all(is_on_policy(number, 1.0) for number in range(9))


def test_texts_end_before_tokens_that_the_target_lacks() -> None:
    """Guards targets whose vocabulary is padded less than the draft model's."""
    assert cut_unknown(np.array([5, 60, 61, 5]), 61).tolist() == [5, 60]
    assert cut_unknown(np.array([5, 60]), 61).tolist() == [5, 60]
    wide = tiny_model("llama", vocab_size=80)
    batch = batches_of(wide, tiny_texts(4), **ON_POLICY | {"on_policy": 1.0}).training_batch(0)
    assert int(batch.ids.max()) < 61


def test_boosting_leaves_out_what_others_predict() -> None:
    """Guards Col-BT: the anchors left are those whose token no draft model before predicts."""
    target = tiny_model("llama")
    texts, weak = target_texts(target), perturbed(tiny_model("llama"), 0.4)
    whole = batches_of(weak, texts).training_batch(0)
    left = batches_of(weak, texts, before=(weak,)).training_batch(0)
    with torch.no_grad():
        best = weak(whole.ids).logits.argmax(-1)
    wrong = [[t, row] for t, row in whole.anchors.tolist() if best[t, row + 1] != whole.ids[t, row + 2]]
    assert left.anchors.tolist() == wrong
    assert 0 < len(wrong) < len(whole.anchors)
    assert not len(batches_of(weak, texts, before=(weak, target)).training_batch(0).anchors)


def test_boosting_by_several_tokens() -> None:
    """Guards Col-BT as published: what is left out are anchors after which another model writes the same tokens."""
    target = tiny_model("llama")
    texts, weak = target_texts(target), perturbed(tiny_model("llama"), 0.4)
    whole = batches_of(weak, texts).training_batch(0)
    left = batches_of(weak, texts, before=(weak,), before_tokens=3).training_batch(0).anchors.tolist()
    with torch.no_grad():
        best = weak(whole.ids).logits.argmax(-1)
    expected = [
        [t, row]
        for t, row in whole.anchors.tolist()
        if any(best[t, i] != whole.ids[t, i + 1] for i in range(row + 1, min(row + 4, int(whole.lengths[t]) - 1)))
    ]
    assert left == expected
    assert len(batches_of(weak, texts, before=(weak,)).training_batch(0).anchors) < len(left) < len(whole.anchors)


def test_boosting_on_own_texts_compares_with_the_target() -> None:
    """Guards Col-BT on-policy, where the text is not the target's: its most probable token is the right one."""
    weak, settings = perturbed(tiny_model("llama"), 0.4), ON_POLICY | {"on_policy": 1.0}
    assert len(batches_of(weak, tiny_texts(4), **settings).training_batch(0).anchors)
    perfect = batches_of(weak, tiny_texts(4), before=(tiny_model("llama"),), **settings)
    assert not len(perfect.training_batch(0).anchors)


def test_a_step_without_anchors_changes_nothing(student_folder: str, tmp_path: Path) -> None:
    """Guards batches that others predict wholly, and the refusal where those are all there are."""
    target = tiny_model("llama")
    target.save_pretrained(tmp_path / "perfect")
    files = {"init": student_folder, "before": (str(tmp_path / "perfect"),)}
    with pytest.raises(UsageError, match="nothing left to learn"):
        draft_training(tmp_path / "draft", files=files, texts=target_texts(target))
    model, texts, settings = tiny_model("llama"), target_texts(target), draft_settings()
    student, parts = Student(perturbed(tiny_model("llama"), 0.4)), HFTargetParts(model)
    before = {name: weight.clone() for name, weight in student.state_dict().items()}
    features = [
        StudentFeatures(model, parts, texts, student, settings, 1, others) for others in ((Student(target),), ())
    ]
    trainer = Trainer(
        lambda depth: DRAFT_MODEL.new_recipe(student, depth),
        parts,
        *features,
        replace(settings, measured=1, weight_decay=0.1),
        path=tmp_path / "state.pt",
        about={},
    )
    assert trainer.run().step == 6
    assert all(torch.equal(weight, before[name]) for name, weight in student.state_dict().items())


@pytest.mark.parametrize(
    "changes", [ON_POLICY, ON_POLICY | {"optimizer": "muon", "accumulate": 3, "precision": "bfloat16"}]
)
def test_a_lost_training_goes_on_to_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, student_folder: str, changes: dict[str, Any]
) -> None:
    """Guards --resume bit for bit, with texts that the model wrote itself and positions left out."""
    files = {"before": (student_folder,), "options": {"layers": 1}}
    draft_training(tmp_path / "whole", files=files, **changes)
    train = Trainer._step

    def lost(self: Trainer, done: float) -> None:
        if self.state.step == 5:
            raise SystemError("the power failed")
        train(self, done)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", lost)
        with pytest.raises(SystemError):
            draft_training(tmp_path / "parts", files=files | {"checkpoint_steps": 3}, **changes)
    with pytest.raises(UsageError, match=r"on_policy was 0\.5"):
        draft_training(tmp_path / "parts", files=files | {"resume": True}, **changes | {"on_policy": 0.25})
    other = {"before": (student_folder, student_folder), "resume": True}
    with pytest.raises(UsageError, match="another before"):
        draft_training(tmp_path / "parts", files=files | other, **changes)
    draft_training(tmp_path / "parts", files=files | {"resume": True}, **changes)
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(first[name], second[name]) for name in first)
    whole, parts = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("whole", "parts"))
    assert whole["history"] == parts["history"]


def test_ctrl_c_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards an interrupt within a step that writes texts."""
    draft_training(tmp_path / "whole", **ON_POLICY | {"on_policy": 1.0})
    train = Trainer._step

    def interrupted(self: Trainer, done: float) -> None:
        if self.state.step == 3:
            signal.raise_signal(signal.SIGINT)
        train(self, done)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            draft_training(tmp_path / "parts", **ON_POLICY | {"on_policy": 1.0})
    draft_training(tmp_path / "parts", files={"resume": True}, **ON_POLICY | {"on_policy": 1.0})
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_written_drafts_the_targets_text(tmp_path: Path, dtype: str) -> None:
    """Guards the folder: transformers loads it, and it drafts with the target's text unchanged."""
    record = draft_training(tmp_path / "draft", files={"dtype": dtype, "options": {"hidden": 32, "layers": 1}})
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], dtype)
    assert (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]) == (32, 1, 61)
    assert config["tie_word_embeddings"]
    assert record["start"] == {"options": {"hidden": 32, "layers": 1}}
    target, prompt = tiny_model("llama"), [5, 9, 12, 7]
    draft = AutoModelForCausalLM.from_pretrained(tmp_path / "draft", dtype=torch.float32).eval()
    plain = target.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, 4:].tolist()
    drafting = Speculator.from_transformers(target, method="draft-model", draft_model=draft, nodes=4)
    assert drafting.generate(prompt, max_new_tokens=20, temperature=0).ids == plain
    assisted = target.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, assistant_model=draft)
    assert assisted[0, 4:].tolist() == plain


def test_shorter_models_cut_the_texts(tmp_path: Path) -> None:
    """Guards draft models with fewer positions than the target: nothing is trained beyond them."""
    tiny_model("llama", max_position_embeddings=14).save_pretrained(tmp_path / "short")
    notes = list[str]()
    model = tiny_model("llama")
    train_head(
        DRAFT_MODEL,
        model,
        tiny_data(),
        tiny_identity(model),
        draft_settings(),
        Files(out=tmp_path / "draft", init=str(tmp_path / "short")),
        note=notes.append,
    )
    assert any("cut to 14 tokens" in note for note in notes)


def test_what_cannot_be_is_refused(tmp_path: Path, student_folder: str) -> None:
    """Guards input, each with its cause: vocabularies, shares, temperatures, heads with what only draft models have."""
    tiny_model("llama", vocab_size=500).save_pretrained(tmp_path / "other")
    other = str(tmp_path / "other")
    out = tmp_path / "draft"
    for files in ({"init": other}, {"before": (other,)}):
        with pytest.raises(UsageError, match=r"500 tokens.*another vocabulary.*61 tokens"):
            draft_training(out, files=files)
    with pytest.raises(UsageError, match="on_policy must be a share"):
        draft_training(out, on_policy=1.5)
    with pytest.raises(UsageError, match="temperature must be above 0"):
        draft_training(out, temperature=0.0)
    with pytest.raises(UsageError, match="--like is for new"):
        draft_training(out, files={"init": student_folder, "like": student_folder})
    with pytest.raises(UsageError, match="no effect"):
        draft_training(out, files={"init": student_folder, "options": {"layers": 1}})
    with pytest.raises(UsageError, match=r"'depths'.*layers"):
        draft_training(out, files={"options": {"depths": 1}})
    model = tiny_model("llama")
    for changes, files in (({"on_policy": 0.5}, {}), ({}, {"before": (student_folder,)}), ({}, {"like": other})):
        with pytest.raises(UsageError, match="only draft models do"):
            train_head(
                find_kind("eagle"),
                model,
                tiny_data(),
                tiny_identity(model),
                tiny_settings(**changes),
                Files(out=out, **files),  # type: ignore[arg-type]
            )
    assert not out.exists()
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="other files"):
        draft_training(out)
