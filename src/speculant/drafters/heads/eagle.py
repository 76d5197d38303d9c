"""EAGLE: one decoder layer that predicts the target's next hidden state, and with it the next token.

Li, Wei, Zhang, Zhang: "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", ICML 2024, arXiv
2401.15077. EAGLE-2 (arXiv 2406.16858) has the same weights and other trees; HASS (Zhang et al., ICLR 2025, arXiv
2408.15766) trains them in another way.

Row i reads f_i, the target's state at token i after the final norm, and the embedding of token i + 1; what it returns
stands for f_(i+1), so the target's own output projection gives the logits of token i + 2. Rows of committed tokens
always come from the target's true states: after a round the rows of the draft are dropped and those of accepted tokens
computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.head import Head, HeadState, TargetParts
from speculant.drafters.heads.layers import DecoderLayer, LayerShape, Rotary

LAST = -1


class EagleHead(nn.Module, Head):
    """The weights, named as in the authors' checkpoints."""

    taps = (LAST,)
    depth = None
    ids = None

    def __init__(self, shape: LayerShape, *, bias: bool = True) -> None:
        """Build a head with random weights.

        Args:
            shape: of its decoder layer; D is the target's.
            bias: whether `fc` has one.
        """
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden, bias=bias)
        self.layers = nn.ModuleList([DecoderLayer(shape, first_norm=False)])
        self.rotary = Rotary(shape)

    def open(self, first: int, target: TargetParts) -> HeadState:
        return EagleState(self, target, first)

    @property
    def layer(self) -> DecoderLayer:
        """The only decoder layer."""
        layer = self.layers[0]
        assert isinstance(layer, DecoderLayer)
        return layer

    def fused(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """Return the layer's input [..., D] of embeddings of the next tokens and hidden states."""
        found: Tensor = self.fc(torch.cat([embeddings, features], dim=-1).to(self.fc.weight.dtype))
        return found


class EagleState(HeadState):
    """One text."""

    def __init__(self, head: EagleHead, target: TargetParts, first: int) -> None:
        self._head, self._target = head, target
        self._cache = HeadCache(1, first=first)
        self._last: Tensor | None = None  # [1, D], what the last committed row returned
        self._drafted: Tensor | None = None  # [rows, D], likewise

    @property
    def length(self) -> int:
        return self._cache.length

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        x = self._head.fused(self._target.embed(following), self._target.norm(hidden[:, -1]))
        positions, seen = self._cache.commit(len(x), x.device)
        self._last, self._drafted = self._run(x, positions, seen, last=True), None

    def start(self) -> Tensor:
        assert self._last is not None
        return self._target.project(self._last)

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        assert self._last is not None
        known = self._last if self._drafted is None else torch.cat([self._last, self._drafted])
        ids = torch.tensor(tokens, device=known.device)
        x = self._head.fused(self._target.embed(ids), known[[row + 1 for row in above]])
        positions, seen = self._cache.branch(above, x.device)
        found = self._run(x, positions, seen)
        self._drafted = found if self._drafted is None else torch.cat([self._drafted, found])
        return self._target.project(found)

    def drop(self) -> None:
        self._cache.drop()
        self._drafted = None

    def crop(self, length: int) -> None:
        self._cache.crop(length)
        self._last = self._drafted = None

    def _run(self, x: Tensor, positions: Tensor, seen: Tensor, *, last: bool = False) -> Tensor:
        """Run the layer over new rows; return what they, or the last one alone, return."""
        layer, attention = self._head.layer, self._head.layer.self_attn
        angles = self._head.rotary.angles(positions, x)
        keys, values = self._cache.append(0, *attention.keys_values(x, angles))
        if last:
            x, seen, angles = x[-1:], seen[-1:], (angles[0][-1:], angles[1][-1:])
        return layer.finish(x, attention.attend(attention.queries(x, angles), keys, values, seen))
