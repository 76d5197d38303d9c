"""Heads that draft frequent tokens alone: most of a small head's time goes into the logits of a large vocabulary.

Zhao et al. 2025, "FR-Spec: Accelerating Large-Vocabulary Language Models via Frequency-Ranked Speculative Sampling",
arXiv 2502.14856; for MTP heads Cai et al. 2025, FastMTP, arXiv 2509.18362. The target verifies with its whole
vocabulary, so a token that is left out costs acceptance, never text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from speculant.core.errors import FileError, UnsupportedError, UsageError
from speculant.drafters.heads.head import Head, TargetParts


def reduce_vocabulary(head: Head, target: TargetParts, path: str, size: int, *, kind: str) -> tuple[Head, TargetParts]:
    """Return a head and its target with logits of frequent tokens alone; the same ones for no file.

    Args:
        head: of all tokens.
        target: of the head.
        path: of a file of token ids, the most frequent first; "" for none.
        size: how many of them are drafted; 0 for all in the file.
        kind: of the head, for messages.

    Raises:
        FileError: the file cannot be read, or holds no such list.
        UsageError: it holds ids that the target does not have, or `size` is negative or has no file.
        UnsupportedError: the head cannot leave out tokens.
    """
    if size < 0:
        raise UsageError(f"vocabulary_size must be at least 0, not {size}.")
    if not path:
        if size:
            raise UsageError("vocabulary_size needs vocabulary=FILE, a ranked list of token ids.")
        return head, target
    ids = torch.tensor(read_ranked(Path(path), target.vocabulary)[: size or None])
    parts = target.with_output_rows(ids)
    reduced = None if parts is None else head.with_vocabulary(ids.to(parts.projection().device))
    if reduced is None or parts is None:
        raise UnsupportedError(
            f"vocabulary=FILE is for heads that use the target's output projection, such as EAGLE-1's and MTP's; this "
            f"head of kind {kind} does not, or the projection is no plain matrix. Leave the setting out."
        )
    return reduced, parts


def read_ranked(path: Path, vocabulary: int) -> list[int]:
    """Return the token ids of a file, each once: a JSON list, or a list or tensor of torch.save (.pt).

    Raises:
        FileError: the file cannot be read, or holds no list of whole numbers.
        UsageError: an id is not below `vocabulary`.
    """
    try:
        found: Any = (
            torch.load(path, map_location="cpu", weights_only=True)
            if path.suffix == ".pt"
            else json.loads(path.read_text("utf-8"))
        )
    except Exception as error:  # torch.load fails in many ways on other files; each ends here with its reason
        raise FileError(f"{path} cannot be read as a list of token ids: {error}") from error
    ids = found.tolist() if isinstance(found, Tensor) else found
    if not isinstance(ids, list) or not ids or not all(type(each) is int for each in ids):
        raise FileError(f"{path} holds no list of token ids. Make one with `speculant corpus build --kind vocabulary`.")
    if not 0 <= min(ids) <= max(ids) < vocabulary:
        raise UsageError(
            f"{path} has token ids from {min(ids)} to {max(ids)}, and the target's vocabulary has {vocabulary}: it was "
            "made for another tokenizer."
        )
    return list(dict.fromkeys(ids))
