"""Alignment of draft models: sequence-level distillation, DistillSpec, and several models boosted in turn.

- Seq-KD (Kim and Rush 2016, arXiv 1606.07947): cross-entropy on texts that the target wrote, `loss="ce"`.
- DistillSpec (Zhou et al. 2024, arXiv 2310.08461): the student continues the prompts itself, the target scores every
  position, and a divergence of the two distributions is the loss: `on_policy` is the share of steps that do so.
- Col-BT (SpecInfer: Miao et al. 2024, arXiv 2305.09781, section 3.1): each further student is trained on the positions
  that those before it get wrong; the method `specinfer` merges what they draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.core.errors import UsageError
from speculant.training.losses import parse_loss
from speculant.training.optimizers import build_optimizers
from speculant.training.texts import Texts

_CLIP = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillSettings:
    """How a draft model is aligned.

    Attributes:
        steps: of the optimizer.
        loss: see `training.losses`.
        on_policy: the share of steps on text that the student writes, spread evenly.
        temperature: at which the student writes.
        texts: of a step.
        opening: tokens of a text that the student continues.
        new_tokens: that it writes.
        lr: the highest learning rate; it rises over `warmup` steps and falls linearly.
        warmup: steps.
        optimizer: see `training.optimizers`.
        seed: of the order of texts and of what the student writes.

    Raises:
        UsageError: a setting is out of range.
    """

    steps: int = 1000
    loss: str = "kl"
    on_policy: float = 0.0
    temperature: float = 1.0
    texts: int = 8
    opening: int = 16
    new_tokens: int = 64
    lr: float = 3e-4
    warmup: int = 20
    optimizer: str = "adamw"
    seed: int = 0

    def __post_init__(self) -> None:
        parse_loss(self.loss)
        for name in ("steps", "texts", "opening", "new_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is at least 1, not {getattr(self, name)}.")
        if not 0 <= self.on_policy <= 1:
            raise UsageError(f"on_policy is a share from 0 to 1, not {self.on_policy}.")
        if not self.temperature > 0:
            raise UsageError(f"the student writes at a temperature above 0, not {self.temperature}.")


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of texts.

    Attributes:
        ids: Int64[B, T], padded behind each text, where nothing is attended to by what counts.
        counted: Bool[B, T - 1], the positions whose next token is learned.
    """

    ids: Tensor
    counted: Tensor


