"""Sequences on tiny models, and a greedy round that tests can follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models import VOCABULARY
from speculant.core.tree import DraftTree
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.target_cache import HFTargetCache

IDS = torch.tensor([[5, 9, 14, 3, 8, 5, 9, 14, 3, 8, 5, 9]])


def plain_text(model: Any, ids: Tensor, tokens: int, **options: Any) -> list[int]:
    """Return the greedy continuation by the model's own `generate`."""
    settings = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    settings |= {"attention_mask": torch.ones_like(ids)} | options
    found: list[int] = model.generate(ids, **settings)[0, ids.shape[1] :].tolist()
    return found


def opened(engine: HFEngine, ids: Tensor = IDS, **options: Any) -> HFTargetCache:
    """Return a sequence whose prompt is read."""
    cache = engine.open(ids, **options)
    assert cache.prefill() is not None
    return cache


def rows_of(root: int, tree: DraftTree) -> tuple[Any, Any]:
    """Return tokens and parents of the root and the nodes below it."""
    tokens, parents = np.array([root, *tree.tokens], np.int32), np.array([-1, *(tree.parents + 1)], np.int32)
    return tokens, parents


def guess(text: Sequence[int], random: np.random.Generator, *, trees: bool, maximum: int) -> DraftTree:
    """Return a draft of which some paths are the beginning of a text, and others leave it."""
    paths = []
    for _ in range(int(random.integers(4)) if trees else 1):
        path = list(text[: int(random.integers(1, 6))])
        if path and random.random() < 0.5:
            path[int(random.integers(len(path)))] = int(random.integers(VOCABULARY))
        paths.append([*path, int(random.integers(VOCABULARY))][:maximum])
    return DraftTree.from_paths([path for path in paths if path])


class Greedy:
    """Greedy decoding of a text by rounds whose drafts are good guesses."""

    def __init__(self, engine: HFEngine, ids: Tensor, text: Sequence[int], **options: Any) -> None:
        """Read the prompt; `text` is what the model is going to continue with."""
        self.engine, self.text, self.random = engine, list(text), np.random.default_rng(ids.shape[1])
        self.cache = engine.open(ids, **options)
        result = self.cache.prefill()
        assert result is not None
        self.ids = [int(result.logits[0].argmax())]
        self.rounds = 0

    @property
    def ended(self) -> bool:
        return len(self.ids) >= len(self.text)

    def draft(self) -> DraftTree:
        """Return the next draft."""
        room = min(self.cache.depth, len(self.text) - len(self.ids) - 1)
        return guess(
            self.text[len(self.ids) :], self.random, trees=self.engine.capabilities.trees, maximum=max(0, room)
        )  # fmt: skip

    def commit(self, tree: DraftTree, logits: Tensor) -> None:
        """Follow the best tokens along the draft."""
        chosen, node, path = logits.argmax(-1).tolist(), -1, []
        while True:
            self.ids.append(chosen[node + 1])
            node = next((child for child in tree.children(node) if tree.tokens[child] == self.ids[-1]), -1)
            if node < 0:
                break
            path.append(node)
        self.cache.keep([0, *(node + 1 for node in path)])
        self.rounds += 1


def greedy_texts(
    engine: HFEngine, prompts: Sequence[Tensor], texts: Sequence[Sequence[int]], caches: Sequence[Any] | None = None
) -> list[list[int]]:
    """Return the texts that rounds over all sequences at once give."""
    given = [None] * len(prompts) if caches is None else caches
    sequences = [Greedy(engine, ids, text, cache=cache) for ids, text, cache in zip(prompts, texts, given, strict=True)]
    while active := [each for each in sequences if not each.ended]:
        drafts = [each.draft() for each in active]
        passes = engine.forward([(each.cache, each.ids[-1], tree) for each, tree in zip(active, drafts, strict=True)])
        for each, tree, result in zip(active, drafts, passes, strict=True):
            each.commit(tree, result.logits)
    return [each.ids for each in sequences]
