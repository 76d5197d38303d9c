"""Training of EAGLE-3: the training-time test (Li et al. 2025, arXiv 2503.01840, section 3.2).

The head continues from its own output for several depths, seven in the paper, while the tokens stay the text's;
gradients flow through all depths. There is no loss on hidden states. The training target is the target's logits over
the head's vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from speculant.core.errors import UsageError
from speculant.core.tree import Int64
from speculant.drafters.heads.eagle3.head import Eagle3Head, Eagle3Shape
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.shapes import copy_final_norm, spread_weights, target_shape
from speculant.drafters.heads.training.unrolled import Unrolled


class Eagle3Recipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    head: Eagle3Head

    def __init__(self, head: Eagle3Head, depth: int = 7) -> None:
        """Set the head, and the number of depths that are trained."""
        self.head, self.depth = head, depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        text, place = batch.anchors.unbind(1)
        rows = Unrolled(self.head, batch.anchors, len(batch.ids))
        features = self.head.features(batch.hidden[:, :-1], target)
        found = rows.start(self.head.embed(batch.ids[:, 1:], target), features)
        for depth in range(1, self.depth + 1):
            if depth > 1:
                found = rows.follow(*self._next_row(batch.ids[text, place + depth], found, target))
            wanted, tokens = self._find_labels(batch, depth, target)
            yield DepthOutput(logits=self.head.logits(found, target), target=wanted, tokens=tokens)

    def _next_row(self, tokens: Tensor, found: Tensor, target: TargetParts) -> tuple[Tensor, Tensor]:
        """Return embeddings and features [A, D] of the next row, given its next tokens and the passed-on features."""
        return self.head.embed(tokens, target), found

    def _find_labels(self, batch: TrainBatch, depth: int, target: TargetParts) -> tuple[Tensor, Tensor]:
        """Return the target's logits [A, V'] at a depth, and the text's tokens Int64[A] in the head's vocabulary."""
        text, place = batch.anchors.unbind(1)
        tokens, ids = batch.ids[text, place + depth + 1], self.head.ids
        with torch.no_grad():
            wanted = target.project(batch.final[text, place + depth])
        if ids is None:
            return wanted, tokens
        numbers = torch.full((target.vocabulary,), -1, device=ids.device)
        numbers[ids] = torch.arange(len(ids), device=ids.device)
        return wanted[:, ids], numbers[tokens]


def new_eagle3(
    target: TargetParts, *, counts: Int64, vocabulary: int = 0, own_output: bool = True, inner: int = 0
) -> Eagle3Head:
    """Return a head that initially passes the last of the states it reads on to the target's final norm.

    Args:
        target: target of the head.
        counts: Int64[V], how often each token occurs in the texts.
        vocabulary: number of tokens it can draft, the most frequent ones; 0 for all.
        own_output: whether it has its own output projection, initially a copy of the target's.
        inner: inner size of its MLP; 0 for the target's.
    """
    shape, ids = eagle3_shape(target, counts, vocabulary, own_output, inner=inner)
    head = Eagle3Head(shape, ids=ids)
    begin_as_target(head, target)
    return head


def default_taps(layers: int) -> tuple[int, ...]:
    """Return the target's decoder layers that EAGLE-3 reads, from 0: the authors' choice, or spread in shallow targets.

    The authors read the outputs of layers 1, L / 2 - 1 and L - 4, which collapse if there are 6 layers or fewer.
    """
    taps = (1, layers // 2 - 1, layers - 4)
    return taps if taps[0] < taps[1] < taps[2] else tuple(sorted({min(1, layers - 2), layers // 2, layers - 1} - {-1}))


def eagle3_shape(
    target: TargetParts, counts: Int64, vocabulary: int, own_output: bool, layers: int = 1, *, inner: int = 0
) -> tuple[Eagle3Shape, Tensor | None]:
    """Return the shape of a head, and the tokens that it can draft in ascending order; None for all."""
    if not 0 <= vocabulary <= target.vocabulary:
        raise UsageError(f"vocabulary must be from 0 to the target's {target.vocabulary}, not {vocabulary}.")
    reduced = vocabulary if vocabulary < target.vocabulary else 0
    ids = torch.from_numpy(counts).argsort(descending=True, stable=True)[:reduced].sort().values if reduced else None
    shape = Eagle3Shape(
        layer=target_shape(target, **{"inner": inner} if inner else {}),
        taps=default_taps(target.layers),
        target_hidden=target.hidden_size,
        vocabulary=target.vocabulary,
        layers=layers,
        draft_vocabulary=reduced,
        own_output=own_output,
    )
    return shape, ids


def begin_as_target(head: Eagle3Head, target: TargetParts) -> None:
    """Set a head's initial weights, taking the norm and the output projection from the target."""
    hidden = target.hidden_size
    spread_weights(head)
    with torch.no_grad():
        head.fc.weight[:, -hidden:] += torch.eye(hidden)
        copy_final_norm(head.norm, target)
        if head.shape.own_output:
            weights = target.projection().float().cpu()
            head.lm_head.weight.copy_(weights if head.ids is None else weights[head.ids])