def distil(
    student: Any,
    target: Any,
    texts: Texts,
    settings: DistillSettings,
    *,
    before: Sequence[Any] = (),
    report: Callable[[int, float], object] | None = None,
) -> None:
    """Train a draft model in place.

    Args:
        student: a causal LM of transformers, of the target's vocabulary.
        target: the model to align it to; it is not changed.
        texts: that the target wrote, with prompts.
        settings: how.
        before: students whose right positions are left out (Col-BT).
        report: is given every step and its loss.

    Raises:
        UsageError: there are no texts of the length that is wanted.
    """
    long = np.flatnonzero(texts.lengths > settings.opening)
    if not len(long):
        raise UsageError(f"no text is longer than the {settings.opening} tokens of an opening. Shorten --opening.")
    loss, source = parse_loss(settings.loss), np.random.default_rng(settings.seed)
    generator = torch.Generator(student.device).manual_seed(settings.seed)
    parameters = [each for each in student.parameters() if each.requires_grad]
    optimizers = build_optimizers(student, settings.optimizer, lr=settings.lr, weight_decay=0.0)
    for step in range(settings.steps):
        chosen = source.choice(long, min(settings.texts, len(long)), replace=False)
        rows = _rows(texts, chosen, student.device)
        if int((step + 1) * settings.on_policy) > int(step * settings.on_policy):
            rows = written(student, rows.ids[:, : settings.opening], settings, generator)
        counted = rows.counted & ~_right(before, rows)
        if not bool(counted.any()):
            continue
        wanted = rows.ids[:, 1:][counted]
        with torch.no_grad():
            p = _shared(target(input_ids=rows.ids, use_cache=False).logits[:, :-1][counted], student)
        found = student(input_ids=rows.ids, use_cache=False).logits[:, :-1][counted]
        value = loss(found[:, : p.shape[-1]], p, wanted)
        for parameter, gradient in zip(parameters, torch.autograd.grad(value, parameters), strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * min(1.0, (step + 1) / settings.warmup) * (1 - step / settings.steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if report is not None:
            report(step, float(value.detach()))


def boost(
    students: Sequence[Any],
    target: Any,
    texts: Texts,
    settings: DistillSettings,
    *,
    report: Callable[[int, float], object] | None = None,
) -> None:
    """Train several students in turn, each on what those before it get wrong (Col-BT); see `distil`."""
    for place, student in enumerate(students):
        distil(student, target, texts, settings, before=students[:place], report=report)


@torch.no_grad()
def written(student: Any, openings: Tensor, settings: DistillSettings, generator: torch.Generator) -> Rows:
    """Return openings Int64[B, n] with what the student writes after them; only that counts, up to the text's end."""
    ids, cache, given = openings, None, openings
    for _ in range(settings.new_tokens):
        output = student(input_ids=given, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        p = (output.logits[:, -1].float() / settings.temperature).softmax(-1)
        given = torch.multinomial(p, 1, generator=generator)
        ids = torch.cat([ids, given], dim=1)
    ends = student.config.eos_token_id
    ended = torch.isin(ids, torch.tensor(ends if isinstance(ends, list) else [-1 if ends is None else ends]).to(ids))
    place = torch.arange(ids.shape[1] - 1, device=ids.device)
    return Rows(ids, (ended[:, :-1].cumsum(1) == 0) & (place >= openings.shape[1] - 1))


@torch.no_grad()
def acceptance(students: Sequence[Any], target: Any, texts: Texts, *, size: int = 8) -> dict[str, float]:
    """Return how well students predict what the target writes, over all positions that it wrote.

    Returns:
        "overlap": of the first student, the mean of sum min(p, q), the acceptance of speculative sampling at
        temperature 1. "agreement": likewise, where both have the same best token. "union": where any student has the
        target's best token, which a tree of their drafts then holds.
    """
    sums, count = np.zeros(3), 0
    for first in range(0, len(texts), size):
        rows = _rows(texts, np.arange(first, min(first + size, len(texts))), target.device)
        p = target(input_ids=rows.ids, use_cache=False).logits[:, :-1][rows.counted].float().softmax(-1)
        best = p.argmax(-1)
        same = []
        for place, student in enumerate(students):
            q = student(input_ids=rows.ids, use_cache=False).logits[:, :-1][rows.counted].float().softmax(-1)
            if place == 0:
                width = min(p.shape[-1], q.shape[-1])
                sums[0] += float(torch.minimum(p[:, :width], q[:, :width]).sum())
            same.append(q.argmax(-1) == best)
        sums[1:] += int(same[0].sum()), int(torch.stack(same).any(0).sum())
        count += len(best)
    return dict(zip(("overlap", "agreement", "union"), (sums / max(1, count)).tolist(), strict=True))


def _rows(texts: Texts, chosen: np.ndarray[Any, Any], device: torch.device) -> Rows:
    """Return texts, of which only what the target wrote counts."""
    lengths = torch.from_numpy(texts.lengths[chosen])
    ids = torch.zeros(len(chosen), int(lengths.max()), dtype=torch.long)
    for row, index in enumerate(chosen):
        ids[row, : lengths[row]] = torch.from_numpy(texts[int(index)].astype(np.int64))
    prompts = torch.from_numpy(texts.prompts[chosen].astype(np.int64))
    place = torch.arange(ids.shape[1] - 1)
    counted = (place < lengths[:, None] - 1) & (place >= prompts[:, None] - 1)
    return Rows(ids.to(device), counted.to(device))


@torch.no_grad()
def _right(students: Sequence[Any], rows: Rows) -> Tensor:
    """Return the positions Bool[B, T - 1] whose next token one of the students has as its best."""
    found = torch.zeros_like(rows.counted)
    for student in students:
        best = student(input_ids=rows.ids, use_cache=False).logits[:, :-1].argmax(-1)
        found |= best == rows.ids[:, 1:]
    return found


def _shared(logits: Tensor, student: Any) -> Tensor:
    """Return the target's logits of the tokens that the student has too: models pad one vocabulary differently."""
    return logits[:, : int(student.config.get_text_config(decoder=True).vocab_size)]
