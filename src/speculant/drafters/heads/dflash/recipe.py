"""Training of heads of DFlash's family: blocks at random anchors in texts that the target wrote.

A block sees the context rows up to its anchor and its own slots, so the blocks of a text do not see one another. All
slots are trained at once; the trainer weights them, by exp(-(k - 1) / gamma) in the authors' recipe, with gamma 7 for
blocks of 16 and 4 for smaller ones. The corrections of a slot's logits (DSpark, Domino, DFlash 2) are trained on the
text: they read the true preceding tokens. The confidence head learns 1 - TV(p, q), the probability that the token is
accepted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.errors import UsageError
from speculant.drafters.heads.dflash.convolution import ConvolvedLayer
from speculant.drafters.heads.dflash.corrections import CorrectedRows
from speculant.drafters.heads.dflash.head import DFlashHead
from speculant.drafters.heads.dflash.shape import BlockShape, Convolution, Domino, Selector
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import Angles, Attention, LayerShape
from speculant.drafters.heads.training.depths import anchor_target, anchor_tokens, depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.shapes import SPREAD, spread_weights, target_shape


class DFlashRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    def __init__(self, head: DFlashHead, depth: int | None = None) -> None:
        """Set the head.

        Args:
            head: head whose weights are trained.
            depth: number of depths; None for all that its block drafts.
        """
        drafted = head.block.drafted
        if depth is not None and not 1 <= depth <= drafted:
            raise UsageError(
                f"depth must be from 1 to {drafted}, the tokens that the head drafts per block, not {depth}."
            )
        self.head, self.depth = head, depth or drafted

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        assert isinstance(self.head, DFlashHead)
        head, outputs = self.head, self._outputs(batch, target)
        carried = head.nothing_carried(outputs[:, 0])
        for depth in range(1, self.depth + 1):
            output, before = outputs[:, depth - 1], anchor_tokens(batch, depth)
            logits, extra = head.logits(output, target), None
            rows = CorrectedRows(
                logits=logits,
                outputs=output,
                tokens=before,
                depths=torch.full_like(before, depth - 1),
                carried=carried,
                every=True,
            )
            logits, carried = head.correct_logits(rows, target)
            if head.block.domino is not None or head.block.selector is not None:
                extra = base_loss(rows.logits, anchor_tokens(batch, depth + 1), head.ids)
            if head.block.confidence:
                accepted = _acceptance(logits.detach(), anchor_target(batch, target, depth), head.ids)
                guess = head.confidence(output, before).float()
                extra = nn.functional.binary_cross_entropy_with_logits(guess, accepted)
            yield depth_output(logits, batch, target, depth, ids=head.ids, extra=extra)

    def _outputs(self, batch: TrainBatch, target: TargetParts) -> Tensor:
        """Return the outputs [A, K, D] of the blocks after the anchors."""
        assert isinstance(self.head, DFlashHead)
        head, (texts, rows) = self.head, batch.anchors.unbind(1)
        context = head.context(batch.hidden)
        places = torch.arange(context.shape[1], device=context.device)
        keys = head.context_keys(context, places)

        positions = rows[:, None] + 1 + torch.arange(head.block.size, device=rows.device)
        seen = (places <= rows[:, None])[:, None]

        def attend(index: int, attention: Attention, given: Tensor, angles: Angles) -> Tensor:
            own = attention.keys_values(given, angles)
            joined_keys, joined_values = (
                torch.cat([found[texts], each], -2) for found, each in zip(keys[index], own, strict=True)
            )
            mask = head.seen(index, positions, places, seen)
            return attention.weigh(attention.queries(given, angles), joined_keys, joined_values, mask)

        return head.denoise(anchor_tokens(batch, 1), positions, target, attend)


def base_loss(logits: Tensor, tokens: Tensor, ids: Tensor | None) -> Tensor:
    """Return the cross-entropy of logits [A, V'] before their correction, so that they are good on their own.

    Domino's curriculum and the unary loss of DFlash 2 serve the same purpose.
    """
    if ids is not None:
        places = torch.full((int(max(ids.max(), tokens.max())) + 1,), -1, device=tokens.device)
        places[ids] = torch.arange(len(ids), device=tokens.device)
        tokens = places[tokens]
    if not bool((tokens >= 0).any()):
        return logits.sum() * 0.0
    return nn.functional.cross_entropy(logits.float(), tokens, ignore_index=-1)


def _acceptance(logits: Tensor, wanted: Tensor, ids: Tensor | None) -> Tensor:
    """Return the probability [A] that a drafted token is accepted: the sum over tokens of min(p, q)."""
    p, q = wanted.softmax(-1), logits.float().softmax(-1)
    p = p[:, : q.shape[1]] if ids is None else p[:, ids]
    return torch.minimum(p, q).sum(-1)


CANDIDATES, TAPS, GROUP = 16, 2, 16  # as in published DFlash 2 heads


def new_dflash(
    target: TargetParts,
    *,
    shape: LayerShape | None = None,
    mask: int | None = None,
    layers: int = 1,
    size: int = 5,
    taps: Sequence[int] = (),
    markov: int = 0,
    confidence: bool = False,
    domino: int = 0,
    selector: int = 0,
    causal: bool = False,
) -> DFlashHead:
    """Return a head in z-lab's convention, or in DeepSpec's if it has parts that only that one supports.

    Its context starts as the last tapped state, so that short training need not learn that.

    Args:
        target: target of the head.
        shape: shape of its layers, with normalised queries and keys; None for the target's sizes.
        mask: token that stands for unknown ones; None for the target's padding, or else its last token.
        layers: number of layers.
        size: number of slots per block.
        taps: target layers, from 0, that it reads; () for three. The last one is excluded, since its output has a norm
            in one convention and none in another.
        markov: rank of a Markov head; 0 for none.
        confidence: whether a head predicts acceptance.
        domino: size of Domino's recurrent state; 0 for none.
        selector: rank of DFlash 2's selector, which comes with its convolutions; 0 for none.
        causal: whether a slot sees only those before it (JetSpec).

    Raises:
        UsageError: more than one correction is requested.
    """
    if bool(markov) + bool(domino) + bool(selector) > 1:
        raise UsageError("markov, domino and selector correct the same logits; set one of them.")
    last, config = max(0, target.layers - 2), target.config
    found: Any = getattr(config, "pad_token_id", None) if mask is None else mask
    block = BlockShape(
        layers=layers,
        size=size,
        mask=target.vocabulary - 1 if found is None else int(found),
        anchored=bool(markov) or bool(domino) or confidence,
        causal=(True,) * layers if causal else (),
        markov=markov,
        domino=Domino(state=domino, inner=domino) if domino else None,
        selector=Selector(rank=selector, candidates=CANDIDATES) if selector else None,
        convolution=Convolution(taps=TAPS, group=math.gcd(GROUP, target.hidden_size)) if selector else None,
        scale=1.0 if selector else None,
        confidence=confidence,
        vocabulary=target.vocabulary,
    )
    read = tuple(taps) or tuple(sorted({min(1, last), last // 2, last}))
    head = DFlashHead(shape or target_shape(target, norms=True), block, read)
    spread_weights(head)
    with torch.no_grad():
        head.fc.weight[:, -target.hidden_size :] += torch.eye(target.hidden_size)
        for layer in head.layers if selector else ():
            assert isinstance(layer, ConvolvedLayer)
            for convolution in (layer.attention_conv, layer.mlp_conv):
                convolution.reset()
        if selector:
            for codebook in (head.candidate_selector.predecessor_codebook, head.candidate_selector.successor_codebook):
                codebook.normal_(std=SPREAD)
        for weight in head.domino_head.prefix_gru.values() if domino else ():
            weight.uniform_(-(domino**-0.5), domino**-0.5)
        if markov:
            head.markov_head.markov_w1.weight.normal_(std=SPREAD)
    return head
