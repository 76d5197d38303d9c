"""Modules with quantised weights: their results, what a model may still do to them, and what is refused."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from models import deep_model
from quantizing import quantized_model, rounded
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.modules import (
    QuantizedEmbedding,
    QuantizedLinear,
    quantized_modules,
    replace_weights,
)

IDS = torch.tensor([[5, 9, 14, 3, 8, 5, 9, 14]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_that_of_the_dequantised_matrix(dtype: torch.dtype, bias: bool) -> None:
    """Guards outputs, their dtype and the bias; with inputs kept, nothing else is rounded."""
    torch.manual_seed(0)
    given = torch.randn(40) if bias else None
    layer = QuantizedLinear(rounded(torch.randn(40, 96)), given, dtype=torch.float32, activations="float").to(dtype)
    x = torch.randn(2, 3, 96, dtype=dtype)
    expected = F.linear(x.double(), layer.quantized.dequantize().double(), None if given is None else given.double())
    with torch.inference_mode():
        found = layer(x)
    assert found.dtype is dtype
    assert layer(x[:, :0]).shape == (2, 0, 40)
    tolerance = 1e-4 if dtype is torch.float32 else 0.05
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


def test_rounding_inputs_to_8_bits_costs_little() -> None:
    """Guards the default: a product's error stays below a hundredth of its size."""
    torch.manual_seed(0)
    weight, x = rounded(torch.randn(64, 256)), torch.randn(5, 256)
    kept, rough = (QuantizedLinear(weight, None, dtype=torch.float32, activations=each) for each in ("float", "int8"))
    with torch.inference_mode():
        assert (kept(x) - rough(x)).norm() < 0.01 * kept(x).norm()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("activations", ["int8", "float"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_those_beside_it(bits: int, activations: Any, dtype: torch.dtype) -> None:
    """Guards that drafts change nothing of a row, not to the last bit."""
    torch.manual_seed(0)
    layer = QuantizedLinear(rounded(torch.randn(70, 160), bits=bits), None, dtype=dtype, activations=activations)
    x = torch.randn(64, 160, dtype=dtype)
    with torch.inference_mode():
        whole = layer(x)
        for rows in (1, 2, 3, 5, 8, 17, 33):
            assert torch.equal(layer(x[:rows]), whole[:rows])
            assert torch.equal(layer(x[-rows:]), whole[-rows:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings_are_rows_of_the_matrix(dtype: torch.dtype) -> None:
    """Guards lookups, and the constant that Gemma multiplies them by, rounded to the dtype."""
    weight, ids = rounded(torch.randn(50, 40), bits=4), torch.tensor([[3, 49, 3], [0, 1, 2]])
    rows = weight.dequantize().to(dtype)[ids]
    assert torch.equal(QuantizedEmbedding(weight, dtype=dtype)(ids), rows)
    scaled = QuantizedEmbedding(weight, dtype=dtype, scale=6.32455532)
    assert torch.equal(scaled(ids), rows * torch.tensor(6.32455532).to(dtype))
    assert torch.equal(scaled.rows(ids), rows)
    with pytest.raises(IndexError):
        scaled(torch.tensor([50]))


def test_a_gradient_goes_through_the_product() -> None:
    """Guards heads that are trained through the target's output projection."""
    layer = QuantizedLinear(rounded(torch.randn(40, 32)), None, dtype=torch.float32)
    x = torch.randn(3, 32, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, layer.dequantize().sum(0).expand(3, 32))
    assert not any(each.requires_grad for each in layer.parameters())


def test_casting_a_model_leaves_the_packed_tensors_alone() -> None:
    """Guards `model.to(...)`: scales stay float32, and other devices and dtypes are refused."""
    model = quantized_model(deep_model("qwen2"))
    before = {name: part.clone() for name, part in model.named_buffers() if "packed" in name}
    model.bfloat16()
    assert model.dtype is torch.bfloat16
    assert model.lm_head.weight.dtype is torch.bfloat16
    assert model(IDS).logits.dtype is torch.bfloat16
    after = {name: part for name, part in model.named_buffers() if "packed" in name}
    assert len(before) == len(after) > 40
    assert all(torch.equal(after[name], before[name]) for name in before)
    with pytest.raises(UnsupportedError, match="float32 or bfloat16, not"):
        model.half()
    with pytest.raises(UnsupportedError, match="cannot be moved to meta"):
        model.to("meta")


def test_a_module_tells_shape_and_dtype_of_its_weight() -> None:
    """Guards transformers' own questions, and that nobody computes with a weight that is not there."""
    layer = QuantizedLinear(rounded(torch.randn(40, 32)), None, dtype=torch.bfloat16)
    assert layer.weight.shape == (40, 32)
    assert (layer.weight.dtype, layer.weight.device.type) == (torch.bfloat16, "cpu")
    assert layer.weight.numel() == 1280
    assert (layer.weight.size(1), len(layer.weight)) == (32, 40)
    with pytest.raises(AttributeError, match="is packed and has no 'detach'"):
        layer.weight.detach()
    with pytest.raises(TypeError):
        F.linear(torch.randn(3, 32), layer.weight)  # type: ignore[arg-type]


def test_half_a_model_is_not_saved() -> None:
    """Guards `state_dict` and `save_pretrained`, which could not hold the weights; copies and pickles do."""
    model = quantized_model(deep_model("llama"))
    with pytest.raises(UnsupportedError, match=r"model\.embed_tokens are packed"):
        model.state_dict()
    with torch.inference_mode():
        expected = model(IDS).logits
        assert torch.equal(copy.deepcopy(model)(IDS).logits, expected)
        assert torch.equal(pickle.loads(pickle.dumps(model))(IDS).logits, expected)


def test_weights_are_replaced_by_name() -> None:
    """Guards a model of which some layers stay float, and the tied output head, which shares the matrix."""
    model = deep_model("llama", tie_word_embeddings=True)
    quantized = quantized_model(model, but=("o_proj",))
    assert quantized.lm_head.quantized is quantized.model.embed_tokens.quantized
    assert type(quantized.model.layers[0].self_attn.o_proj) is nn.Linear
    assert len([*quantized_modules(quantized)]) == 3 * 6 + 2
    with torch.inference_mode():
        found, expected = quantized(IDS).logits, model(IDS).logits
    assert 0 < (found - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.self_attn.q_proj.bias", "lm_head.scale"])
def test_only_matrices_are_replaced(name: str) -> None:
    """Guards names that belong to nothing, or to something else than a matrix."""
    with pytest.raises(UnsupportedError, match=name):
        replace_weights(deep_model("qwen2"), {name: rounded(torch.randn(16, 32))})


def test_another_shape_is_refused() -> None:
    """Guards files of another model: the message gives both shapes."""
    with pytest.raises(UnsupportedError, match=r"16 x 32 weights in the file and \(61, 32\) in the model"):
        replace_weights(deep_model("qwen2"), {"lm_head.weight": rounded(torch.randn(16, 32))})


def test_what_compiled_code_cannot_read_is_refused() -> None:
    """Guards memory: a matrix whose parts do not fit each other, and inputs of another width."""
    weight = rounded(torch.randn(40, 96))
    with pytest.raises(ValueError, match="values has the shape"):
        QuantizedLinear(replace(weight, values=weight.values[:2]), None, dtype=torch.float32)
    with pytest.raises(ValueError, match="inputs of 64 numbers"):
        QuantizedLinear(weight, None, dtype=torch.float32)(torch.randn(3, 64))
