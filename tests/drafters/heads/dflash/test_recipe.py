"""Training of DFlash and DSpark heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from block_heads import overfit, random_weights, target_of, train_batch
from dflash_heads import BLOCKS, SHAPE, dflash_head
from models import tiny_model
from speculant import Speculator
from speculant.core.errors import UsageError
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.drafters.heads.dflash.recipe import DFlashRecipe, new_dflash
from speculant.engines.hf.views.target_parts import HFTargetParts
from trainings import tiny_training


@pytest.mark.parametrize("name", BLOCKS)
def test_training_is_drafting(name: str) -> None:
    """Guards pairing, mask and positions: a block in training gives what it drafts after the same text."""
    model, parts = target_of()
    head = dflash_head(BLOCKS[name])
    recipe = DFlashRecipe(head)
    batch = train_batch(model, parts, head.taps, recipe.depth)
    with torch.no_grad():
        outputs = list(recipe.run(batch, parts))
    for place, (text, row) in enumerate(batch.anchors.tolist()):
        state = head.open(0, parts)
        with torch.no_grad():
            state.extend(batch.hidden[text, : row + 1], batch.ids[text, 1 : row + 2])
            found = [state.start()]
            for depth in range(1, recipe.depth):
                found.append(state.grow([int(batch.ids[text, row + 1 + depth])], [depth - 2]))
        for depth, output in enumerate(outputs, 1):
            held = found[depth - 1][0].isfinite()  # a selector drops tokens that training needs
            torch.testing.assert_close(output.logits[place][held], found[depth - 1][0][held], atol=1e-4, rtol=1e-4)
            assert bool(output.logits[place].isfinite().all())
            assert int(output.tokens[place]) == int(batch.ids[text, row + 1 + depth])
    want = model(batch.ids).logits[batch.anchors[:, 0], batch.anchors[:, 1] + 2]
    torch.testing.assert_close(outputs[1].target, want.detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"markov": 4, "confidence": True}, {"domino": 6}, {"selector": 6}, {"causal": True}],
    ids=str,
)
def test_overfits(options: dict[str, Any]) -> None:
    """Guards gradients of every weight: the loss on a few texts falls far."""
    model, parts = target_of()
    head = new_dflash(parts, shape=SHAPE, mask=3, size=4, **options)
    recipe = DFlashRecipe(head, depth=3)
    losses = overfit(recipe, train_batch(model, parts, head.taps, 3), parts)
    assert losses[-1] < 0.5 * losses[0]
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in head.parameters())


@pytest.mark.parametrize(
    ("options", "architecture", "method"),
    [
        ({"markov": 4}, "Qwen3DSparkModel", "dflash"),
        ({"domino": 6}, "DominoDraftModel", "dflash"),
        ({"selector": 6}, "DFlash2DraftModel", "dflash"),
        ({"causal": True}, "DFlashDraftModel", "jetspec"),
    ],
    ids=str,
)
def test_what_is_trained_is_read_again(tmp_path: Path, options: dict[str, Any], architecture: str, method: str) -> None:
    """Guards `train dflash --set`: the folder is in the public layout, and drafts by the head's method."""
    model = tiny_model("llama")
    assert tiny_training(tmp_path, kind="dflash", model=model, files={"options": options}, feature_weight=1.0)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [architecture]
    loaded = load_head(tmp_path, HFTargetParts(model))
    assert loaded.method == method
    speculator = Speculator.from_transformers(model, head=loaded, nodes=5, fast=False)
    assert speculator.generate([5, 7, 9], max_new_tokens=10, temperature=0).stats.drafted > 0


def test_one_correction_at_most() -> None:
    """Guards against a head that would use one of two corrections only."""
    with pytest.raises(UsageError, match="set one of them"):
        new_dflash(target_of()[1], markov=4, selector=4)


def test_draft_vocabulary() -> None:
    """Guards heads with fewer tokens: targets are restricted to them, and tokens that they lack count as -1."""
    model, parts = target_of()
    ids = torch.arange(0, 40, 2)
    head = dflash_head(BLOCKS["deepspec"], ids=ids)
    random_weights(head)
    batch = train_batch(model, parts, head.taps, 2)
    output = next(iter(DFlashRecipe(head, depth=2).run(batch, parts)))
    assert output.logits.shape == output.target.shape == (len(batch.anchors), len(ids))
    tokens = batch.ids[batch.anchors[:, 0], batch.anchors[:, 1] + 2]
    assert output.tokens.tolist() == [t // 2 if t < 40 and t % 2 == 0 else -1 for t in tokens.tolist()]


def test_depth_is_bounded() -> None:
    """Guards the range of depths: a block has no more."""
    with pytest.raises(UsageError, match="from 1 to 4"):
        DFlashRecipe(dflash_head(BLOCKS["z-lab"]), depth=5)
