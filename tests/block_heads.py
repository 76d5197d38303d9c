"""What tests of parallel and cross-attention drafters share: a tiny target, its states over a text, and histories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from models import VOCABULARY, deep_model
from speculant import Speculator
from speculant.api.heads import open_head
from speculant.drafters.heads.head import HeadState, TargetParts
from speculant.drafters.heads.training.recipe import Recipe, TrainBatch
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.views.target_parts import HFTargetParts


def target_of(name: str = "llama", **changes: Any) -> tuple[Any, HFTargetParts]:
    """Return a tiny model and its parts."""
    model = deep_model(name, **changes)
    return model, HFTargetParts(model)


def random_weights(module: torch.nn.Module, seed: int = 3) -> None:
    """Give a module weights that spread its logits, norms other than 1 included."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape) * (0.3 if weight.ndim > 1 else 0.2) + (weight.ndim == 1))


def rope(x: Tensor, positions: Tensor, theta: float = 10000.0) -> Tensor:
    """Return [..., n, d] rotated by position, pair by pair: the formula of RoFormer, halves apart."""
    half = x.shape[-1] // 2
    found = x.clone()
    for row, position in enumerate(positions.tolist()):
        for i in range(half):
            angle = torch.tensor(position * theta ** (-2 * i / x.shape[-1]), dtype=x.dtype)
            a, b = x[..., row, i], x[..., row, half + i]
            found[..., row, i] = a * angle.cos() - b * angle.sin()
            found[..., row, half + i] = b * angle.cos() + a * angle.sin()
    return found


