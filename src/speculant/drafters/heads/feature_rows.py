"""Running rows of EAGLE's family together: rows of one text, or of several texts with separate attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.feature_head import FeatureHead
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import join_tensors
from speculant.drafters.heads.step import StepCode, TextRows

_FEW = 16  # maximum committed rows run entirely by fast code, even though only the last one's output is needed


@dataclass(frozen=True, slots=True, eq=False)
class NewFeatureRows:
    """Rows that a text has reserved but not yet run.

    Attributes:
        cache: key-value cache of the text.
        features: [..., D], features that the rows read.
        places: Int64[n], index of the feature that each row reads; None if in order.
        positions: Int64[n], positions of the rows.
        seen: Bool[n, rows], rows of the text each may attend to; None for all.
        passed: [m, D], output buffer for the features that the last m rows pass on.
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
    """Run rows of several texts through all layers, and store the features they pass on.

    Args:
        head: head of the texts.
        target: target of the head.
        code: fast code for the head's steps, or None.
        embeddings: [n, D], embeddings of the tokens of all rows, text by text.
        rows: new rows of each text.

    Returns:
        For each text, the logits [m, V'] after the m rows that pass features on.
    """
    logits = None if code is None else _run_code(head, code, embeddings, rows)
    if logits is None:
        passed = _run_layers(head, embeddings, rows)
        for own, each in zip(rows, torch.split(passed, [len(own.passed) for own in rows]), strict=True):
            own.passed[:] = each
        logits = head.logits(passed, target)
    return [*torch.split(logits, [len(own.passed) for own in rows])]


def _run_code(head: FeatureHead, code: StepCode, embeddings: Tensor, rows: Sequence[NewFeatureRows]) -> Tensor | None:
    """Run rows by fast code; return the logits [m, V'] of all texts, or None if the code cannot run these rows."""
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
    """Run rows in PyTorch; return the features they pass on, [m, D]."""
    caches = [own.cache for own in rows]
    x = join_tensors([own.features if own.places is None else own.features[own.places] for own in rows])
    last = max(cache.length + cache.drafted for cache in caches)
    angles = head.rotary.look_up(join_tensors([own.positions for own in rows]), last, x)
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
    return head.carry(x)


def _last_rows(x: Tensor, rows: Sequence[NewFeatureRows]) -> Tensor:
    """Return those rows of x [n, ...] that pass features on."""
    parts = torch.split(x, [len(own) for own in rows])
    return join_tensors([part[-len(own.passed) :] for part, own in zip(parts, rows, strict=True)])
