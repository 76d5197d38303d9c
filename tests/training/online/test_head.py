"""A head that learns while it drafts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from models import tiny_model
from speculant import Speculator
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.kinds import find_kind
from speculant.training.online.drafter import OnlineDrafter
from speculant.training.online.head import HeadLearner, anchors_of, with_last, wrong_anchors
from speculant.training.online.window import TextWindow


def head_folder(tmp_path: Path, name: str = "eagle") -> Path:
    """Return a checkpoint of a random head of the tiny model."""
    parts = HFTargetParts(tiny_model("llama"))
    torch.manual_seed(0)
    kind = find_kind(name)
    kind.save_head(kind.new_head(parts, 4, counts=np.ones(61, np.int64)), tmp_path, parts)
    return tmp_path


def test_anchors_of_wrong_drafts_by_hand() -> None:
    """Guards the index: a draft of depth d that failed after token i began at the anchor i - d; prompts are no text."""
    wrong = np.zeros(12, np.int32)
    wrong[[1, 3, 5, 7, 11]] = [1, 1, 2, 6, 1]
    known = np.arange(12) >= 2
    window = TextWindow(tokens=np.zeros(12, np.int32), known=known, wrong=wrong, greedy=True)
    assert anchors_of(window, 3) == [1, 2, 3, 4, 5, 6]
    assert wrong_anchors(window, 3) == ([2, 3, 4], [1, 2, 3])


def test_last_layer_is_read_once() -> None:
    """Guards what is stored: heads that tap the last layer already need no second copy of it."""
    assert with_last((-1,)) == (-1,)
    assert with_last((0, 1)) == (0, 1, -1)


def test_a_head_learns_and_text_stays(tmp_path: Path) -> None:
    """Guards the whole way with a head: acceptance rises on held-out text, texts are plain decoding's."""
    model = tiny_model("llama")
    options = {"every": 8, "steps": 8, "lr": 3e-4, "when": "manual"}
    made = Speculator.from_transformers(model, head=head_folder(tmp_path), nodes=4, method="eagle", online=options)
    assert isinstance(made.drafter, OnlineDrafter)
    assert isinstance(made.drafter._learner, HeadLearner)
    for place in range(12):
        prompt = [5 + place, 7, 9, 11 + place, 13]
        plain = model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)[0, 5:].tolist()
        assert made.generate(prompt, max_new_tokens=16, temperature=0).ids == plain
    for _ in range(4):
        made.drafter.update()
    updates = made.drafter.updates
    assert not any(update.error for update in updates)
    assert any(update.used and update.after > updates[0].before for update in updates)
    assert all(weight.grad is None for weight in model.parameters())
    made.save(tmp_path / "learned")
    made.load(tmp_path / "learned")


def test_a_head_that_reads_the_text_alone_learns_too(tmp_path: Path) -> None:
    """Guards GLIDE: it taps no layer, but the states that p comes from are asked for."""
    model = tiny_model("llama")
    options = {"every": 8, "steps": 4, "lr": 3e-4, "when": "manual"}
    made = Speculator.from_transformers(model, head=head_folder(tmp_path, "glide"), nodes=4, online=options)
    assert isinstance(made.drafter, OnlineDrafter)
    assert made.drafter.needs.hidden_layers == (-1,)
    for place in range(12):
        prompt = [5 + place, 7, 9, 11 + place, 13]
        plain = model.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False)[0, 5:].tolist()
        assert made.generate(prompt, max_new_tokens=30, temperature=0).ids == plain
    for _ in range(3):
        made.drafter.update()
    assert made.drafter.updates
    assert not any(update.error for update in made.drafter.updates)
    assert any(update.used and update.after > update.before for update in made.drafter.updates)
