"""EAGLE-3: a decoder layer over the target's states at several depths, trained to draft from its own output.

Li, Wei, Zhang, Zhang: "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
NeurIPS 2025, arXiv 2503.01840.

The features in `feature_state` are h = fc(states of several layers, low to high) for committed tokens, and the parent
row's output, before the final norm, for drafted ones. The first layer's attention reads the normed embedding together
with the normed feature, twice the hidden size. EAGLE 3.1 and the variants of `speculators` and SpecForge differ only in
norms; `Eagle3Shape` lists them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from speculant.drafters.heads.feature_state import JointHead
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import DecoderLayer, LayerShape, RMSNorm, Rotary
from speculant.drafters.heads.step import StepParts


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Shape:
    """The sizes and variants of a head.

    Attributes:
        layer: shape of its decoder layers; `given` is set by the head.
        taps: decoder layers of the target whose outputs it reads, see `head.Head`.
        target_hidden: size of these outputs.
        vocabulary: V of the target.
        layers: number of decoder layers.
        wide: number of first layers that also read the embeddings.
        draft_vocabulary: V', number of tokens it can draft; 0 for V.
        own_embeddings: whether it has its own embeddings; otherwise it uses the target's.
        own_output: whether it has its own output projection; otherwise it uses the target's, over all tokens.
        norm_before_residual: whether the residual stream starts with the normed feature.
        norm_before_fc: whether the states are normed together before `fc`.
        fc_norm: whether the states of each layer are normed separately before `fc`.
        norm_output: whether the next row reads the feature after the final norm instead of before it.
    """

    layer: LayerShape
    taps: tuple[int, ...]
    target_hidden: int
    vocabulary: int
    layers: int = 1
    wide: int = 1
    draft_vocabulary: int = 0
    own_embeddings: bool = False
    own_output: bool = True
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


class Eagle3Layer(DecoderLayer):
    """A decoder layer whose attention reads an embedding in addition to its input, each after its own norm."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(replace(shape, given=2 * shape.hidden))
        self.hidden_norm = RMSNorm(shape.hidden, shape.eps)


class Eagle3Head(nn.Module, JointHead):
    """The weights, named as in the authors' checkpoints except `layers.0`, which is `midlayer` there."""

    depth: int | None = None
    ids: Tensor | None

    def __init__(self, shape: Eagle3Shape, *, ids: Tensor | None = None) -> None:
        """Build a head with random weights.

        Args:
            shape: shape of the head.
            ids: Int64[V'], target tokens that it can draft; None for all.
        """
        super().__init__()
        assert (len(ids) if ids is not None else 0) == shape.draft_vocabulary
        assert shape.own_output or ids is None
        hidden, eps, taps = shape.layer.hidden, shape.layer.eps, len(shape.taps)
        self.shape, self.taps = shape, shape.taps
        self.register_buffer("ids", ids, persistent=False)  # checkpoints store it as offsets
        if shape.norm_before_fc:
            self.input_norm = RMSNorm(taps * shape.target_hidden, eps)
        if shape.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(shape.target_hidden, eps) for _ in range(taps))
        self.fc = nn.Linear(taps * shape.target_hidden, hidden, bias=False)
        self.layers = nn.ModuleList(
            Eagle3Layer(shape.layer) if index < shape.wide else DecoderLayer(shape.layer)
            for index in range(shape.layers)
        )
        self.norm = RMSNorm(hidden, eps)
        self.rotary = Rotary(shape.layer)
        if shape.own_embeddings:
            self.embed_tokens = nn.Embedding(shape.vocabulary, hidden)
        if shape.own_output:
            self.lm_head = nn.Linear(hidden, shape.draft_vocabulary or shape.vocabulary, bias=False)

    def embed(self, ids: Tensor, target: TargetParts) -> Tensor:
        found: Tensor = self.embed_tokens(ids) if self.shape.own_embeddings else target.embed(ids)
        return found.to(self.fc.weight.dtype)

    def features(self, hidden: Tensor, target: TargetParts) -> Tensor:
        return self.fuse_states(hidden.flatten(-2))

    def fuse_states(self, states: Tensor) -> Tensor:
        """Return the features [..., D] for the concatenated states [..., L' * D'] of all taps."""
        states = states.to(self.fc.weight.dtype)
        if self.shape.norm_before_fc:
            states = self.input_norm(states)
        if self.shape.fc_norm:
            parts = states.chunk(len(self.taps), dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        found: Tensor = self.fc(states)
        return found

    def layer_input(self, index: int, embeddings: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.layer(index)
        if not isinstance(layer, Eagle3Layer):
            return x, layer.attention_input(x)
        normed = layer.hidden_norm(x)
        given = torch.cat([layer.input_layernorm(embeddings), normed], dim=-1)
        return normed if self.shape.norm_before_residual and index == 0 else x, given

    def step_parts(self) -> StepParts:
        return StepParts(
            fuse=None,
            layers=tuple(self.layer(index) for index in range(self.shape.layers)),
            normed_residual=self.shape.norm_before_residual,
            norm=self.norm,
            carries_norm=self.shape.norm_output,
            output=self.lm_head if self.shape.own_output else None,
            rotary=self.rotary,
            embeddings=self.embed_tokens if self.shape.own_embeddings else None,
            ids=self.ids,
        )

    def carry(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(x) if self.shape.norm_output else x
        return found

    def logits(self, features: Tensor, target: TargetParts) -> Tensor:
        normed = features if self.shape.norm_output else self.norm(features)
        return target.linear(self.lm_head, normed) if self.shape.own_output else target.project(normed)
