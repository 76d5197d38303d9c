"""Rows of heads of EAGLE's family that run together: those of one text, or of several, which attend apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.feature_head import FeatureHead
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import joined
from speculant.drafters.heads.step import StepCode, TextRows

_FEW = 16  # committed rows that code runs whole, though only the last one's output is wanted


@dataclass(frozen=True, slots=True, eq=False)
class NewFeatureRows:
    """Rows that a text has room for and that are yet to be run.

    Attributes:
        cache: of the text.
        features: [..., D], which they read.
        places: Int64[n], which of the features each row reads; None for one after the other.
        positions: Int64[n].
        seen: Bool[n, rows], which rows of the text each may attend to; None for all.
        passed: [m, D], for what the last m of them pass on.
    """

    cache: HeadCache
    features: Tensor
    places: Tensor | None
    positions: Tensor
    seen: Tensor | None
    passed: Tensor

    def __len__(self) -> int:
        return len(self.positions)


def run_rows(
    head: FeatureHead, target: TargetParts, code: StepCode | None, embeddings: Tensor, rows: Sequence[NewFeatureRows]
) -> list[Tensor]:
    """Run rows of several texts through all layers, and keep what they pass on.

    Args:
        head: of the texts.
        target: of the head.
        code: of the head's steps; None where there is none.
        embeddings: [n, D], of the tokens of all rows, text by text.
        rows: of each text.

    Returns:
        The logits [m, V'] of each text after the m rows that pass on.
    """
    logits = None if code is None else _run_code(head, code, embeddings, rows)
    if logits is None:
        passed = _run_layers(head, embeddings, rows)
        for own, each in zip(rows, torch.split(passed, [len(own.passed) for own in rows]), strict=True):
            own.passed[:] = each
        logits = head.logits(passed, target)
    return [*torch.split(logits, [len(own.passed) for own in rows])]


def _run_code(head: FeatureHead, code: StepCode, embeddings: Tensor, rows: Sequence[NewFeatureRows]) -> Tensor | None:
    """Run rows by the target's code; return the logits [m, V'] of all texts, None where it has none for these."""
    if len(embeddings) > code.max_together or any(
        len(own) > (code.maximum if len(own) == len(own.passed) else min(_FEW, code.maximum)) for own in rows
    ):
        return None
    texts = list[TextRows]()
    for own in rows:
        cache, shape = own.cache, head.layer(0).self_attn.shape
        each = (shape.kv_heads, shape.head_dim)
        held = [cache.reserve(index, len(own), each, embeddings) for index in range(len(head.layers))]
        texts.append(
            TextRows(
                features=own.features,
                places=own.places,
                positions=own.positions,
                last=cache.length + cache.drafted,
                seen=own.seen,
                held=tuple((keys, values) for keys, values, _ in held),
                length=held[0][2],
                passed=own.passed,
            )
        )
    return code(embeddings, texts)


def _run_layers(head: FeatureHead, embeddings: Tensor, rows: Sequence[NewFeatureRows]) -> Tensor:
    """Run rows by PyTorch; return what they pass on, [m, D]."""
    caches = [own.cache for own in rows]
    x = joined([own.features if own.places is None else own.features[own.places] for own in rows])
    last = max(cache.length + cache.drafted for cache in caches)
    angles = head.rotary.looked_up(joined([own.positions for own in rows]), last, x)
    sizes, seen = [len(own) for own in rows], [own.seen for own in rows]
    for index in range(len(head.layers)):
        layer = head.layer(index)
        residual, given = head.layer_input(index, embeddings, x)
        added = (torch.split(each, sizes, dim=-2) for each in layer.self_attn.keys_values(given, angles))
        held = [cache.append(index, *own) for cache, own in zip(caches, zip(*added, strict=True), strict=True)]
        if index == len(head.layers) - 1 and any(len(own.passed) < len(own) for own in rows):
            residual, given = _last_rows(residual, rows), _last_rows(given, rows)
            angles = _last_rows(angles[0], rows), _last_rows(angles[1], rows)
            seen = [None if own.seen is None else own.seen[-len(own.passed) :] for own in rows]
            sizes = [len(own.passed) for own in rows]
        weighed = layer.self_attn.weigh_apart(layer.self_attn.queries(given, angles), held, seen, sizes)
        x = layer.finish(residual, layer.self_attn.o_proj(weighed))
    return head.carried(x)


def _last_rows(x: Tensor, rows: Sequence[NewFeatureRows]) -> Tensor:
    """Return of x [n, ...] the rows that pass on."""
    parts = torch.split(x, [len(own) for own in rows])
    return joined([part[-len(own.passed) :] for part, own in zip(parts, rows, strict=True)])
