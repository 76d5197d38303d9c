"""Layers that heads read, in both conventions of public configs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagles import target_model
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.checkpoints.tapped_layers import KEY, native_taps
from speculant.engines.hf.views.target_parts import HFTargetParts

NVIDIA = "use_input_layernorm_in_first_layer"


@pytest.mark.parametrize(
    ("config", "taps"),
    [
        ({}, (1, 3, 4)),
        ({KEY: []}, (1, 3, 4)),
        ({KEY: [2, 4, 5]}, (1, 3, 4)),
        ({KEY: [1, 3, 4]}, (0, 2, 3)),
        ({"eagle_config": {KEY: [1, 3, 4]}}, (1, 3, 4)),
        ({"eagle_config": {KEY: [1, 3, 4], NVIDIA: True}}, (1, 3, 4)),
        ({"eagle_config": {KEY: [2, 4, 5]}}, (1, 3, 4)),
        ({"eagle_config": {KEY: [2, 3, 7]}}, (2, 3, 7)),
        ({"eagle_config": {KEY: [2, 3, 7], NVIDIA: True}}, (1, 2, 6)),
        ({KEY: [3, 4, 8], "eagle_config": {KEY: [2, 3, 7]}}, (2, 3, 7)),
        ({"target_layer_ids": [0, 2, 4, 5, 7]}, (0, 2, 4, 5, 7)),
    ],
    ids=str,
)
def test_both_conventions_lead_to_the_same_layers(
    target: HFTargetParts, config: dict[str, Any], taps: tuple[int, ...]
) -> None:
    """Guards against states that are off by one layer, which nothing but acceptance would show."""
    assert native_taps(Checkpoint("head", config, {}), target) == taps


def test_boundaries_are_inputs_of_layers() -> None:
    """Guards the meaning: boundary b is what layer b is given, that is, the output of layer b - 1."""
    model = target_model()
    found: dict[str, torch.Tensor] = {}
    model.model.layers[4].register_forward_pre_hook(lambda _, given: found.__setitem__("boundary", given[0]))
    model.model.layers[3].register_forward_hook(
        lambda _, __, output: found.__setitem__("layer", output[0] if isinstance(output, tuple) else output)
    )
    with torch.no_grad():
        model(torch.tensor([[5, 6, 7]]))
    assert torch.equal(found["boundary"].reshape(-1), found["layer"].reshape(-1))
    taps = native_taps(Checkpoint("head", {KEY: [4, 5, 6]}, {}), HFTargetParts(model))
    assert taps[0] == 3


@pytest.mark.parametrize("layers", [3, 5, 6])
def test_small_targets_have_no_default_layers(layers: int) -> None:
    """Guards targets whose default layers coincide: the message says what to write."""
    target = HFTargetParts(target_model(num_hidden_layers=layers))
    with pytest.raises(UnsupportedError, match=f'with {layers} layers.*"{KEY}": '):
        native_taps(Checkpoint("head", {}, {}), target)
