"""Checks once, on the loaded model, that passes over drafts return the same logits as one-token passes.

GGUF headers do not tell whether an architecture's positions and masks go by sequences, as those of attention do, nor
whether its states are copied with a sequence. So a small tree is run (or chains that are partly kept) and compared with
plain decoding.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.core.tree import Int32
from speculant.engines.llamacpp.context import LlamaContext
from speculant.engines.llamacpp.opening import open_sequence

TOLERANCE = 0.2  # relative to the spread of a row's logits; quantised caches differ by some hundredths
_PREFIX = 5
_PARENTS = (-1, 0, 0, 1, 2)  # the root, its two children, and one child of each
_PATHS = ((0, 1, 3), (0, 2, 4))
_CHAINS = ((3, 1), (3, 2), (4, 4), (2, 2), (1, 1))  # rows of each pass, and how many are kept
_TOKENS = _PREFIX + sum(kept for _, kept in _CHAINS)


def check_drafts(context: LlamaContext) -> None:
    """Run drafts and the same tokens one at a time, and compare the logits.

    Raises:
        UnsupportedError: the logits differ by more than rounding.
    """
    if context.positions <= _TOKENS:
        return
    ids = ((np.arange(_TOKENS) * 7 + 3) % context.model.vocabulary).astype(np.int32)
    if context.model.states:
        _check_chains(context, ids)
    else:
        _check_tree(context, ids[: _PREFIX + len(_PARENTS)])


def _check_tree(context: LlamaContext, ids: Int32) -> None:
    drafted = ids[_PREFIX:]
    cache = open_sequence(context, ids[:_PREFIX].tolist())
    try:
        cache.prefill()
        tree: Tensor = cache.forward(drafted, np.array(_PARENTS, np.int32)).logits.clone()
        cache.rollback()
        for path in _PATHS:
            for place, row in enumerate(path):
                alone: Tensor = cache.forward(drafted[row : row + 1], np.array([place - 1], np.int32)).logits[0]
                _compare(tree[row], alone, "a tree")
            cache.rollback()
    finally:
        cache.release()


def _check_chains(context: LlamaContext, ids: Int32) -> None:
    plain, drafted = (open_sequence(context, ids[:_PREFIX].tolist()) for _ in range(2))
    try:
        plain.prefill()
        drafted.prefill()
        for rows, kept in _CHAINS:
            tokens = ids[drafted.length : drafted.length + kept]
            wrong = (tokens[-1:] + np.arange(1, 1 + rows - kept, dtype=np.int32)) % context.model.vocabulary
            parents = np.arange(-1, rows - 1, dtype=np.int32)
            chain: Tensor = drafted.forward(np.concatenate([tokens, wrong]), parents).logits.clone()
            drafted.keep(range(kept))
            for token, row in zip(tokens, chain, strict=False):
                _compare(row, plain.forward(token[None], np.array([-1], np.int32)).logits[0], "a chain")
                plain.keep([0])
    finally:
        plain.release()
        drafted.release()


def _compare(drafted: Tensor, alone: Tensor, kind: str) -> None:
    difference = float((alone - drafted).abs().max())
    if not difference <= TOLERANCE * float(alone.std()):
        raise UnsupportedError(
            f"drafts cannot be verified on this model with llama.cpp: its logits in {kind} differ by "
            f"{difference:.2g} from those of one token at a time."
        )
