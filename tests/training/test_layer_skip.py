"""LayerSkip's layer dropout and loss against the paper's equations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from models import deep_model
from speculant.core.errors import UsageError
from speculant.training.layer_skip import LayerSkip, LayerSkipSettings, dropout_rate, loss_weights


def test_dropout_grows_with_depth_and_time() -> None:
    """Guards equations 2 to 4: none for the first layer, p_max for the last at the end of a training from scratch."""
    settings = LayerSkipSettings(dropout=0.2)
    assert dropout_rate(settings, 0, 8, 1.0) == 0
    assert dropout_rate(settings, 7, 8, 1.0) == pytest.approx(0.2)
    assert dropout_rate(settings, 7, 8, 0.0) == 0
    half = (math.exp(3 * math.log(2) / 7) - 1) * (math.exp(0.5 * math.log(2)) - 1) * 0.2
    assert dropout_rate(settings, 3, 8, 0.5) == pytest.approx(half)
    assert dropout_rate(LayerSkipSettings(dropout=0.2, from_scratch=False), 7, 8, 0.0) == pytest.approx(0.2)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0])
def test_scales_of_losses(scale: float) -> None:
    """Guards equations 5 and 6, written as sums."""
    layers = 5
    e = [scale * sum(range(layer + 1)) for layer in range(layers - 1)] + [layers - 1 + scale * sum(range(layers - 1))]
    found = loss_weights(LayerSkipSettings(scale=scale, curriculum="none"), layers, step=0, progress=0.0)
    assert found == pytest.approx([each / sum(e) for each in e])


def test_curricula() -> None:
    """Guards which layers have a loss: every R-th in turn, or more from the top down until half of the training."""
    rotational = LayerSkipSettings(scale=1.0, curriculum="rotational", interval=3)
    on = [{i for i, w in enumerate(loss_weights(rotational, 7, step=step, progress=0.5)) if w} for step in range(3)]
    assert on == [{3, 6}, {1, 4, 6}, {2, 5, 6}]  # e(0) is 0
    gradual = LayerSkipSettings(scale=1.0, curriculum="gradual")
    on = [{i for i, w in enumerate(loss_weights(gradual, 4, step=0, progress=p)) if w} for p in (0.0, 0.13, 0.26, 0.5)]
    assert on == [{3}, {2, 3}, {1, 2, 3}, {1, 2, 3}]


def test_the_loss_of_a_model() -> None:
    """Guards the hooks: the weighted cross-entropies of all exits; gradients reach layers; nothing stays attached."""
    model = deep_model("llama").train()
    settings = LayerSkipSettings(dropout=0.0, scale=1.0, curriculum="none")
    skip = LayerSkip(model.model.layers, lambda x: model.lm_head(model.model.norm(x)), settings)
    ids = torch.randint(5, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    targets = ids.roll(-1, 1).masked_fill(torch.arange(9) == 8, -100)
    skip.begin(0.0)
    states = model(input_ids=ids, output_hidden_states=True).hidden_states
    weights = loss_weights(settings, len(model.model.layers), step=0, progress=0.0)
    exits = [model.model.norm(x) for x in states[1:-1]] + [states[-1]]  # the last is behind the norm
    expected = sum(
        w * nn.functional.cross_entropy(model.lm_head(x).flatten(0, 1), targets.flatten(), ignore_index=-100)
        for w, x in zip(weights, exits, strict=True)
    )
    found = skip.loss(targets, step=0)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)  # type: ignore[attr-defined]
    found.backward()
    assert all(layer.mlp.up_proj.weight.grad is not None for layer in model.model.layers)
    skip.begin(0.0)
    with pytest.raises(UsageError, match="must run once"):
        skip.loss(targets, step=1)
    skip.detach()
    model(input_ids=ids)
    with pytest.raises(UsageError, match="must run once"):
        skip.loss(targets, step=1)


def test_dropped_layers_hand_on_their_input() -> None:
    """Guards layer dropout: whole sequences, in training alone."""
    layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
    skip = LayerSkip(layers, lambda x: x, LayerSkipSettings(dropout=0.9, from_scratch=False))
    x = torch.randn(64, 3, 4)
    torch.manual_seed(1)
    skip.begin(0.0)
    found = layers[1](x)
    same = (found == x).flatten(1).all(1)
    assert 45 < int(same.sum()) < 64
    layers.eval()
    assert not (layers[1](x) == x).flatten(1).all(1).any()


def test_settings_are_checked() -> None:
    """Guards against trainings that mean nothing."""
    for wrong in ({"dropout": 1.0}, {"scale": 2.0}, {"curriculum": "random"}, {"interval": 0}):
        with pytest.raises(UsageError):
            LayerSkipSettings(**wrong)  # type: ignore[arg-type]
