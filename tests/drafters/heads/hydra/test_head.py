"""Hydra heads compute the formula of their authors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from feed_forward_heads import HEADS, HIDDEN, PREFIX, new_hydra, tiny_target
from speculant.drafters.heads.hydra.head import HydraHead
from speculant.engines.hf.views.target_parts import HFTargetParts

TOKENS = [4, 5, 6]  # the root, and two nodes in a chain


def drafted(head: HydraHead, target: HFTargetParts, hidden: Tensor) -> list[Tensor]:
    """Return the logits [V] of all depths of a chain."""
    state = head.open(0, target)
    state.extend(hidden, torch.tensor([9] * (len(hidden) - 1) + TOKENS[:1]))
    return [state.start()[0], state.grow([5], [-1])[0], state.grow([6], [0])[0]]


def formula(head: HydraHead, target: HFTargetParts, feature: Tensor) -> list[Tensor]:
    """Return the same, written out."""
    w, plus = head.state_dict(), head.shape.prefix is not None
    found = []
    for i in range(HEADS):
        x = torch.cat([feature, *(target.embed(torch.tensor(token)) for token in TOKENS[: i + 1])])
        for block in range(3):
            name = f"hydra_mlp.{i}.{2 * block + 1 if plus else block}."
            kept = w[f"{name}res_connection.weight"] @ x + w[f"{name}res_connection.bias"] if block == 0 else x
            x = kept + silu(w[f"{name}linear.weight"] @ x + w[f"{name}linear.bias"])
        name = f"hydra_lm_head.{i}.1." if plus else f"hydra_lm_head.{i}."
        found.append(w[f"{name}weight"] @ x + w[f"{name}bias"])
    return found


def test_hydra() -> None:
    """Guards the order of states and embeddings, the projection of the residual, and biases of the output."""
    target, head = tiny_target(), new_hydra()
    hidden = torch.randn(3, 1, HIDDEN)
    with torch.inference_mode():
        wanted = formula(head, target, target.norm(hidden[-1, 0]))
        torch.testing.assert_close(drafted(head, target, hidden), wanted, atol=1e-4, rtol=1e-4)


def test_an_earlier_layer_goes_without_the_final_norm() -> None:
    """Guards `hidden_state_offset`: the authors read such states as they are."""
    target, head = tiny_target(), new_hydra(layer=1)
    hidden = torch.randn(3, 1, HIDDEN)
    with torch.inference_mode():
        wanted = formula(head, target, hidden[-1, 0])
        torch.testing.assert_close(drafted(head, target, hidden), wanted, atol=1e-4, rtol=1e-4)
    assert head.taps == (1,)


def test_the_decoder_layer_of_hydra_plus_plus() -> None:
    """Guards its norms, rotary positions and causal attention over the whole text, against plain formulas."""
    target, head = tiny_target(), new_hydra(prefix=PREFIX)
    hidden = torch.randn(5, 1, HIDDEN)
    prefix = "prefix_embeding_layer."
    w = {name.removeprefix(prefix): t for name, t in head.state_dict().items() if name.startswith(prefix)}
    w |= {name.removeprefix("layers.0."): t for name, t in w.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        return w[name] * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()

    def rotate(x: Tensor) -> Tensor:  # [5, heads, 8]
        angles = torch.arange(5)[:, None] * 10000.0 ** -(torch.arange(4) / 4)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        a, b = x[..., :4], x[..., 4:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    with torch.inference_mode():
        x = target.norm(hidden[:, 0])
        given = norm(x, "input_layernorm.weight")
        q = rotate((given @ w["self_attn.q_proj.weight"].T).view(5, 4, 8))
        k = rotate((given @ w["self_attn.k_proj.weight"].T).view(5, 2, 8)).repeat_interleave(2, 1)
        v = (given @ w["self_attn.v_proj.weight"].T).view(5, 2, 8).repeat_interleave(2, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / 8**0.5
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", scores, v).reshape(5, 32)
        x = x + attended @ w["self_attn.o_proj.weight"].T
        y = norm(x, "post_attention_layernorm.weight")
        gated = silu(y @ w["mlp.gate_proj.weight"].T) * (y @ w["mlp.up_proj.weight"].T)
        feature = norm(x + gated @ w["mlp.down_proj.weight"].T, "norm.weight")[-1]
        wanted = formula(head, target, feature)
        torch.testing.assert_close(drafted(head, target, hidden), wanted, atol=1e-4, rtol=1e-4)
