"""Writes a tokenizer of the Llama 2 kind to a GGUF file: byte-fallback BPE with "▁" for spaces.

llama.cpp merges by the score of the resulting token, transformers by the rank of the pair. If every token results from
one pair, scores that decrease with the rank give the same splits.
"""

from __future__ import annotations

import json
import re
from typing import Any

from speculant.core.errors import UnsupportedError

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTES = 1, 2, 3, 4, 5, 6  # llama.cpp's types of tokens
_NEVER = -1e9  # the score of tokens that are no merge result


def describe_tokenizer(writer: Any, tokenizer: Any, model: Any) -> None:
    """Add a tokenizer to a file that is being written.

    Args:
        writer: a gguf.GGUFWriter.
        tokenizer: a transformers tokenizer with a `tokenizers` backend.
        model: its model, whose vocabulary may be larger.

    Raises:
        UnsupportedError: the tokenizer is of another kind.
    """
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    bpe, prefixed = described["model"], _is_prefixed(described["normalizer"])
    if bpe.get("type") != "BPE" or not bpe.get("byte_fallback") or prefixed is None or described["pre_tokenizer"]:
        raise UnsupportedError(
            "only tokenizers of the Llama 2 kind (byte-fallback BPE with '▁' for spaces) are written to GGUF files. "
            "Use llama.cpp's convert_hf_to_gguf.py, which knows others."
        )
    pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in bpe["merges"]]
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(pairs):
        ranks.setdefault("".join(pair), rank)
    special = {each["content"]: each["special"] for each in described["added_tokens"]}
    names = {i: token for token, i in tokenizer.get_vocab().items()}
    size = max(int(model.get_input_embeddings().weight.shape[0]), max(names) + 1)
    tokens, scores, kinds = list[str](), list[float](), list[int]()
    for i in range(size):
        token = names.get(i)
        tokens.append(f"[PAD{i}]" if token is None else token)
        scores.append(float(-ranks[token]) if token in ranks else _NEVER)
        kinds.append(_UNUSED if token is None else _kind(token, special, unknown=bpe.get("unk_token")))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    for add, i in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if i is not None:
            add(i)
    begun = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    writer.add_add_bos_token(begun)
    writer.add_add_eos_token(tokenizer("a")["input_ids"][-1:] == [tokenizer.eos_token_id])
    writer.add_add_space_prefix(prefixed)
    if getattr(tokenizer, "chat_template", None):
        writer.add_chat_template(tokenizer.chat_template)


def _is_prefixed(normalizer: Any) -> bool | None:
    """Return whether a space is prepended to texts; None for another kind of normalizer."""
    steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    kinds = [step["type"] for step in steps]
    replaces = [step for step in steps if step["type"] == "Replace"]
    spaces = len(replaces) == 1 and replaces[0]["pattern"] == {"String": " "} and replaces[0]["content"] == "▁"
    if not spaces or set(kinds) - {"Prepend", "Replace"}:
        return None
    return "Prepend" in kinds


def _kind(token: str, special: dict[str, bool], *, unknown: str | None) -> int:
    if token == unknown:
        return _UNKNOWN
    if token in special:
        return _CONTROL if special[token] else _USER
    return _BYTES if _BYTE.fullmatch(token) else _NORMAL
