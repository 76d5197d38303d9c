"""Training of heads that read text: GLIDE, PaSS and SpecDec."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from block_heads import check_training, lent_cache, overfit, target_of, train_batch
from speculant.api.heads import open_head
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.glide.recipe import GlideRecipe
from speculant.drafters.heads.pass_.recipe import PaSSRecipe
from speculant.drafters.heads.specdec.recipe import SpecDecRecipe
from speculant.training.kinds import find_kind
from text_heads import glide_head, pass_head, specdec_head


def recipe_of(name: str, parts: object) -> GlideRecipe | PaSSRecipe | SpecDecRecipe:
    if name == "glide":
        return GlideRecipe(glide_head(parts), depth=3)
    return PaSSRecipe(pass_head()) if name == "pass" else SpecDecRecipe(specdec_head())


@pytest.mark.parametrize("name", ["glide", "pass", "specdec"])
def test_training_is_drafting(name: str) -> None:
    """Guards pairing, masks and positions: each depth in training gives what is drafted after the same text."""
    model, parts = target_of()
    recipe = recipe_of(name, parts)
    batch = train_batch(model, parts, (), recipe.depth)

    def open_state(place: int) -> object:
        text, row = batch.anchors[place].tolist()
        cache = lent_cache(model, batch.ids[text, : row + 1])
        return recipe.head.open_text(batch.ids[text, :1].tolist(), parts, cache)

    check_training(recipe, batch, parts, open_state)


@pytest.mark.parametrize("name", ["glide", "pass", "specdec"])
def test_overfits(name: str) -> None:
    """Guards gradients: the loss on a few texts falls, and the target gets none."""
    model, parts = target_of()
    model.requires_grad_(False)
    recipe = recipe_of(name, parts)
    losses = overfit(recipe, train_batch(model, parts, (), recipe.depth), parts, steps=40, rate=2e-2)
    assert losses[-1] < (0.95 if name == "pass" else 0.8) * losses[0]  # PaSS has few weights, and its first depth none
    assert all(weight.grad is not None for weight in recipe.head.parameters())


def test_targets_without_one_mask_are_refused() -> None:
    """Guards PaSS's training on models whose layers take several masks."""
    _, parts = target_of("gemma3")
    with pytest.raises(UnsupportedError, match="mask"):
        parts.run(torch.zeros(1, 2, 32), torch.zeros(1, 2, dtype=torch.long), torch.ones(1, 1, 2, 2).bool())


@pytest.mark.parametrize("model_name", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("name", ["glide", "specdec"])
def test_new_heads_start_as_the_target(name: str, model_name: str, tmp_path: Path) -> None:
    """Guards what is copied, biases and norms of queries and keys included, and that the folder keeps it."""
    model, parts = target_of(model_name)
    kind = find_kind(name)
    head = kind.new_head(parts, options={"encoder": 2} if name == "specdec" else {})
    own, target = head.state_dict(), model.state_dict()
    same = {"embed_tokens.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    if name == "glide":
        places = {"layers.0.self_attn": 0, "layers.0.input_layernorm": 0, "layers.0.mlp": 2, "layers.0.post": 2}
        same |= {
            each: each.replace("layers.0", f"model.layers.{layer}")
            for part, layer in places.items()
            for each in own
            if each.startswith(part)
        }
        same |= {
            f"layers.0.cross_attn.{part}_proj.weight": f"model.layers.2.self_attn.{part}_proj.weight" for part in "qo"
        }
    else:
        layers = {"encoder.0": 0, "encoder.1": 1, "decoder.0": 2}
        same |= {each: f"model.layers.{layers[each[:9]]}{each[9:]}" for each in own if each[:9] in layers}
        same["encoder_norm.weight"] = "model.layers.2.input_layernorm.weight"
    assert set(own) - set(same) == {"lm_head.weight"}
    for mine, its in same.items():
        torch.testing.assert_close(own[mine][: len(target[its])], target[its], atol=1e-6, rtol=1e-6)
    kind.save_head(head, tmp_path, parts)
    loaded = open_head(tmp_path, model).head.state_dict()
    assert all(torch.equal(loaded[each], own[each]) for each in own)


@pytest.mark.parametrize("name", ["dflash", "glide", "pass", "specdec"])
def test_new_heads_are_trained_and_saved(name: str, tmp_path: Path) -> None:
    """Guards the row of each kind: a new head runs in its recipe at the default depth, and its folder loads."""
    model, parts = target_of()
    model.requires_grad_(False)
    kind = find_kind(name)
    head = kind.new_head(parts)
    recipe = kind.new_recipe(head, kind.depth)
    outputs = list(recipe.run(train_batch(model, parts, head.taps, kind.depth), parts))
    assert len(outputs) == kind.depth
    kind.save_head(head, tmp_path, parts)
    assert open_head(tmp_path, model).kind == name
