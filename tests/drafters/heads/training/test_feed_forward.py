"""Recipes of feed-forward heads train what drafting runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from feed_forward_heads import HIDDEN, heads, new_medusa, tiny_target
from models import VOCABULARY, tiny_model
from speculant.drafters.heads.blockwise.recipe import BlockwiseRecipe, new_blockwise
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.hydra.recipe import HydraRecipe, new_hydra, new_hydra_plus
from speculant.drafters.heads.medusa.recipe import MedusaRecipe
from speculant.drafters.heads.medusa.recipe import new_medusa as built_medusa
from speculant.drafters.heads.mlp.recipe import MLPRecipe, new_mlp
from speculant.drafters.heads.training.recipe import Recipe, TrainBatch
from speculant.engines.hf.views.target_parts import HFTargetParts

RECIPES: dict[str, Callable[..., Recipe]] = {
    "medusa": MedusaRecipe,
    "hydra": HydraRecipe,
    "mlp": MLPRecipe,
    "blockwise": BlockwiseRecipe,
}


def recipe_of(name: str, head: Any, depth: int) -> Recipe:
    """Return the recipe of a head by its name in `feed_forward_heads`."""
    return RECIPES[name.split("-")[0].removesuffix("++")](head, depth)


def random_batch(target: TargetParts, anchors: list[list[int]]) -> TrainBatch:
    """Return two texts of random tokens and states."""
    source = torch.Generator().manual_seed(8)
    hidden = torch.randn(2, 14, 1, HIDDEN, generator=source)
    with torch.no_grad():
        final = target.norm(hidden[:, :, 0])
    ids = torch.randint(0, VOCABULARY, (2, 14), generator=source)
    return TrainBatch(ids, torch.tensor([14, 12]), hidden, final, torch.tensor(anchors))


@pytest.mark.parametrize("name", heads())
def test_training_forward_equals_drafting(name: str) -> None:
    """Guards pairing, positions and masks at once: each depth after each anchor, against a state that drafts."""
    target, head = tiny_target(), heads()[name]
    batch = random_batch(target, [[0, 0], [1, 3], [0, 9], [1, 7]])
    with torch.no_grad():
        outputs = list(recipe_of(name, head, 3).run(batch, target))
        assert len(outputs) == 3
        for place, (text, row) in enumerate(batch.anchors.tolist()):
            ids = batch.ids[text]
            state = head.open(0, target)  # type: ignore[operator]
            state.extend(batch.hidden[text, : row + 1], ids[1 : row + 2])
            for depth, output in enumerate(outputs):
                logits = state.grow([int(ids[row + 1 + depth])], [depth - 2]) if depth else state.start()
                torch.testing.assert_close(output.logits[place], logits[0], atol=1e-4, rtol=1e-4)
                wanted = target.project(batch.final[text, row + depth + 1])
                torch.testing.assert_close(output.target[place], wanted, atol=1e-5, rtol=1e-5)
                assert output.tokens[place] == ids[row + depth + 2]


def test_reduced_vocabulary() -> None:
    """Guards heads with a token map: the target's logits of their tokens, and -1 for tokens that they lack."""
    target, ids = tiny_target(), torch.arange(20) * 3
    head = new_medusa(vocabulary=20, ids=ids)
    batch = random_batch(target, [[0, 0], [1, 3]])
    with torch.no_grad():
        for depth, output in enumerate(MedusaRecipe(head, 2).run(batch, target), start=1):
            assert output.logits.shape == output.target.shape == (2, 20)
            for place, (text, row) in enumerate(batch.anchors.tolist()):
                token = int(batch.ids[text, row + depth + 1])
                assert output.tokens[place] == (token // 3 if token % 3 == 0 and token < 60 else -1)
                wanted = target.project(batch.final[text, row + depth])[ids]
                torch.testing.assert_close(output.target[place], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["medusa", "medusa-own", "hydra", "hydra++", "mlp", "mlp-tied", "blockwise"])
def test_a_new_head_learns_the_targets_texts(name: str) -> None:
    """Guards gradients to all weights of new heads: what they predict of eight texts rises at every depth."""
    model = tiny_model("llama")
    target = HFTargetParts(model)
    builders: dict[str, Callable[[], Any]] = {
        "medusa": lambda: built_medusa(target),
        "medusa-own": lambda: built_medusa(target, own=True, blocks=2),
        "hydra": lambda: new_hydra(target, blocks=2),
        "hydra++": lambda: new_hydra_plus(target),
        "mlp": lambda: new_mlp(target),
        "mlp-tied": lambda: new_mlp(target, tied=True, inner=40),
        "blockwise": lambda: new_blockwise(target),
    }
    torch.manual_seed(0)
    for weight in model.parameters():
        weight.requires_grad_(False)
    ids = model.generate(torch.randint(3, VOCABULARY, (8, 4)), max_new_tokens=20, min_new_tokens=20, do_sample=True)
    hidden = []
    hook = model.model.layers[-1].register_forward_hook(
        lambda _, __, output: hidden.append(output if torch.is_tensor(output) else output[0])
    )
    with torch.no_grad():
        final = model.model(ids).last_hidden_state
    hook.remove()
    anchors = torch.cartesian_prod(torch.arange(8), torch.arange(3, 18))
    batch = TrainBatch(ids, torch.full((8,), 24), hidden[0][:, :, None], final, anchors)
    recipe = recipe_of(name, builders[name](), 4)

    def agreements() -> list[float]:
        recipe.head.eval()
        with torch.no_grad():
            return [float((o.logits.argmax(-1) == o.tokens).float().mean()) for o in recipe.run(batch, target)]

    before = agreements()
    optimizer = torch.optim.AdamW(recipe.head.parameters(), lr=1e-2)
    recipe.head.train()
    for step in range(60):
        loss = sum(
            (torch.nn.functional.cross_entropy(each.logits, each.tokens) for each in recipe.run(batch, target)),
            torch.zeros(()),
        )
        loss.backward()  # type: ignore[no-untyped-call]
        if not step:
            unused = [n for n, p in recipe.head.named_parameters() if p.grad is None]
            assert not unused
        optimizer.step()
        optimizer.zero_grad()
    after = agreements()
    assert all(new > old + 0.2 for old, new in zip(before, after, strict=True)), (before, after)
