"""Divergences between head and target."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from speculant.core.errors import UsageError
from speculant.training import losses
from speculant.training.losses import parse_loss


def formula(name: str, p: Tensor, q: Tensor, tokens: Tensor) -> Tensor:
    """Return a divergence from its definition, in float64, row by row."""
    rows = range(len(p))
    if name == "ce":
        return torch.stack([-q[i, tokens[i]].log() for i in rows])
    if name == "kl":
        return (p * (p / q).log()).sum(1)
    if name == "rkl":
        return (q * (q / p).log()).sum(1)
    if name == "tvd":
        return 1 - torch.minimum(p, q).sum(1)
    if name == "top(3)":
        return torch.stack([-sum(p[i, v] * q[i, v].log() for v in p[i].argsort(descending=True)[:3]) for i in rows])
    share = 0.5 if name == "jsd" else float(name[4:-1])
    m = share * p + (1 - share) * q
    return share * (p * (p / m).log()).sum(1) + (1 - share) * (q * (q / m).log()).sum(1)


@pytest.fixture
def given() -> tuple[Tensor, Tensor, Tensor]:
    """Return logits of head and target, and tokens."""
    torch.manual_seed(0)
    return 2 * torch.randn(7, 11), 2 * torch.randn(7, 11), torch.randint(0, 11, (7,))


@pytest.mark.parametrize("name", ["ce", "kl", "rkl", "jsd", "jsd(0.1)", "tvd", "top(3)"])
def test_value_and_gradient_are_the_formula_s(
    name: str, given: tuple[Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the formulas, and the gradient that is computed with them, in pieces of 2 rows."""
    monkeypatch.setattr(losses, "CHUNK", 2 * 11)
    logits, target, tokens = given
    logits.requires_grad_(True)
    wide = logits.detach().double().requires_grad_(True)
    expected = formula(name, target.double().softmax(1), wide.softmax(1), tokens).mean()
    found = parse_loss(name)(logits, target, tokens)
    (3 * found).backward()
    (3 * expected).backward()
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)
    torch.testing.assert_close(logits.grad, wide.grad.float(), atol=1e-6, rtol=1e-5)


def test_sums_are_weighted(given: tuple[Tensor, Tensor, Tensor]) -> None:
    """Guards mixtures, with weights and spaces as users write them."""
    mixed = parse_loss("kl + 0.1 ce + 2*tvd")(*given)
    parts = [parse_loss(name)(*given) for name in ("kl", "ce", "tvd")]
    assert mixed.item() == pytest.approx((parts[0] + 0.1 * parts[1] + 2 * parts[2]).item(), rel=1e-5)


@pytest.mark.parametrize("name", ["kl", "rkl", "jsd", "tvd", "top", "ce"])
def test_tokens_that_the_target_excludes_give_finite_losses(name: str, given: tuple[Tensor, Tensor, Tensor]) -> None:
    """Guards against NaN where the target's logits are -inf, and where a token is not in the head's vocabulary."""
    logits, target, tokens = given
    target[:, 3] = -torch.inf
    tokens[0] = -1
    logits.requires_grad_(True)
    loss = parse_loss(name)(logits, target, tokens)
    loss.backward()
    assert loss.isfinite() or name == "rkl"
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_half_precision_logits_are_compared_in_float32(given: tuple[Tensor, Tensor, Tensor]) -> None:
    """Guards training with autocast: the loss is that of the rounded logits, its gradient in their dtype."""
    logits, target, tokens = given
    half = logits.bfloat16().requires_grad_(True)
    loss = parse_loss("kl")(half, target.bfloat16(), tokens)
    loss.backward()
    assert loss.item() == pytest.approx(parse_loss("kl")(half.float(), target.bfloat16().float(), tokens).item())
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("text", ["", "klx", "kl+", "kl-ce", "jsd(2)", "top(0)", "kl(3)", "jsd(x)"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    """Guards against a misspelled loss that trains on something else."""
    with pytest.raises(UsageError, match="loss"):
        parse_loss(text)
