"""Training of SpecDec's drafter: blocks of masks at random anchors in texts that the target wrote (Seq-KD).

As the authors do, some masks are replaced by the text's tokens while training (glancing: Qian et al. 2021, arXiv
2008.07905), so that the drafter first learns tokens next to known ones: of a block of which n masks are filled wrongly,
a share of n, drawn anywhere in the block. The share falls from 0.5 to 0.3 over the training. Tokens that are shown are
not trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from speculant.core.errors import UsageError
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.specdec.head import NO_SOURCE, SpecDecHead
from speculant.drafters.heads.training.depths import depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.shapes import (
    SPREAD,
    copy_embeddings,
    copy_final_norm,
    copy_projection,
    copy_weights,
    spread_weights,
    target_shape,
)

_GLANCED, _LESS = 0.5, 0.2  # share of the wrong masks that are shown at first, and how far it falls


class SpecDecRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`.

    Attributes:
        share: number of masks shown in a block, relative to those that are filled wrongly.
    """

    def __init__(self, head: SpecDecHead, depth: int | None = None) -> None:
        """Set the head; `depth` None trains all that its block drafts."""
        if depth is not None and not 1 <= depth <= head.depth:
            raise UsageError(
                f"depth must be from 1 to {head.depth}, the tokens that the head drafts per block, not {depth}."
            )
        self.head, self.depth = head, depth or head.depth
        self.share = _GLANCED

    def begin(self, done: float) -> None:
        self.share = _GLANCED - _LESS * min(1.0, done)

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        head = self.head
        assert isinstance(head, SpecDecHead)
        fill = read_texts(head, batch)
        masks = torch.full((len(batch.anchors), head.depth), head.vocabulary, device=batch.ids.device)
        shown = masks
        if torch.is_grad_enabled():
            places = batch.anchors[:, 1:] + torch.arange(2, self.depth + 2, device=masks.device)
            tokens = batch.ids[batch.anchors[:, :1], places]
            with torch.no_grad():
                wrong = fill(masks)[:, : self.depth].argmax(-1) != tokens
            glanced = draw_glanced(wrong, self.share)
            shown = masks.clone()
            shown[:, : self.depth] = torch.where(glanced, tokens, head.vocabulary)
        logits = fill(shown)
        for depth in range(1, self.depth + 1):
            hidden = shown[:, depth - 1] == head.vocabulary
            trained = replace(batch, anchors=batch.anchors[hidden])
            yield depth_output(logits[hidden, depth - 1], trained, target, depth)


def read_texts(head: SpecDecHead, batch: TrainBatch) -> Callable[[Tensor], Tensor]:
    """Read a batch's texts; return a function that fills the blocks after its roots.

    The function takes Int64[A, K], the tokens shown in the blocks and V for masks, and returns logits [A, K, V].
    """
    texts, rows = batch.anchors.unbind(1)
    places = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    source = NO_SOURCE
    if head.source:
        assert batch.source is not None
        source = head.read_source(batch.source.states.to(head.lm_head.weight), batch.source.seen)
    memory = head.encode(batch.ids, places, lambda _, *new: new, places <= places[:, None], source)

    def join(index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        found_keys, found_values = memory[index - len(head.encoder)]
        return torch.cat([found_keys[texts], keys], -2), torch.cat([found_values[texts], values], -2)

    positions = rows[:, None] + 2 + torch.arange(head.depth, device=rows.device)
    seen = (places <= rows[:, None] + 1)[:, None].expand(-1, head.depth, -1)
    own = torch.ones(len(rows), head.depth, head.depth, dtype=torch.bool, device=rows.device)
    seen = torch.cat([seen, own], dim=-1)
    return lambda shown: head.fill(positions, join, seen, source.of(texts), shown)


def draw_glanced(wrong: Tensor, share: float) -> Tensor:
    """Return Bool[A, K], the masks of each block that are shown, drawn from torch's default generator.

    A depth that would be shown in all blocks is shown in none, since each depth is trained.

    Args:
        wrong: Bool[A, K], masks that are filled wrongly.
        share: number of masks shown in a block, relative to those; rounded down.
    """
    counts = (wrong.sum(1, keepdim=True) * share).long()
    glanced = torch.rand(wrong.shape, device=wrong.device).argsort(1) < counts
    return glanced & ~glanced.all(0)


def new_specdec(target: TargetParts, *, encoder: int = 4, decoder: int = 1, block: int = 8) -> SpecDecHead:
    """Return a drafter of the target's sizes, which starts as a copy of the target where it can.

    Embeddings, output projection and final norm are copied. The authors start from the verifier's encoder; here the
    layers that read the text are the first ones of a Llama-like target, and those that fill the block the next ones, so
    that these see at first what they see in the target.
    """
    reading = None if target.source_size else target.first_layers(target.layers)
    layers, sizes = reading or ((), {})
    head = SpecDecHead(
        target_shape(target, **{name: sizes[name] for name in ("bias", "norms") if name in sizes}),
        vocabulary=target.vocabulary,
        encoder=encoder,
        decoder=decoder,
        block=block,
        source=target.source_size,
    )
    spread_weights(head)
    nn.init.normal_(head.embed_tokens.weight, std=SPREAD)
    copy_embeddings(head.embed_tokens, target)
    copy_projection(head.lm_head, target)
    copy_final_norm(head.norm, target)
    for layer, source in zip((*head.encoder, *head.decoder), layers, strict=False):
        copy_weights(layer, source)
    if encoder < len(layers):  # the norm in front of the keys of the first layer that fills the block
        copy_weights(head.encoder_norm, layers[encoder].get_submodule("input_layernorm"))
    return head
