"""The identity of a target: the weights that wrote a text, and whose states a head learned."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import torch

from speculant.engines.hf.quantized.modules import quantized_modules
from speculant.memory.fingerprint import tokenizer_fingerprint

_SAMPLED = 64  # sampled values per weight


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """Fingerprints of a target.

    Attributes:
        name: name for display.
        source: name for commands.
        model: hash of its weights' names and shapes and of some values.
        tokenizer: hash of its vocabulary.
        vocabulary: vocabulary size V.
    """

    name: str
    source: str
    model: str
    tokenizer: str
    vocabulary: int

    def record(self) -> dict[str, Any]:
        """Return the fingerprints for a JSON file."""
        return asdict(self)


def identify(model: Any, tokenizer: Any, *, name: str, source: str) -> TargetIdentity:
    """Return the fingerprints of a target; they do not depend on its device, and hardly on its dtype.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer, or None.
        name: name for display.
        source: name for commands.
    """
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    fingerprint = tokenizer_fingerprint(tokenizer, vocabulary)
    return TargetIdentity(name, source, weights_digest(model), fingerprint, vocabulary)


def weights_digest(model: Any) -> str:
    """Return a hash of the names, shapes and some values of a module's weights."""
    digest = hashlib.blake2b(digest_size=12)
    packed = [
        (f"{key}.{name}", part)
        for key, module in quantized_modules(model)
        for name, part in module.find_packed().items()
    ]
    for key, weight in sorted([*model.named_parameters(), *packed], key=lambda each: each[0]):
        flat = weight.detach().flatten()
        some = flat[:: max(1, len(flat) // _SAMPLED)][:_SAMPLED].to("cpu", torch.bfloat16)  # the same for fp32 copies
        digest.update(f"{key} {tuple(weight.shape)}".encode())
        digest.update(some.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()
