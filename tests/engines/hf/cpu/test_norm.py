"""The norm after the last layer in compiled code: the model's own values, and the model's own code where it differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fused_layers import model_of
from speculant.engines.hf.cpu.accelerate import prepare_model

pytestmark = pytest.mark.usefixtures("compiled")


def shadow_of(model: Any) -> Any:
    return prepare_model(model, True).model_for(model, 8).model.norm


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with every call of transformers' own forward."""
    model, seen = model_of("llama"), list[int]()
    kind = type(model.model.norm)
    own = kind.forward

    def count(module: nn.Module, x: Tensor) -> Tensor:
        seen.append(1)
        output: Tensor = own(module, x)
        return output

    count.__module__ = own.__module__
    monkeypatch.setattr(kind, "forward", count)
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
@torch.inference_mode()
def test_values_are_those_of_the_model(name: str, dtype: torch.dtype) -> None:
    """Guards the logits: the same values but for the order of a sum, and each row's whatever the number of rows."""
    model = model_of(name).to(dtype)
    x = torch.randn(2, 7, model.config.hidden_size, dtype=dtype)
    found = shadow_of(model)(x)
    tolerance = 1e-6 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(found, model.model.norm(x), atol=tolerance, rtol=tolerance)
    assert torch.equal(shadow_of(model)(x[1:, 3:4]), found[1:, 3:4])


@torch.inference_mode()
def test_new_weights_take_effect(calls: list[int]) -> None:
    """Guards models that change between two passes."""
    model = model_of("llama")
    norm, x = shadow_of(model), torch.randn(1, 3, model.config.hidden_size)
    before = norm(x)
    assert not calls
    model.model.norm.weight = nn.Parameter(2 * model.model.norm.weight)
    torch.testing.assert_close(norm(x), 2 * before)
    model.model.norm.weight.data.mul_(2)
    torch.testing.assert_close(norm(x), 4 * before)


@torch.inference_mode()
def test_other_rows_and_weights_are_left_to_the_model(calls: list[int]) -> None:
    """Guards rows that do not lie one after the other, other dtypes, other forwards and gradients."""
    model = model_of("llama")
    norm, x = shadow_of(model), torch.randn(1, 6, model.config.hidden_size)
    torch.testing.assert_close(norm(x[:, ::2]), norm(x)[:, ::2])
    assert len(calls) == 1
    norm(x.double())
    assert len(calls) == 2
    with torch.inference_mode(False), torch.enable_grad():
        assert norm(x.clone()).requires_grad
    assert len(calls) == 3
    model.model.norm.forward = lambda x: x
    assert shadow_of(model)(x) is x
