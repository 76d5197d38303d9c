"""Small tokenizers, made in memory, that spell the same text in different ways."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from models import deep_model

TEXTS = [
    "The little dog ran to the big house and saw a bird.",
    "Once upon a time there was a little girl who liked the dog.",
    "The bird sang, and the girl ran home. The end, said the dog!",
    "A café, a naïve 犬 and 12 birds; they said: hello there.",
]
PLAIN: tuple[str, ...] = ("<unk>", "<s>", "</s>")


@cache
def byte_level(size: int = 320, *, end: str = "<|end|>") -> Any:
    """Return a byte-level BPE, as of GPT-2, with one special token and one added token that is text."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1, special_tokens=[end], initial_alphabet=alphabet, show_progress=False
    )
    found.train_from_iterator(TEXTS, trainer)
    found.add_tokens(["<think>"])
    return PreTrainedTokenizerFast(tokenizer_object=found, eos_token=end)


@cache
def sentencepiece(size: int = 340, *, fallback: bool = True, begin: bool = True) -> Any:
    """Return a BPE as of Llama 2: ▁ for spaces, one before every text, bytes where it has no character."""
    base = [*PLAIN, *([f"<0x{byte:02X}>" for byte in range(256)] if fallback else [])]
    learned = Tokenizer(models.BPE(unk_token="<unk>"))
    marked = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learned.pre_tokenizer = pre_tokenizers.Metaspace()
    ascii_texts = [text for text in TEXTS if text.isascii()]
    learned.train_from_iterator(
        ascii_texts, trainers.BpeTrainer(vocab_size=size, special_tokens=base, show_progress=False)
    )
    model = json.loads(learned.to_str())["model"]
    found = Tokenizer(
        models.BPE(
            vocab=model["vocab"],
            merges=[tuple(pair) for pair in model["merges"]],
            unk_token="<unk>",
            byte_fallback=fallback,
            fuse_unk=True,
        )
    )
    found.normalizer = marked
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    found.decoder = decoders.Sequence(steps)
    found.add_special_tokens(list(PLAIN))
    if begin:
        found.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=found, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


@cache
def unigram(size: int = 120) -> Any:
    """Return a Unigram tokenizer, as of T5: ▁ for spaces, no bytes."""
    found = Tokenizer(models.Unigram())
    found.pre_tokenizer = pre_tokenizers.Metaspace()
    found.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=list(PLAIN), unk_token="<unk>", show_progress=False
    )
    found.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=found, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


@cache
def wordpiece() -> Any:
    """Return a WordPiece tokenizer, as of BERT, whose tokens do not spell text piece by piece."""
    found = Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1, "##re": 2}, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    found.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=found, unk_token="[UNK]")


def translated_model(target: Any, pairs: dict[int, int], size: int) -> Any:
    """Return the target with other token ids: a draft model that agrees with it wherever tokens are shared.

    Args:
        target: a tiny Llama.
        pairs: the draft model's id of each shared token of the target.
        size: the draft model's number of ids; those of other tokens are random.
    """
    found = deep_model("llama", vocab_size=size)
    weights, own = target.state_dict(), found.state_dict()
    mine, other = list(pairs), list(pairs.values())
    for name, weight in own.items():
        if weight.shape == weights[name].shape:
            weight.copy_(weights[name])
        else:
            weight[other] = weights[name][mine]
    return found
