"""Hydra (Ankner et al., COLM 2024, arXiv 2402.05109): Medusa's heads with the drafted tokens before them as input.

Head i reads the target's newest state f, after the final norm, and the target's embeddings of the root and of the i
drafted tokens above: a residual block from (i + 2) D to D, further blocks of D, and its own output projection. Hydra++
("prefix-mlp") adds a decoder layer with a final norm before the heads, which runs over the states of the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from speculant.core.engine import LAST_LAYER
from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.head import HeadState, TargetParts
from speculant.drafters.heads.layers import DecoderLayer, LayerShape, RMSNorm, Rotary, join_tensors
from speculant.drafters.heads.levels import LevelHead, LevelState, newest_states
from speculant.drafters.heads.published_trees import find_published_tree
from speculant.drafters.heads.residual import ResBlock, repeat_block
from speculant.drafters.heads.static_tree import RankPath


@dataclass(frozen=True, slots=True, kw_only=True)
class HydraShape:
    """The sizes of Hydra heads.

    Attributes:
        hidden: D.
        vocabulary: V.
        heads: number of heads.
        blocks: residual blocks per head.
        shared: whether all blocks of a head but the first are the same one, as in the authors' program.
        prefix: shape of the decoder layer of Hydra++; None for Hydra.
        layer: decoder layer whose output is read; -1 is the last, the only one that goes through the final norm.
        dropout: dropout rate of inputs in training, only in Hydra++.
    """

    hidden: int
    vocabulary: int
    heads: int
    blocks: int = 1
    shared: bool = True
    prefix: LayerShape | None = None
    layer: int = LAST_LAYER
    dropout: float = 0.0


class HydraHead(nn.Module, LevelHead):
    """The weights, named as in the authors' checkpoints: in Hydra++, dropouts between the blocks count as modules."""

    depth: int
    paths: tuple[RankPath, ...]
    ids = None

    def __init__(self, shape: HydraShape) -> None:
        """Build heads with random weights; the residual parts start at 0."""
        super().__init__()
        self.shape, self.depth, self.taps = shape, shape.heads, (shape.layer,)
        self.paths = find_published_tree(depth=shape.heads)
        size, plus = shape.hidden, shape.prefix is not None
        self.prefix_embeding_layer = Prefix(shape.prefix) if shape.prefix is not None else None
        heads, projections = list[nn.Module](), list[nn.Module]()
        for head in range(shape.heads):
            blocks = [ResBlock(size, given=(head + 2) * size)]
            blocks += repeat_block(size, shape.blocks - 1, shared=shape.shared)
            projection = nn.Linear(size, shape.vocabulary)
            parts = [part for block in blocks for part in (nn.Dropout(shape.dropout), block)] if plus else blocks
            heads.append(nn.Sequential(*parts))
            projections.append(nn.Sequential(nn.Dropout(shape.dropout), projection) if plus else projection)
        self.hydra_mlp, self.hydra_lm_head = nn.ModuleList(heads), nn.ModuleList(projections)

    def open(self, first: int, target: TargetParts) -> HeadState:
        return HydraState(self, target, first)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its weights."""
        return next(self.parameters()).dtype

    def features(self, hidden: Tensor, target: TargetParts) -> Tensor:
        """Return the input [..., D] of the heads or the decoder layer, given the tapped layer's output [..., D]."""
        found = target.norm(hidden) if self.shape.layer == LAST_LAYER else hidden
        return found.to(self.dtype)

    def project(self, contexts: Tensor, index: int, target: TargetParts) -> Tensor:
        """Return the logits [..., V] of one head, given f and embeddings concatenated [..., (index + 2) D]."""
        blocks, output = self.hydra_mlp[index], self.hydra_lm_head[index]
        assert isinstance(blocks, nn.Sequential)
        x = contexts
        for part in (*blocks, *(output if isinstance(output, nn.Sequential) else [output])):
            x = part(x, target.linear) if isinstance(part, ResBlock) else target.linear(part, x)
        return x


class Prefix(nn.Module):
    """The decoder layer of Hydra++, with the norm after it."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(shape)])
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.rotary = Rotary(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states [..., T, D] for whole texts [..., T, D]."""
        layer, angles = self.layer, self.rotary.angles(torch.arange(x.shape[-2], device=x.device), x)
        given, rows = layer.attention_input(x), torch.arange(x.shape[-2], device=x.device)
        keys, values = layer.self_attn.keys_values(given, angles)
        queries = layer.self_attn.queries(given, angles)
        attended = layer.self_attn.attend(queries, keys, values, rows <= rows[:, None])
        output: Tensor = self.norm(layer.finish(x, attended))
        return output

    def newest(self, x: Sequence[Tensor], caches: Sequence[HeadCache]) -> Tensor:
        """Append rows [n, D] of B texts to their caches; return the states [B, D] of the last rows."""
        layer, sizes, rows = self.layer, [len(own) for own in x], join_tensors(x)
        positions = join_tensors(
            [cache.commit(size, rows.device)[0] for cache, size in zip(caches, sizes, strict=True)]
        )
        angles, given = self.rotary.angles(positions, rows), layer.attention_input(rows)
        added = (torch.split(each, sizes, dim=-2) for each in layer.self_attn.keys_values(given, angles))
        held = [cache.append(0, *own) for cache, own in zip(caches, zip(*added, strict=True), strict=True)]
        last = torch.tensor(sizes, device=rows.device).cumsum(0) - 1
        queries = layer.self_attn.queries(given[last], (angles[0][last], angles[1][last]))
        weighed = layer.self_attn.weigh_apart(queries, held, [None] * len(x), [1] * len(x))
        output: Tensor = self.norm(layer.finish(rows[last], layer.self_attn.o_proj(weighed)))
        return output

    @property
    def layer(self) -> DecoderLayer:
        """The only decoder layer."""
        layer = self.layers[0]
        assert isinstance(layer, DecoderLayer)
        return layer


class HydraState(LevelState):
    """State of one text."""

    def __init__(self, head: HydraHead, target: TargetParts, first: int) -> None:
        super().__init__(first)
        self._head, self._target, self._cache = head, target, HeadCache(1, first=first)

    def read_contexts(
        self, states: Sequence[LevelState], hidden: Sequence[Tensor], following: Sequence[Tensor]
    ) -> Tensor:
        prefix = self._head.prefix_embeding_layer
        if prefix is None:
            features = self._head.features(newest_states(hidden), self._target)
        else:
            rows = self._head.features(join_tensors([own[:, -1] for own in hidden]), self._target)
            caches = [state._cache for state in states if isinstance(state, HydraState)]
            features = prefix.newest(torch.split(rows, [len(own) for own in hidden]), caches)
        roots = self._target.embed(torch.stack([own[-1] for own in following]))
        return torch.cat([features, roots.to(features.dtype)], dim=-1)

    def follow_tokens(self, contexts: Tensor, tokens: Tensor, depth: int) -> Tensor:
        return torch.cat([contexts, self._target.embed(tokens).to(contexts.dtype)], dim=-1)

    def project_contexts(self, contexts: Tensor, depth: int) -> Tensor:
        return self._head.project(contexts, depth, self._target)

    def crop(self, length: int) -> None:
        super().crop(length)
        self._cache.crop(length)
