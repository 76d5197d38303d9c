"""Training of PARD models: what is trained is what is drafted, and the folder drafts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from block_heads import check_greedy, check_training, overfit, target_of, train_batch
from models import VOCABULARY, perturbed, tiny_model
from speculant.api.draft_caches import open_draft_caches
from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.heads.pard.head import PardHead
from speculant.registry import METHODS
from speculant.training.files import Files
from speculant.training.kinds import PARD
from speculant.training.pard.model import PardStudent, block_rows
from speculant.training.pard.recipe import PardRecipe
from speculant.training.run import train_head
from trainings import tiny_data, tiny_identity, tiny_settings, tiny_texts

MASK = 60


@pytest.mark.parametrize("shuffled", [False, True])
def test_training_is_drafting(shuffled: bool) -> None:
    """Guards masks and positions: each depth in training gives what the model drafts after the same text."""
    model, parts = target_of()
    draft = perturbed(tiny_model("llama"), 0.4)
    recipe = PardRecipe(PardStudent(draft, MASK), 3)
    batch = train_batch(model, parts, (), 3)
    if shuffled:
        batch.anchors[:] = batch.anchors[torch.randperm(len(batch.anchors))]
    caches = open_draft_caches(draft, VOCABULARY)
    head = PardHead(caches, MASK, vocabulary=VOCABULARY, target_vocabulary=VOCABULARY, tokens=3)
    check_training(
        recipe, batch, parts, lambda place: head.open_text(batch.ids[batch.anchors[place, 0], :1].tolist(), parts, None)
    )


def test_overfits() -> None:
    """Guards gradients: the loss on a few texts falls at all depths."""
    model, parts = target_of()
    recipe = PardRecipe(PardStudent(perturbed(tiny_model("llama"), 0.4), MASK), 3)
    losses = overfit(recipe, train_batch(model, parts, (), 3), parts, steps=40, rate=1e-2)
    assert losses[-1] < 0.5 * losses[0]


def test_rows_of_blocks() -> None:
    """Guards the mask: a block sees the text up to its root and itself; absent blocks see no text, yet something."""
    seen = block_rows(3, torch.tensor([[1, -1]]), 2)[0, 0].int().tolist()
    assert seen == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1, 1],
    ]


def test_a_draft_model_is_adapted_and_drafts(tmp_path: Path) -> None:
    """Guards `train pard --init`: the folder names its mask, the rarest token, drafts losslessly, and trains on."""
    model, _ = target_of()
    perturbed(tiny_model("llama"), 0.4).save_pretrained(tmp_path / "small")
    settings = tiny_settings(steps=20, depth=3, feature_weight=0.0, evaluate_every=10)
    files = Files(out=tmp_path / "pard", init=str(tmp_path / "small"))
    record = train_head(PARD, model, tiny_data(), tiny_identity(model), settings, files)
    assert record is not None
    first, *_, last = record["history"]
    assert sum(last["overlap"]) > sum(first["overlap"])
    config = json.loads((tmp_path / "pard/config.json").read_text())
    rarest = int(np.bincount(tiny_texts().ids, minlength=VOCABULARY).argmin())
    assert (config["pard_token"], config["spd_type"]) == (rarest, "pard")
    assert check_greedy(model, str(tmp_path / "pard")).method == "pard"
    assert "--head THIS_FOLDER" in (tmp_path / "pard/README.md").read_text()
    loaded = PARD.load_head(str(tmp_path / "pard"), target_of()[1], None, counts=np.ones(VOCABULARY, np.int64))
    assert loaded.mask == rarest  # not the rarest of other texts


def test_limits(tmp_path: Path) -> None:
    """Guards what users may ask for: depths that a block has, settings that it has, models that take masks."""
    model, parts = target_of()
    settings = tiny_settings(depth=9)
    with pytest.raises(UsageError, match="8 tokens at most"):
        train_head(PARD, model, tiny_data(), tiny_identity(model), settings, Files(out=tmp_path / "pard"))
    given = tiny_settings(depth=3, on_policy=0.5)
    with pytest.raises(UsageError, match="do not take on_policy"):
        train_head(PARD, model, tiny_data(), tiny_identity(model), given, Files(out=tmp_path / "pard"))
    recipe = PardRecipe(PardStudent(tiny_model("gemma3"), MASK), 3)
    with pytest.raises(UnsupportedError, match="mask"):
        list(recipe.run(train_batch(model, parts, (), 3), parts))
    assert METHODS["pard"].trainable
