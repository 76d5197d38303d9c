"""Heads that draft only frequent tokens: most of a small head's time is spent on the logits of a large vocabulary.

Zhao et al. 2025, "FR-Spec: Accelerating Large-Vocabulary Language Models via Frequency-Ranked Speculative Sampling",
arXiv 2502.14856; for MTP heads Cai et al. 2025, FastMTP, arXiv 2509.18362. The target verifies with its whole
vocabulary, so a missing token costs acceptance but never changes the text.
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
    """Return a head and its target with logits for only frequent tokens; unchanged if there is no file.

    Args:
        head: head with all tokens.
        target: target of the head.
        path: path of a file of token ids, most frequent first; "" for none.
        size: number of tokens from the file that are drafted; 0 for all.
        kind: kind of the head, for messages.

    Raises:
        FileError: the file cannot be read, or is not such a list.
        UsageError: it contains ids that the target does not have, or `size` is negative or given without a file.
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
            "vocabulary=FILE is for heads that use the target's output projection, such as EAGLE-1's and MTP's; this "
            f"head of kind {kind} does not, or the projection is not a plain matrix. Leave the setting out."
        )
    return reduced, parts


def read_ranked(path: Path, vocabulary: int) -> list[int]:
    """Return the distinct token ids in a file: a JSON list, or a list or tensor from torch.save (.pt).

    Raises:
        FileError: the file cannot be read, or is not a list of whole numbers.
        UsageError: an id is outside the vocabulary.
    """
    try:
        found: Any = (
            torch.load(path, map_location="cpu", weights_only=True)
            if path.suffix == ".pt"
            else json.loads(path.read_text("utf-8"))
        )
    except Exception as error:  # torch.load raises many kinds of errors on other files; all are reported the same way
        raise FileError(f"{path} cannot be read as a list of token ids: {error}") from error
    ids = found.tolist() if isinstance(found, Tensor) else found
    if not isinstance(ids, list) or not ids or not all(type(each) is int for each in ids):
        raise FileError(f"{path} holds no list of token ids. Make one with `speculant corpus build --kind vocabulary`.")
    if not 0 <= min(ids) <= max(ids) < vocabulary:
        raise UsageError(
            f"{path} has token ids from {min(ids)} to {max(ids)}, but the target's vocabulary has {vocabulary}: it "
            "was made for another tokenizer."
        )
    return list(dict.fromkeys(ids))
