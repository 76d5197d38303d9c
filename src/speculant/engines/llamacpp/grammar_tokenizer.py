"""The tokenizer of a GGUF file in llguidance's form.

`llguidance.llamacpp` does the same with functions that llama.cpp has deprecated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from speculant.engines.llamacpp.tokenizer import GGUFTokenizer

_SPECIAL = b"\xff"  # in front of tokens that are no text


def grammar_tokenizer(tokenizer: GGUFTokenizer, *, vocabulary: int, ends: Sequence[int]) -> Any:
    """Return an `llguidance.LLTokenizer`; takes about a second for a large vocabulary.

    Args:
        tokenizer: of the file.
        vocabulary: V, of the model.
        ends: the tokens that end a text.
    """
    from llguidance import LLTokenizer

    pieces = [_SPECIAL + piece if special else piece for piece, special in tokenizer.pieces()]
    pieces += [b""] * (vocabulary - len(pieces))
    tokenize = ctypes.cast(tokenizer.tokenize_function, ctypes.c_void_p).value
    return LLTokenizer.from_llamacpp(
        tokens=pieces, vocab_ptr=tokenizer.vocab, tokenize_fptr=tokenize, eos_token=list(ends)
    )
