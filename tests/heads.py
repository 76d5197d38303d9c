"""Heads for tiny targets: random ones of public kinds, and one that knows what the target is going to choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.eagle import EagleHead
from speculant.drafters.heads.head import Head, HeadState, TargetParts
from speculant.drafters.heads.layers import LayerShape
from speculant.engines.hf.target_parts import HFTargetParts
from speculant.registry import METHODS


def eagle(target: TargetParts) -> nn.Module:
    """Return a random EAGLE head for a target."""
    size = target.hidden_size
    return EagleHead(LayerShape(hidden=size, inner=48, heads=4, kv_heads=2, head_dim=size // 4))


BUILDERS: Mapping[str, Callable[[TargetParts], nn.Module]] = {"eagle": eagle}  # by kind
HEADED = [  # methods that can be tested with these
    name for name, method in METHODS.items() if "*" in method.heads or set(method.heads) & BUILDERS.keys()
]


def random_head(model: Any, kind: str = "eagle", *, seed: int = 0) -> LoadedHead:
    """Return a random head on a target, in its dtype."""
    target = HFTargetParts(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head: Any = BUILDERS[kind](target)
    head.to(model.dtype).eval().requires_grad_(False)
    return LoadedHead(head, target, kind, "eagle2")


def head_for(method: str, model: Any) -> LoadedHead:
    """Return a random head that a method takes."""
    kinds = METHODS[method].heads
    return random_head(model, next((kind for kind in BUILDERS if kind in kinds), "eagle"))


class OracleHead(Head):
    """Runs the target itself over the text, with noise on its logits; for texts that begin with a known token."""

    taps = (0,)
    depth: int | None = None
    ids: Tensor | None = None

    def __init__(self, model: Any, *, begin: int, noise: float = 0.0, depth: int | None = None) -> None:
        """Take the target and the first token of all texts."""
        self.model, self.begin, self.noise, self.depth = model, begin, noise, depth

    def open(self, first: int, target: TargetParts) -> HeadState:
        assert first == 0
        return OracleState(self)

    def logits(self, text: Sequence[int]) -> Tensor:
        """Return logits [V] after a text."""
        with torch.inference_mode():
            found: Tensor = self.model(torch.tensor([text])).logits[0, -1]
        source = torch.Generator().manual_seed(sum(place * token for place, token in enumerate(text)))
        return found + self.noise * torch.randn(found.shape, generator=source)


class OracleState(HeadState):
    """The tokens of a text, and those of a draft."""

    def __init__(self, head: OracleHead) -> None:
        self.head, self.text, self.paths = head, [head.begin], list[list[int]]()

    @property
    def length(self) -> int:
        return len(self.text) - 1

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        assert len(hidden) == len(following)
        assert not self.paths
        self.text += following.tolist()

    def start(self) -> Tensor:
        return self.head.logits(self.text)[None]

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        paths = [[*(self.paths[row] if row >= 0 else []), token] for token, row in zip(tokens, above, strict=True)]
        self.paths += paths
        return torch.stack([self.head.logits(self.text + path) for path in paths])

    def drop(self) -> None:
        self.paths = []

    def crop(self, length: int) -> None:
        self.drop()
        self.text = self.text[: length + 1]


def oracle(model: Any, *, begin: int, noise: float = 0.0, depth: int | None = None) -> LoadedHead:
    """Return such a head on its target."""
    head = OracleHead(model, begin=begin, noise=noise, depth=depth)
    return LoadedHead(head, HFTargetParts(model), "eagle", "eagle2")
