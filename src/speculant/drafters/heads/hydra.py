"""Hydra (Ankner et al., COLM 2024, arXiv 2402.05109): Medusa's heads with the drafted tokens before them as input.

Head i reads the target's newest state f, after the final norm, and the target's embeddings of the root and of the i
drafted tokens above: a residual block of (i + 2) D to D, more blocks of D, and its own output projection. Hydra++
("prefix-mlp") puts a decoder layer with a final norm before the heads, which runs over the states of the whole text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.head import Head, HeadState, TargetParts
from speculant.drafters.heads.layers import DecoderLayer, LayerShape, RMSNorm, Rotary
from speculant.drafters.heads.levels import LevelState
from speculant.drafters.heads.published_trees import published_tree
from speculant.drafters.heads.residual import ResBlock, repeated
from speculant.drafters.heads.static_tree import RankPath

LAST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HydraShape:
    """The sizes of Hydra heads.

    Attributes:
        hidden: D.
        vocabulary: V.
        heads: how many.
        blocks: residual blocks of each.
        shared: whether the blocks of a head, but for the first, are one and the same, as in the authors' program.
        prefix: of the decoder layer of Hydra++; None for Hydra.
        layer: which decoder layer's output is read; -1 is the last, the only one that goes through the final norm.
        dropout: the share of inputs that training leaves out, of Hydra++ alone.
    """

    hidden: int
    vocabulary: int
    heads: int
    blocks: int = 1
    shared: bool = True
    prefix: LayerShape | None = None
    layer: int = LAST
    dropout: float = 0.0


class HydraHead(nn.Module, Head):
    """The weights, named as in the authors' checkpoints: Hydra++ has dropouts between the blocks, which are counted."""

    depth: int
    paths: tuple[RankPath, ...]
    ids = None

    def __init__(self, shape: HydraShape) -> None:
        """Build heads with random weights; the residual parts are 0."""
        super().__init__()
        self.shape, self.depth, self.taps = shape, shape.heads, (shape.layer,)
        self.paths = published_tree(depth=shape.heads)
        size, plus = shape.hidden, shape.prefix is not None
        self.prefix_embeding_layer = Prefix(shape.prefix) if shape.prefix is not None else None
        heads, projections = list[nn.Module](), list[nn.Module]()
        for head in range(shape.heads):
            blocks = [ResBlock(size, given=(head + 2) * size)]
            blocks += repeated(size, shape.blocks - 1, shared=shape.shared)
            projection = nn.Linear(size, shape.vocabulary)
            parts = [part for block in blocks for part in (nn.Dropout(shape.dropout), block)] if plus else blocks
            heads.append(nn.Sequential(*parts))
            projections.append(nn.Sequential(nn.Dropout(shape.dropout), projection) if plus else projection)
        self.hydra_mlp, self.hydra_lm_head = nn.ModuleList(heads), nn.ModuleList(projections)

    def open(self, first: int, target: TargetParts) -> HeadState:
        return HydraState(self, target, first)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights."""
        return next(self.parameters()).dtype

    def features(self, hidden: Tensor, target: TargetParts) -> Tensor:
        """Return what the heads or the decoder layer read [..., D], given the tapped layer's output [..., D]."""
        found = target.norm(hidden) if self.shape.layer == LAST else hidden
        return found.to(self.dtype)

    def project(self, contexts: Tensor, index: int) -> Tensor:
        """Return the logits [..., V] of one head, given f and embeddings side by side [..., (index + 2) D]."""
        logits: Tensor = self.hydra_lm_head[index](self.hydra_mlp[index](contexts))
        return logits


class Prefix(nn.Module):
    """The decoder layer of Hydra++, with the norm after it."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(shape)])
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.rotary = Rotary(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states [..., T, D] of whole texts [..., T, D]."""
        layer, angles = self.layer, self.rotary.angles(torch.arange(x.shape[-2], device=x.device), x)
        given, rows = layer.attention_input(x), torch.arange(x.shape[-2], device=x.device)
        keys, values = layer.self_attn.keys_values(given, angles)
        queries = layer.self_attn.queries(given, angles)
        attended = layer.self_attn.attend(queries, keys, values, rows <= rows[:, None])
        output: Tensor = self.norm(layer.finish(x, attended))
        return output

    def newest(self, x: Tensor, cache: HeadCache) -> Tensor:
        """Append rows [n, D] to a cache; return the state [D] of the last one."""
        layer = self.layer
        positions, _ = cache.commit(len(x), x.device)
        angles, given = self.rotary.angles(positions, x), layer.attention_input(x)
        keys, values = cache.append(0, *layer.self_attn.keys_values(given, angles))
        queries = layer.self_attn.queries(given[-1:], (angles[0][-1:], angles[1][-1:]))
        attended = layer.self_attn.attend(queries, keys, values, None)
        output: Tensor = self.norm(layer.finish(x[-1:], attended))[0]
        return output

    @property
    def layer(self) -> DecoderLayer:
        """The only decoder layer."""
        layer = self.layers[0]
        assert isinstance(layer, DecoderLayer)
        return layer


class HydraState(LevelState):
    """One text."""

    def __init__(self, head: HydraHead, target: TargetParts, first: int) -> None:
        super().__init__(first)
        self._head, self._target, self._cache = head, target, HeadCache(1, first=first)

    def read_context(self, hidden: Tensor, following: Tensor) -> Tensor:
        prefix = self._head.prefix_embeding_layer
        if prefix is None:
            feature = self._head.features(hidden[-1, -1], self._target)
        else:
            feature = prefix.newest(self._head.features(hidden[:, -1], self._target), self._cache)
        return torch.cat([feature, self._target.embed(following[-1]).to(feature.dtype)])

    def follow_tokens(self, contexts: Tensor, tokens: Tensor, depth: int) -> Tensor:
        return torch.cat([contexts, self._target.embed(tokens).to(contexts.dtype)], dim=-1)

    def project_contexts(self, contexts: Tensor, depth: int) -> Tensor:
        return self._head.project(contexts, depth)

    def crop(self, length: int) -> None:
        super().crop(length)
        self._cache.crop(length)
