"""The change in a model's predictions due to quantisation, measured on a short text.

The text is the user's if given, else a built-in one of English and code. Its length is bounded by the arithmetic of a
pass, so that this takes seconds for any model size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

MAX_TOKENS, MIN_TOKENS = 256, 16
_BUDGET = 6e10  # weights times tokens
SAMPLE = """\
The harbour was quiet when the ferry came in. Two fishermen sat on the wall with their coffee and argued about the
weather, as they did every morning, while a dog slept between the nets. Nobody noticed the woman who stepped ashore with
a single suitcase and a letter that was seventeen years old. She asked the first of them for the way to the lighthouse,
and he pointed up the hill without looking at her. "It has been closed since 2009," he said. "There is nobody to visit."

Question: A train leaves at 14:35 and arrives at 17:10 after a stop of 20 minutes. How long did it move?
Answer: From 14:35 to 17:10 are 2 hours and 35 minutes; without the stop it moved for 2 hours and 15 minutes.

def read_settings(path: str) -> dict[str, str]:
    settings = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, _, value = line.partition("=")
            settings[name.strip()] = value.strip()
    return settings
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationLoss:
    """The effect of quantisation on a text.

    Attributes:
        tokens: number of tokens whose predictions were compared.
        divergence: mean KL divergence of the quantised model's predictions from the float model's, in nats a token.
        agreement: share of positions at which both have the same most probable token.
        before, after: perplexity of the text for the float and the quantised model.
    """

    tokens: int
    divergence: float
    agreement: float
    before: float
    after: float

    def __str__(self) -> str:
        return (
            f"on {self.tokens} tokens of sample text the KL divergence from the float weights is {self.divergence:.2g} "
            f"nats a token, the most probable token is the same at {self.agreement:.1%}, and the perplexity goes from "
            f"{self.before:.4g} to {self.after:.4g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """A float model's predictions on a text.

    Attributes:
        ids: Int64 [T].
        logs: log-probabilities, float32 [T, V].
    """

    ids: Tensor
    logs: Tensor


def sample_ids(model: Any, tokenizer: Any, text: str | None = None) -> Tensor | None:
    """Return the ids of a text, Int64 [T], cut to what can be read in seconds; None without a tokenizer.

    Args:
        model: the float model.
        tokenizer: its tokenizer, or None.
        text: the user's text; None for the built-in sample.
    """
    if tokenizer is None:
        return None
    weights = sum(parameter.numel() for parameter in model.parameters())
    config = model.config.get_text_config(decoder=True)
    positions = getattr(config, "max_position_embeddings", None) or MAX_TOKENS
    maximum = min(MAX_TOKENS, positions, max(MIN_TOKENS, int(_BUDGET / max(weights, 1))))
    ids = torch.tensor(tokenizer(text or SAMPLE)["input_ids"][:maximum], dtype=torch.int64)
    return ids if len(ids) >= 2 and int(ids.max()) < config.vocab_size else None


def predict(model: Any, ids: Tensor) -> Predictions:
    """Return a model's predictions on a text, computed in float32 whatever dtype its weights have.

    Each module's weights are widened while it runs, so the model need not fit in memory in float32.
    """
    with torch.inference_mode(), _widen_weights(model):
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
    return Predictions(ids=ids, logs=F.log_softmax(logits.float(), dim=-1))


def compare(before: Predictions, model: Any) -> QuantizationLoss:
    """Compare a quantised model's predictions with a float model's."""
    with torch.inference_mode():
        after = F.log_softmax(model(input_ids=before.ids[None], use_cache=False).logits[0].float(), dim=-1)
        same = (after.argmax(dim=-1) == before.logs.argmax(dim=-1)).float().mean()
        rows = zip(after, before.logs, strict=True)  # one by one, since all of them together are large
        divergence = sum(float(F.kl_div(new, old, log_target=True, reduction="sum")) for new, old in rows) / len(after)

    def perplexity(logs: Tensor) -> float:
        return math.exp(min(-float(logs[:-1].gather(1, before.ids[1:, None]).mean()), 700.0))

    return QuantizationLoss(
        tokens=len(after),
        divergence=max(divergence, 0.0),
        agreement=float(same),
        before=perplexity(before.logs),
        after=perplexity(after),
    )


@contextmanager
def _widen_weights(model: Any) -> Iterator[None]:
    """Give each module of a model its own weights in float32 while it runs."""
    held: dict[tuple[int, str], Tensor] = {}

    def widen(module: Any, _given: Any) -> None:
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_floating_point() and parameter.dtype is not torch.float32:
                held[id(module), name] = parameter.data
                parameter.data = parameter.data.float()

    def restore(module: Any, _given: Any, _output: Any) -> None:
        for name, parameter in module._parameters.items():
            if (id(module), name) in held:
                parameter.data = held.pop((id(module), name))

    hooks = []
    for module in model.modules():
        if module._parameters:
            hooks += [
                module.register_forward_pre_hook(widen),
                module.register_forward_hook(restore, always_call=True),
            ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