def rms(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Return the RMS norm."""
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def check_histories(open_state: Callable[[], HeadState], hidden: Tensor, tokens: Tensor, depth: int) -> None:
    """Check that a state with rounds, rejected drafts and crops behind it is one that has read the text at once.

    Args:
        open_state: returns an empty state.
        hidden: [T, L', D].
        tokens: Int64[T + 1].
        depth: of the drafts.
    """
    source = torch.Generator().manual_seed(11)
    state, length = open_state(), 0
    with torch.inference_mode():
        while length < len(hidden):
            more = min(int(torch.randint(1, 5, (1,), generator=source)), len(hidden) - length)
            state.extend(hidden[length : length + more], tokens[length + 1 : length + more + 1])
            length += more
            drafted = draft_logits(state, depth)
            fresh = open_state()
            fresh.extend(hidden[:length], tokens[1 : length + 1])
            torch.testing.assert_close(drafted, draft_logits(fresh, depth), atol=1e-5, rtol=1e-5)
            assert state.length == length
            state.drop()
            if length > 4 and int(torch.randint(0, 3, (1,), generator=source)) == 0:
                length -= 2
                state.crop(length)


def draft_logits(state: HeadState, depth: int) -> Tensor:
    """Return the logits after the root and after the nodes of a tree that branches below its first node."""
    found = [state.start()]
    if depth > 1:
        found.append(state.grow([5, 9], [-1, -1]))
    if depth > 2:
        found.append(state.grow([7, 8], [0, 0]))
    return torch.cat(found)


def train_batch(model: Any, parts: TargetParts, taps: tuple[int, ...], depth: int, *, texts: int = 3) -> TrainBatch:
    """Return a batch of random texts with the model's states, and a few anchors of each."""
    torch.manual_seed(5)
    ids = torch.randint(3, VOCABULARY, (texts, 24))
    anchors = [(text, row) for text in range(texts) for row in range(2 + text, 22 - depth, 3)]
    return text_batch(model, parts, taps, ids, torch.tensor(anchors))


def text_batch(model: Any, parts: TargetParts, taps: tuple[int, ...], ids: Tensor, anchors: Tensor) -> TrainBatch:
    """Return the batch of these texts and anchors."""
    hidden, final = states(model, parts, taps, ids)
    return TrainBatch(ids, torch.full((len(ids),), ids.shape[1]), hidden, final, anchors)


def states(model: Any, parts: TargetParts, taps: tuple[int, ...], ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of the tapped layers [B, T, L', D], and the last one's after the final norm [B, T, D]."""
    kept: dict[int, Tensor] = {}
    hooks = [
        layer.register_forward_hook(lambda _m, _i, output, index=index: kept.update({index: output}))
        for index, layer in enumerate(model.model.layers)
    ]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    layers = [kept[index][0] if isinstance(kept[index], tuple) else kept[index] for index in range(len(kept))]
    hidden = torch.stack([layers[tap] for tap in taps], 2) if taps else ids.new_empty(*ids.shape, 0, 0).float()
    with torch.no_grad():
        return hidden, parts.norm(layers[-1])


def overfit(
    recipe: Recipe, batch: TrainBatch, parts: TargetParts, *, steps: int = 60, rate: float = 5e-3
) -> list[float]:
    """Train on one batch by cross-entropy on the texts; return the losses."""
    optimizer = torch.optim.AdamW([w for w in recipe.head.parameters() if w.requires_grad], lr=rate)
    losses = []
    for _ in range(steps):
        loss = torch.zeros(())
        for found in recipe.run(batch, parts):
            loss = loss + torch.nn.functional.cross_entropy(found.logits.float(), found.tokens, ignore_index=-1)
            loss = loss + (0.0 if found.extra is None else found.extra)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_greedy(model: Any, head: Any, *, settings: dict[str, Any] | None = None, nodes: int = 6) -> Speculator:
    """Check that text of a head that drafts alone is the target's own: by itself, in a second turn and in a batch."""
    prompt = [5, 7, 9, 11, 13, 8, 4, 6]

    def plain(text: list[int], count: int) -> list[int]:
        ids = torch.tensor([text])
        mask = torch.ones_like(ids)  # else the model takes its padding token for padding
        found: list[int] = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False)[0].tolist()
        return found[len(text) :]

    opened = open_head(head, model, fast=False)
    options: dict[str, Any] = {"head": opened, "method": opened.method, "settings": settings, "nodes": nodes}
    speculator = Speculator.from_transformers(model, **options, fast=False)
    result = speculator.generate(prompt, max_new_tokens=10, temperature=0)
    assert list(result.ids) == plain(prompt, 10)
    assert result.stats.drafted > 0
    longer = [*prompt, *result.ids, 3, 4]
    assert list(speculator.generate(longer, max_new_tokens=6, temperature=0, cache=result.cache).ids) == plain(
        longer, 6
    )
    texts = [prompt, prompt[:5], prompt[2:]]
    results = speculator.generate_batch(texts, max_new_tokens=6, temperature=0)
    assert [list(each.ids) for each in results] == [list(result.ids[:6]), *(plain(text, 6) for text in texts[1:])]
    return speculator


def check_training(
    recipe: Recipe, batch: TrainBatch, parts: TargetParts, open_state: Callable[[int], HeadState]
) -> None:
    """Check that the outputs of a recipe are what the head drafts after the same texts.

    Args:
        recipe: of the head.
        batch: its texts are one text each of the batch.
        parts: of the target.
        open_state: returns an empty state of a text, for which the target's cache holds the tokens before an anchor's
            root; called with the number of the anchor.
    """
    with torch.no_grad():
        outputs = list(recipe.run(batch, parts))
    assert len(outputs) == recipe.depth
    for place, (text, row) in enumerate(batch.anchors.tolist()):
        state, ids = open_state(place), batch.ids[text]
        with torch.inference_mode():
            state.extend(batch.hidden[text, : row + 1], ids[1 : row + 2])
            found = [state.start()]
            for depth in range(1, recipe.depth):
                found.append(state.grow([int(ids[row + 1 + depth])], [depth - 2]))
        for depth, output in enumerate(outputs, 1):
            torch.testing.assert_close(output.logits[place], found[depth - 1][0], atol=1e-4, rtol=1e-4)
            assert int(output.tokens[place]) == int(ids[row + 1 + depth])


def lent_cache(model: Any, tokens: Tensor) -> Any:
    """Return a target cache that has read these tokens, Int64[T]."""
    cache = HFEngine(model).open(tokens[None])
    cache.prefill()
    return cache
