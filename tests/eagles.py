"""Random heads of EAGLE's family, and their formulas written out without the library's layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from models import VOCABULARY, tiny_model
from speculant.drafters.heads.eagle.head import EagleHead
from speculant.drafters.heads.eagle3.head import Eagle3Head, Eagle3Shape
from speculant.drafters.heads.head import Head, HeadState
from speculant.drafters.heads.layers import LayerShape
from speculant.drafters.heads.mtp.head import MtpHead
from speculant.drafters.heads.mtp.module import MtpModule
from speculant.drafters.heads.p_eagle.head import PEagleHead
from speculant.drafters.heads.target_layer import FULL
from speculant.engines.hf.views.target_parts import HFTargetParts

HIDDEN, LAYERS, IDS = 32, 8, torch.arange(1, VOCABULARY, 2)
SHAPE = LayerShape(hidden=HIDDEN, inner=48, heads=4, kv_heads=2, head_dim=8, theta=500.0)


def target_model(**changes: Any) -> Any:
    """Return a random target of 8 layers."""
    return tiny_model("llama", **{"num_hidden_layers": LAYERS} | changes)


def eagle_head(seed: int = 0, *, fc_bias: bool = True, **changes: Any) -> EagleHead:
    """Return a random EAGLE-1 head; `changes` are of its layer's shape."""
    torch.manual_seed(seed)
    return spread(EagleHead(LayerShape(**layer_fields() | changes), bias=fc_bias))


def eagle3_head(seed: int = 0, *, layer: Mapping[str, Any] | None = None, **changes: Any) -> Eagle3Head:
    """Return a random EAGLE-3 head with a reduced vocabulary unless told otherwise."""
    shape = eagle3_shape(layer or {}, changes)
    torch.manual_seed(seed)
    return spread(Eagle3Head(shape, ids=IDS if shape.draft_vocabulary else None))


def p_eagle_head(seed: int = 0, *, depth: int = 4, **changes: Any) -> PEagleHead:
    """Return a random P-EAGLE head of two layers."""
    shape = eagle3_shape({}, {"layers": 2} | changes)
    torch.manual_seed(seed)
    return spread(PEagleHead(shape, mask_token=3, depth=depth, ids=IDS if shape.draft_vocabulary else None))


def mtp_head(
    seed: int = 0, *, kind: str = "llama", inner: int = 48, config: Mapping[str, Any] | None = None, **options: Any
) -> MtpHead:
    """Return a random MTP head of one module, whose layer is of a target's class.

    `config` changes that target's; `options` are of `MtpModule`.
    """
    parts = HFTargetParts(tiny_model(kind, num_hidden_layers=1, intermediate_size=inner, **config or {}))
    torch.manual_seed(seed)
    return spread(MtpHead([MtpModule(parts, [parts.new_layer(None, FULL)], **options)]))


def eagle3_shape(layer: Mapping[str, Any], changes: Mapping[str, Any]) -> Eagle3Shape:
    """Return a shape that fits `target_model`."""
    fields = {"taps": (1, 3, 4), "target_hidden": HIDDEN, "vocabulary": VOCABULARY, "draft_vocabulary": len(IDS)}
    return Eagle3Shape(layer=LayerShape(**layer_fields() | layer), **fields | changes)


def layer_fields() -> dict[str, Any]:
    """Return the fields of SHAPE."""
    return {name: getattr(SHAPE, name) for name in ("hidden", "inner", "heads", "kv_heads", "head_dim", "theta")}


def spread(head: Any) -> Any:
    """Return a head whose norms differ from 1, so that a missing one shows."""
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if "norm" in name:
                parameter.copy_(0.5 + torch.rand_like(parameter))
    return head.eval()


