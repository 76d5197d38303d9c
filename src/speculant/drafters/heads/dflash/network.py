"""DFlash's network, which denoises a block of masks in one pass over the target's hidden states, and its variants.

Chen, Liu et al.: "DFlash: Block Diffusion for Flash Speculative Decoding", ICML 2026 (z-lab/dflash). The tapped states
of every committed token before the root are projected to a context row, whose keys and values enter every layer
together with those of the block: the root and the masks after it, which see one another in both directions. Context
rows pass through no layer, so a committed token costs one projection per layer.

DSpark (deepseek-ai/DeepSpec), Domino (arXiv 2605.29707) and DFlash 2 correct the logits of a slot by the tokens before
it (corrections.py), and DFlash 2 convolves the slots (convolution.py). In JetSpec (Hu et al. 2026, arXiv 2606.18394) a
slot sees only those before it.

There are two conventions for the slots of a block of size b: in z-lab's, a slot predicts the token at its own position,
so slot 0, the root's, is not used and b - 1 tokens are drafted; in DeepSpec's (`sample_from_anchor`), a slot predicts
the token after it, and b are drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from speculant.drafters.heads.dflash.convolution import ConvolvedLayer
from speculant.drafters.heads.dflash.corrections import (
    CandidateSelector,
    ConfidenceHead,
    CorrectedRows,
    Correction,
    DominoHead,
    MarkovHead,
)
from speculant.drafters.heads.dflash.shape import BlockShape
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import Angles, Attention, DecoderLayer, LayerShape, RMSNorm, Rotary

RunCode = Callable[[int, Tensor, Tensor, Angles], Tensor | None]
Attend = Callable[[int, Attention, Tensor, Angles], Tensor]


class BlockNetwork(nn.Module):
    """The weights, named as in the authors' checkpoints."""

    taps: tuple[int, ...]
    depth: int | None
    ids: Tensor | None

    def __init__(self, shape: LayerShape, block: BlockShape, taps: Sequence[int], *, ids: Tensor | None = None) -> None:
        """Build a head with random weights.

        Args:
            shape: shape of its decoder layers; D is the target's.
            block: the rest of its shape.
            taps: the target's layers that it reads, as in `Head.taps`.
            ids: Int64[V'], the target's token for each of its logits, if it has its own output projection.
        """
        super().__init__()
        self.shape, self.block = shape, block
        self.taps, self.depth, self.ids = tuple(taps), block.drafted, ids
        size, outputs = shape.hidden, block.vocabulary if ids is None else len(ids)
        self.fc = nn.Linear(len(self.taps) * size, size, bias=False)
        self.hidden_norm, self.norm = RMSNorm(size, shape.eps), RMSNorm(size, shape.eps)
        self.layers = nn.ModuleList([_layer(shape, block) for _ in range(block.layers)])
        self.rotary = Rotary(shape)
        if block.own_embeddings:
            self.embed_tokens = nn.Embedding(block.vocabulary, size)
        if block.own_output:
            self.lm_head = nn.Linear(size, outputs, bias=False)
        if block.markov:
            self.markov_head = MarkovHead(block.vocabulary, block.markov, outputs, hidden=size, kind=block.markov_kind)
        if block.domino is not None:
            self.domino_head = DominoHead(size, outputs, block.domino)
        if block.selector is not None:
            self.candidate_selector = CandidateSelector(block.vocabulary, size, block.selector)
        if block.confidence:
            self.confidence_head = ConfidenceHead(size + (block.markov if block.confidence_markov else 0))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BlockNetwork:
        """Move the token map together with the weights."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.ids = None if self.ids is None else self.ids.to(self.fc.weight.device)
        return self

    def context(self, hidden: Tensor) -> Tensor:
        """Return the context rows [..., n, D] for tapped states [..., n, L', D]."""
        found: Tensor = self.hidden_norm(self.fc(hidden.flatten(-2).to(self.fc.weight.dtype)))
        return found

    def context_keys(self, context: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the keys and values [..., H_kv, n, d] of context rows [..., n, D], layer by layer."""
        angles = self.rotary.angles(positions, context)
        return [self._layer(index).self_attn.keys_values(context, angles) for index in range(self.block.layers)]

    def denoise(
        self,
        roots: Tensor,
        positions: Tensor,
        target: TargetParts,
        attend: Attend,
        code: RunCode | None = None,
    ) -> Tensor:
        """Return the outputs [..., b, D] of the slots, after the final norm.

        Args:
            roots: Int64[...].
            positions: Int64[..., b], positions of the slots.
            target: target of the head.
            attend: returns the attention output of the slots over the context and one another, before its projection,
                [..., b, H * d], given a layer's index, its attention, the attention's input and the angles.
            code: runs a layer in which the slots see everything by fast code, given its index, input, the attention's
                input and angles; returns None if it cannot.
        """
        ids = roots[..., None].repeat_interleave(self.block.size, -1)
        ids[..., 1:] = self.block.mask
        x = self.embed(ids, target)
        angles = self.rotary.angles(positions, x)
        for index in range(self.block.layers):
            layer = self._layer(index)
            given, kernels = layer.enter(x) if isinstance(layer, ConvolvedLayer) else (layer.attention_input(x), x)
            found = code(index, x, given, angles) if code is not None and self._sees_all(index) else None
            if found is not None:
                x = found
                continue
            attended: Tensor = layer.self_attn.o_proj(attend(index, layer.self_attn, given, angles))
            x = layer.leave(x, attended, kernels) if isinstance(layer, ConvolvedLayer) else layer.finish(x, attended)
        output: Tensor = self.norm(x)
        return output if self.block.anchored else output[..., 1:, :]

    def logits(self, outputs: Tensor, target: TargetParts) -> Tensor:
        """Return the logits [..., V'] for outputs, before any correction."""
        found = target.linear(self.lm_head, outputs) if self.block.own_output else target.project(outputs)
        found = found * self.block.multiplier if self.block.multiplier != 1.0 else found
        return torch.tanh(found / self.block.softcap) * self.block.softcap if self.block.softcap else found

    def embed(self, ids: Tensor, target: TargetParts) -> Tensor:
        """Return the block's input embeddings [..., D] for tokens Int64[...]."""
        block = self.block
        if block.own_embeddings:
            found: Tensor = self.embed_tokens(ids)
        else:
            found = target.embed(ids) if block.scale is None else target.embedding_rows(ids)
        return (found if block.scale in (None, 1.0) else found * block.scale).to(self.fc.weight.dtype)

    @property
    def correction(self) -> Correction | None:
        """The module that corrects a slot's logits by the tokens before it, or None."""
        block = self.block
        if block.domino is not None:
            return self.domino_head
        if block.selector is not None:
            return self.candidate_selector
        return self.markov_head if block.markov else None

    def correct_logits(self, rows: CorrectedRows, target: TargetParts) -> tuple[Tensor, Tensor]:
        """Return the logits [n, V'] of rows given the tokens before them, and the states passed to their children."""
        correction = self.correction
        if correction is None:
            return rows.logits, rows.carried
        found: tuple[Tensor, Tensor] = correction(rows, lambda ids: self.embed(ids, target))
        return found

    def nothing_carried(self, like: Tensor) -> Tensor:
        """Return the state above the root: zeros [n, S], for as many rows as outputs [n, D]."""
        correction = self.correction
        return like.new_zeros(len(like), 0 if correction is None else correction.carried)

    def confidence(self, outputs: Tensor, tokens: Tensor) -> Tensor:
        """Return the acceptance logit [...] of tokens drawn from outputs [..., D], given the preceding tokens."""
        if self.block.markov and self.block.confidence_markov:
            outputs = torch.cat([outputs, self.markov_head.markov_w1(tokens)], dim=-1)
        found: Tensor = self.confidence_head(outputs)
        return found

    def _layer(self, index: int) -> DecoderLayer:
        layer = self.layers[index]
        assert isinstance(layer, DecoderLayer)
        return layer

    def _sees_all(self, index: int) -> bool:
        """Return whether the slots in a layer see all of the context and one another."""
        block = self.block
        return not (block.causal and block.causal[index]) and not (block.windows and block.windows[index])

    def seen(self, index: int, positions: Tensor, context: Tensor, every: Tensor) -> Tensor:
        """Return Bool[..., b, m + b], what the slots see in a layer.

        Args:
            index: index of the layer.
            positions: Int64[..., b], positions of the slots.
            context: Int64[..., m], positions of the context rows.
            every: Bool[..., 1, m], context rows that the block may see at all.
        """
        block, slots = self.block, positions.shape[-1]
        causal = bool(block.causal) and block.causal[index]
        window = block.windows[index] if block.windows else None
        own = torch.ones(*positions.shape, slots, dtype=torch.bool, device=positions.device)
        own = own.tril() if causal else own
        mask = torch.cat([every.expand(*positions.shape, context.shape[-1]), own], dim=-1)
        if window is not None:
            keys = torch.cat([context.expand(*positions.shape[:-1], -1), positions], dim=-1)
            mask = mask & ((positions[..., None] - keys[..., None, :]).abs() < window)
        return mask


def _layer(shape: LayerShape, block: BlockShape) -> DecoderLayer:
    return DecoderLayer(shape) if block.convolution is None else ConvolvedLayer(shape, block.convolution)
