"""Compiled code for layers with cross-attention (GLIDE): it returns what PyTorch returns, and leaves others alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from block_heads import lent_cache, random_weights, target_of
from models import VOCABULARY
from speculant.drafters.heads.glide.cross import target_cross_shape
from speculant.drafters.heads.glide.head import GlideHead
from speculant.drafters.heads.head import TargetParts
from speculant.engines.hf.cpu.head_cross_layer import HeadCrossLayer
from speculant.engines.hf.views.target_parts import HFTargetParts
from text_heads import SHAPE

pytestmark = pytest.mark.usefixtures("compiled")
TEXT = torch.randint(3, VOCABULARY, (40,), generator=torch.Generator().manual_seed(2))
LARGE = replace(SHAPE, inner=512)  # so that a layer is worth a call
SHAPES = {
    "plain": LARGE,
    "groups, biases and norms": replace(LARGE, heads=4, kv_heads=2, bias=True, norms=True),
    "head size without code": replace(LARGE, heads=6, kv_heads=6, head_dim=4),
}


@torch.inference_mode()
def drafted(head: GlideHead, model: Any, target: TargetParts) -> list[Tensor]:
    """Return all logits of a text in two rounds: after the root, a tree and a chain."""
    cache = lent_cache(model, TEXT[:-1])
    state = head.open_text(TEXT[:1].tolist(), target, cache)
    state.extend(torch.empty(30, 0, 0), TEXT[1:31])
    found = [state.start(), state.grow([3, 4, 5], [-1, -1, -1]), state.grow([6, 7, 8, 9], [0, 0, 2, 1])]
    state.drop()
    state.extend(torch.empty(9, 0, 0), TEXT[31:])
    return [*found, state.start(), state.grow([9], [-1]), state.grow([10], [0])]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtypes", ["float32", "bfloat16", "head in float32"])
def test_logits_are_those_of_pytorch(name: str, dtypes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards both calls and the attention between them, over keys of the target in its dtype."""
    model, parts = target_of()
    if dtypes != "float32":
        model.to(torch.bfloat16)
    head = GlideHead(SHAPES[name], target_cross_shape(parts), vocabulary=VOCABULARY)
    random_weights(head)
    head.to(torch.bfloat16 if dtypes == "bfloat16" else torch.float32)
    calls, run = list[bool](), HeadCrossLayer.__call__

    def counted(self: HeadCrossLayer, *arguments: Any) -> Tensor | None:
        found = run(self, *arguments)
        calls.append(found is not None)
        return found

    monkeypatch.setattr(HeadCrossLayer, "__call__", counted)
    wanted = drafted(head, model, parts)
    assert not calls
    found = drafted(head, model, HFTargetParts(model, fast=True))
    assert calls == ([] if name == "head size without code" else [dtypes != "head in float32"] * 6)
    tolerance = 0.3 if dtypes == "bfloat16" else 1e-4
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(one.float(), other.float(), atol=tolerance, rtol=tolerance)


@torch.inference_mode()
def test_texts_run_together_as_alone() -> None:
    """Guards several texts, which PyTorch runs: their drafts are those of the code for each text by itself."""
    model, parts = target_of()
    head = GlideHead(LARGE, target_cross_shape(parts), vocabulary=VOCABULARY)
    random_weights(head)
    target = HFTargetParts(model, fast=True)
    texts = [(TEXT[:9], lent_cache(model, TEXT[:8])), (TEXT[3:17], lent_cache(model, TEXT[3:16]))]
    alone, together = ([head.open_text(text[:1].tolist(), target, cache) for text, cache in texts] for _ in range(2))
    nothing, following = [torch.empty(len(text) - 1, 0, 0) for text, _ in texts], [text[1:] for text, _ in texts]
    head.extend_all(together, nothing, following)
    for state, *own in zip(alone, nothing, following, strict=True):
        state.extend(*own)
    found = [*head.start_all(together), *head.grow_all(together, [[5, 6], [7]], [[-1, -1], [-1]])]
    wanted = [state.start() for state in alone]
    wanted += [alone[0].grow([5, 6], [-1, -1]), alone[1].grow([7], [-1])]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