def states(count: int, taps: int = 3, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return random hidden states [n, L', D], and the tokens Int64[n] after them."""
    source = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, taps, HIDDEN, generator=source)
    return hidden, torch.randint(0, VOCABULARY, (count,), generator=source)


def replayed(head: Head, target: HFTargetParts, hidden: Tensor, following: Tensor) -> HeadState:
    """Return a state that has read all rows at once."""
    state = head.open(0, target)
    with torch.inference_mode():
        state.extend(hidden, following)
    return state


def started(head: Head, target: HFTargetParts, hidden: Tensor, following: Tensor) -> Tensor:
    """Return the logits [1, V'] after the root of a text that was read at once."""
    with torch.inference_mode():
        return replayed(head, target, hidden, following).start()


def plain_text(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """Return what a model generates by itself, greedily."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
    )
    return found[0, len(prompt) :].tolist()


def norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Return an RMS norm."""
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def attention(weights: Mapping[str, Tensor], x: Tensor, positions: Sequence[int], seen: Tensor) -> Tensor:
    """Return the output [n, D] of a layer's attention on x [n, D'], row by row and head by head."""
    shape, rows = SHAPE, len(x)
    q, k, v = ((x @ weights[f"{name}_proj.weight"].T + weights.get(f"{name}_proj.bias", 0)) for name in "qkv")
    found = torch.zeros(rows, shape.heads * shape.head_dim)
    for head in range(shape.heads):
        mine = slice(head * shape.head_dim, (head + 1) * shape.head_dim)
        shared = head // (shape.heads // shape.kv_heads)
        theirs = slice(shared * shape.head_dim, (shared + 1) * shape.head_dim)
        queries, keys = q[:, mine], k[:, theirs]
        if "q_norm.weight" in weights:
            queries, keys = norm(queries, weights["q_norm.weight"]), norm(keys, weights["k_norm.weight"])
        queries = torch.stack([turn(row, place) for row, place in zip(queries, positions, strict=True)])
        keys = torch.stack([turn(row, place) for row, place in zip(keys, positions, strict=True)])
        scores = (queries @ keys.T / shape.head_dim**0.5).masked_fill(~seen, -torch.inf)
        found[:, mine] = scores.softmax(-1) @ v[:, theirs]
    return found @ weights["o_proj.weight"].T


def turn(x: Tensor, position: int) -> Tensor:
    """Return a vector rotated by a position: component i with component i + d / 2, as complex numbers."""
    half = len(x) // 2
    angles = position * SHAPE.theta ** -(torch.arange(half) / half)
    turned = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones(half), angles)
    return torch.cat([turned.real, turned.imag])


def mlp(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the output of a gated MLP."""
    gate, up, down = (weights[f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


def part(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights below a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def eagle_formula(weights: Mapping[str, Tensor], target: HFTargetParts, features: Tensor, following: Tensor) -> Tensor:
    """Return the states [n, D] that EAGLE-1 predicts for a text's rows: no norm before attention, none at the end.

    Args:
        weights: named as in checkpoints.
        target: of the head.
        features: [n, D], the target's states after its final norm, or predicted ones.
        following: Int64[n], the tokens after each.
    """
    layer, x = part(weights, "layers.0."), torch.cat([target.embed(following), features], -1)
    x = x @ weights["fc.weight"].T + weights.get("fc.bias", 0)
    causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    x = x + attention(part(layer, "self_attn."), x, range(len(x)), causal)
    return x + mlp(layer, norm(x, layer["post_attention_layernorm.weight"]))


def eagle3_formula(
    weights: Mapping[str, Tensor],
    shape: Eagle3Shape,
    target: HFTargetParts,
    features: Tensor,
    following: Tensor,
    positions: Sequence[int],
    seen: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return EAGLE-3's logits [n, V'] of rows, and what they pass on [n, D]."""
    embeddings = (
        weights["embed_tokens.weight"][following] if "embed_tokens.weight" in weights else target.embed(following)
    )
    x = features
    for index in range(shape.layers):
        layer = part(weights, f"layers.{index}.")
        if index < shape.wide:
            normed = norm(x, layer["hidden_norm.weight"])
            given = torch.cat([norm(embeddings, layer["input_layernorm.weight"]), normed], -1)
            x = normed if shape.norm_before_residual and index == 0 else x
        else:
            given = norm(x, layer["input_layernorm.weight"])
        x = x + attention(part(layer, "self_attn."), given, positions, seen)
        x = x + mlp(layer, norm(x, layer["post_attention_layernorm.weight"]))
    normed = norm(x, weights["norm.weight"])
    logits = normed @ weights["lm_head.weight"].T if shape.own_output else target.project(normed)
    return logits, normed if shape.norm_output else x


def eagle3_features(weights: Mapping[str, Tensor], shape: Eagle3Shape, hidden: Tensor) -> Tensor:
    """Return the features [n, D] of the target's states [n, L', D]."""
    states = hidden.flatten(1)
    if shape.norm_before_fc:
        states = norm(states, weights["input_norm.weight"])
    if shape.fc_norm:
        states = torch.cat([norm(hidden[:, i], weights[f"fc_norm.{i}.weight"]) for i in range(hidden.shape[1])], -1)
    return states @ weights["fc.weight"].T


def compare_histories(head: Head, target: HFTargetParts, taps: int, seed: int) -> None:
    """Check that a state after random drafts, rollbacks and a second turn equals one that read all rows at once."""
    choice = torch.Generator().manual_seed(seed)
    hidden, following = states(30, taps, seed)
    state, done = head.open(0, target), 0
    with torch.inference_mode():
        while done < 25:
            if done > 8 and int(torch.randint(4, (1,), generator=choice)) == 0:
                done -= int(torch.randint(1, 4, (1,), generator=choice))
                state.crop(done)  # a turn that goes on from an earlier place
            count = int(torch.randint(1, 5, (1,), generator=choice))
            state.extend(hidden[done : done + count], following[done : done + count])
            done += count
            state.start()
            state.grow([1, 2], [-1, -1])
            state.grow([3, 4, 5], [0, 1, 1])
            state.drop()
        fresh = replayed(head, target, hidden[:done], following[:done])
        assert state.length == fresh.length == done
        close = {"atol": 1e-5, "rtol": 1e-4}
        assert torch.allclose(state.start(), fresh.start(), **close)
        for tokens, above in (([1, 2], [-1, -1]), ([3, 4, 5], [0, 1, 1]), ([6, 7, 8], [4, -1, 0])):
            assert torch.allclose(state.grow(tokens, above), fresh.grow(tokens, above), **close)
