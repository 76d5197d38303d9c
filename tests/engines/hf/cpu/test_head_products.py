"""Single products of heads: near PyTorch's, from copies for the fewest rows, and what is left to PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from speculant.engines.hf.cpu import head_products
from speculant.engines.hf.cpu.build import load_native
from speculant.engines.hf.cpu.head_products import HeadProducts
from speculant.engines.hf.cpu.products import Products

pytestmark = pytest.mark.usefixtures("compiled")


def new_products() -> HeadProducts:
    """Return products that have seen no layer."""
    return HeadProducts(lambda: Products(load_native()))


def test_large_products_of_few_rows_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards output projections, and that they stay those of PyTorch where gradients are wanted."""
    monkeypatch.setattr(head_products, "MIN_LINEAR", 1)
    products, linear = new_products(), nn.Linear(32, 100)
    x = torch.randn(5, 32)
    with torch.inference_mode():
        torch.testing.assert_close(products(linear, x), linear(x))
    assert products(linear, x).requires_grad
    assert torch.equal(products(linear, x[:1]), linear(x[:1]))


def test_layers_that_a_user_changed_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards forwards that are replaced and hooks, before and after the layer was first seen."""
    monkeypatch.setattr(head_products, "MIN_LINEAR", 1)
    products, x = new_products(), torch.ones(2, 32)
    with torch.inference_mode():
        for seen in (False, True):
            replaced, hooked = nn.Linear(32, 100), nn.Linear(32, 100)
            if seen:
                products(replaced, x)
                products(hooked, x)
            replaced.forward = lambda _: torch.zeros(())  # type: ignore[method-assign]
            hooked.register_forward_hook(lambda *_: torch.ones(()))
            assert products(replaced, x) == 0
            assert products(hooked, x) == 1


@pytest.mark.parametrize("bias", [True, False])
def test_products_of_the_fewest_rows_read_narrow_copies(monkeypatch: pytest.MonkeyPatch, *, bias: bool) -> None:
    """Guards copies in bfloat16: near the layer's product, made anew when it changes, none where memory is short."""
    monkeypatch.setattr(head_products, "MIN_LINEAR", 1)
    products, linear, x = new_products(), nn.Linear(32, 100, bias=bias), torch.randn(2, 2, 32)
    with torch.inference_mode():
        for _ in range(2):
            found, copied = products(linear, x), nn.functional.linear(x, linear.weight.bfloat16().float())
            torch.testing.assert_close(found, copied + linear.bias if bias else copied)
            assert not torch.allclose(found, linear(x), atol=1e-6)
            with torch.no_grad():
                linear.weight.mul_(2)
    monkeypatch.setattr(head_products, "memory_allows", lambda _: (False, 0))
    with torch.inference_mode():
        torch.testing.assert_close(new_products()(linear, x), linear(x))
