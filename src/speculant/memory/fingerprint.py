"""The fingerprint that ties a drafter's memory to a tokenizer, since token ids have no meaning without it."""

from __future__ import annotations

import hashlib
from typing import Any


def tokenizer_fingerprint(tokenizer: Any, vocabulary: int) -> str:
    """Return a short hash of the tokenizer's vocabulary; without a tokenizer, a name made of the number of ids."""
    if tokenizer is None:
        return f"ids-{vocabulary}"
    digest = hashlib.blake2b(digest_size=12)
    for token, i in sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{i}\t{token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
