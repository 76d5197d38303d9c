"""Whether passes over trees return the logits of passes over one token, checked once on the loaded model.

What the headers of GGUF files say does not tell whether an architecture's positions and masks go by sequences as those
of attention do, so a small tree is run and compared with plain decoding.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.engines.llamacpp.context import LlamaContext
from speculant.engines.llamacpp.target_cache import LlamaTargetCache

TOLERANCE = 0.2  # of the spread of a row's logits; quantised caches differ by some hundredths
_PREFIX = 5
_PARENTS = (-1, 0, 0, 1, 2)  # the root, two branches below it, and one node below each
_PATHS = ((0, 1, 3), (0, 2, 4))


def check_trees(context: LlamaContext) -> None:
    """Run a tree and its branches one token at a time, and compare.

    Raises:
        UnsupportedError: the logits differ by more than rounding.
    """
    tokens = _PREFIX + len(_PARENTS)
    if context.positions <= tokens:
        return
    ids = (np.arange(tokens) * 7 + 3) % context.model.vocabulary
    drafted = ids[_PREFIX:].astype(np.int32)
    cache = LlamaTargetCache(context, ids[:_PREFIX].tolist())
    try:
        cache.prefill()
        tree: Tensor = cache.forward(drafted, np.array(_PARENTS, np.int32)).logits.clone()
        cache.rollback()
        for path in _PATHS:
            for place, row in enumerate(path):
                alone: Tensor = cache.forward(drafted[row : row + 1], np.array([place - 1], np.int32)).logits[0]
                difference = float((alone - tree[row]).abs().max())
                if not difference <= TOLERANCE * float(alone.std()):
                    raise UnsupportedError(
                        f"drafts cannot be verified on this model with llama.cpp: its logits in a tree differ by "
                        f"{difference:.2g} from those of one token at a time."
                    )
            cache.rollback()
    finally:
        cache.release()
