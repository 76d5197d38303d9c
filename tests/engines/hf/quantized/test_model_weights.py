"""What is asked of models that may have quantised weights."""

from __future__ import annotations

import torch
from torch import nn

from models import tiny_model
from quantizing import quantized_model
from speculant.engines.hf.quantized.model_weights import count_weights, expand_weights, rounding_dtype
from speculant.training.fingerprint import weights_digest


def test_weights_are_counted_as_those_of_the_float_model() -> None:
    """Guards threads and costs that are chosen by size; tied matrices count once, as parameters do."""
    model = tiny_model("llama", tie_word_embeddings=True)
    expected = sum(weight.numel() for weight in model.parameters())
    assert count_weights(model) == count_weights(quantized_model(model)) == expected


def test_an_expanded_layer_has_the_same_weights() -> None:
    """Guards heads that begin as copies of a target's layer: they can be trained."""
    layer = quantized_model(tiny_model("qwen2")).model.layers[1]
    weight = layer.mlp.up_proj.dequantize()
    expanded = expand_weights(layer)
    assert expanded is layer
    assert type(layer.mlp.up_proj) is nn.Linear
    assert torch.equal(layer.mlp.up_proj.weight, weight)
    assert layer.mlp.up_proj.weight.requires_grad
    assert layer.self_attn.q_proj.bias is not None


def test_products_that_round_their_inputs_are_as_exact_as_bfloat16() -> None:
    """Guards probes, which compare passes with the model's own within what rounding explains."""
    model = tiny_model("llama")
    assert rounding_dtype(model) is torch.float32
    assert rounding_dtype(quantized_model(model)) is torch.bfloat16
    assert rounding_dtype(quantized_model(model, activations="float")) is torch.float32


def test_a_digest_names_the_quantised_weights() -> None:
    """Guards heads that are trained for one target: packed matrices are part of its identity."""
    model = tiny_model("llama")
    digests = {weights_digest(each) for each in (model, quantized_model(model), quantized_model(model, bits=4))}
    assert len(digests) == 3
