"""Optimizers: AdamW, and Muon for matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.errors import UsageError
from speculant.training.settings import OPTIMIZERS

BETAS = (0.9, 0.95)


def build_optimizers(
    module: nn.Module,
    name: str,
    *,
    lr: float,
    weight_decay: float,
    factors: Mapping[nn.Parameter, float] = MappingProxyType({}),
) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a module's trainable weights.

    Args:
        module: the head.
        name: "adamw", or "muon" for the matrices, with AdamW for the other weights.
        lr, weight_decay: for both; vectors are not decayed.
        factors: factors of the learning rate of some weights, which become the "factor" of their groups.

    Raises:
        UsageError: there is no such optimizer.
    """
    if name not in OPTIMIZERS:
        raise UsageError(f"there is no optimizer {name!r}; there are {', '.join(OPTIMIZERS)}.")
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    matrices, vectors = [w for w in trained if w.ndim >= 2], [w for w in trained if w.ndim < 2]
    if name == "adamw":
        groups = [*_groups(matrices, factors, weight_decay), *_groups(vectors, factors, 0.0)]
        return [torch.optim.AdamW(groups, lr=lr, betas=BETAS)]
    named = dict(module.named_parameters())
    embeddings = [w for key, w in named.items() if w.requires_grad and w.ndim == 2 and _is_table(key)]
    chosen = {id(weight) for weight in embeddings} | {id(weight) for weight in matrices if weight.ndim != 2}
    others = [weight for weight in trained if weight.ndim < 2 or id(weight) in chosen]
    hidden = [weight for weight in matrices if id(weight) not in chosen]
    found: list[torch.optim.Optimizer] = [Muon(_groups(hidden, factors, weight_decay), lr=lr)] if hidden else []
    return found + ([torch.optim.AdamW(_groups(others, factors, 0.0), lr=lr, betas=BETAS)] if others else [])


class Muon(torch.optim.Optimizer):
    """Momentum with updates orthogonalised by a Newton-Schulz iteration, in float32 (Jordan et al. 2024).

    `torch.optim.Muon` iterates in bfloat16, which CPUs without bfloat16 instructions emulate slowly, and is not in
    every supported version of torch.
    """

    def __init__(
        self,
        params: list[nn.Parameter] | list[dict[str, Any]],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the weights that have gradients."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                momentum: Tensor = state.setdefault("momentum", torch.zeros_like(weight, dtype=torch.float32))
                gradient = weight.grad.float()
                momentum.lerp_(gradient, 1 - group["momentum"])
                update = orthogonalize(gradient.lerp(momentum, group["momentum"]))
                scale = group["lr"] * 0.2 * math.sqrt(max(weight.shape))  # as large as AdamW's (Liu et al. 2025)
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update.to(weight.dtype), alpha=-scale)


def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """Return a matrix [m, n] with its singular values pushed near 1 (quintic Newton-Schulz iteration)."""
    transposed = matrix.size(0) > matrix.size(1)
    x: Tensor = matrix.mT if transposed else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if transposed else x


def _groups(
    weights: list[nn.Parameter], factors: Mapping[nn.Parameter, float], weight_decay: float
) -> list[dict[str, Any]]:
    """Return weights in one group per factor of the learning rate."""
    found: dict[float, list[nn.Parameter]] = {}
    for weight in weights:
        found.setdefault(factors.get(weight, 1.0), []).append(weight)
    return [{"params": own, "weight_decay": weight_decay, "factor": factor} for factor, own in found.items()]


def _is_table(name: str) -> bool:
    """Return whether a weight's rows represent tokens, by its name: it is not a map between hidden states."""
    return any(part in name for part in ("embed", "emb.", "lm_head"))
