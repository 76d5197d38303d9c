"""Experts with quantised matrices: the class's own results, whatever the order in which it keeps its weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from models import SHAPE
from quantizing import quantized_model, rounded
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.quantized.experts import QuantizedExperts, expert_weights, is_experts
from speculant.engines.hf.quantized.modules import replace_weights
from speculant.engines.hf.quantized.products import Activations

pytestmark = pytest.mark.usefixtures("compiled")
IDS = torch.randint(3, 61, (1, 40), generator=torch.Generator().manual_seed(5))
MOE: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "decoder_sparse_step": 1},
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "head_dim": 8},
    "olmoe": {"num_experts": 6, "num_experts_per_tok": 3},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
}


def mixture(name: str) -> Any:
    """Return a random model with experts, whose biases are not zeros."""
    if name not in CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {name}")
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SHAPE | MOE[name])).eval()
    with torch.no_grad():
        for each, weight in model.named_parameters():
            weight.mul_(4) if weight.ndim > 1 else weight.add_(0.3 * torch.randn_like(weight) * ("bias" in each))
    if not any(map(is_experts, model.modules())):
        pytest.skip("this release of transformers keeps experts apart")
    return model


def expanded(model: Any) -> Any:
    """Return a copy of a model with the values to which its matrices are rounded."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for module in model.modules():
            if type(module) in (nn.Linear, nn.Embedding):
                module.weight.copy_(rounded(module.weight).dequantize())
            elif is_experts(module):
                for name, given in expert_weights(module).items():
                    _write(module, name, rounded(given).dequantize())
    return model


def _write(module: Any, name: str, values: Tensor) -> None:
    """Put the matrices of a projection to where the class keeps them."""
    values = values.view(module.num_experts, -1, values.shape[1])
    if name == "down_proj":
        (module.down_proj.mT if module.is_transposed else module.down_proj).copy_(values)
        return
    both = module.gate_up_proj.mT if module.is_transposed else module.gate_up_proj
    second = name == "up_proj"
    if module.is_concatenated:
        both.chunk(2, dim=1)[second].copy_(values)
    else:
        both[:, int(second) :: 2].copy_(values)


@pytest.mark.parametrize("name", MOE)
def test_a_mixture_has_the_results_of_its_class(name: str) -> None:
    """Guards the order of axes, gates and experts, biases, limits and weights of the router."""
    model = mixture(name)
    quantized = quantized_model(model, activations="float")
    assert any(isinstance(module, QuantizedExperts) for module in quantized.modules())
    with torch.inference_mode():
        found, expected = quantized(IDS).logits, expanded(model)(IDS).logits
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        fast = prepare_model(quantized, None).model_for(quantized, 40)(IDS).logits
        torch.testing.assert_close(fast, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("activations", ["int8", "float"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_those_beside_it(name: str, activations: Activations, dtype: torch.dtype) -> None:
    """Guards that rows which share an expert change no bit of each other."""
    model = quantized_model(mixture(name), activations=activations).to(dtype)
    experts = next(module for module in model.modules() if isinstance(module, QuantizedExperts))
    torch.manual_seed(2)
    x, chosen = torch.randn(30, 32, dtype=dtype), torch.stack([torch.randperm(4)[:2] for _ in range(30)])
    weights = torch.rand(30, 2).to(dtype)
    with torch.inference_mode():
        whole = experts(x, chosen, weights)
        assert whole.dtype is dtype
        for rows in (1, 2, 7, 19):
            assert torch.equal(experts(x[:rows], chosen[:rows], weights[:rows]), whole[:rows])
        moved = experts(x[:3], torch.full((3, 2), experts.num_experts), weights[:3])
        assert not moved.any()  # the index beyond the last stands for experts of other processes


def test_copies_do_not_share_addresses() -> None:
    """Guards copies of a model, whose compiled arguments point to memory of their own."""
    model = quantized_model(mixture("mixtral"))
    with torch.inference_mode():
        expected = model(IDS).logits
        copied = copy.deepcopy(model)
        del model
        assert torch.equal(copied(IDS).logits, expected)


def test_missing_and_uneven_matrices_are_refused() -> None:
    """Guards files that lack a projection, and experts whose outputs do not fill whole blocks."""
    model = mixture("mixtral")
    path, experts = next((path, each) for path, each in model.named_modules() if is_experts(each))
    weights = {f"{path}.{name}": rounded(weight) for name, weight in expert_weights(experts).items()}
    with pytest.raises(UnsupportedError, match=r"the file .*down_proj"):
        replace_weights(copy.deepcopy(model), {name: each for name, each in weights.items() if "up" not in name})
    torch.manual_seed(7)
    shape = SHAPE | MOE["mixtral"] | {"intermediate_size": 40}
    odd = AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", **shape))
    with pytest.raises(UnsupportedError, match="not a multiple of 16"):
        quantized_model(odd)
