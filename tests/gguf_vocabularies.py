"""Tokenizers for GGUF files of tests: byte-level ones that are trained here, and those of SentencePiece."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf_families import SHAPE, write_family
from ggufs import folder, needs_llamacpp
from speculant.engines.hf.quantized.gguf.architectures import ARCHITECTURES
from speculant.engines.hf.quantized.gguf.splits import SPLITS

TEXTS = (
    "Once upon a  time\n\nthere was a caf\u00e9, \u6f22\u5b57 and \U0001f600.",
    " a leading space",
    "two   spaces  and\ttabs\t\there, \r\n  lines \n \n",
    "I'll say he'd've DON'T It'S 12345678 numbers 3.14159, x=y+1; // comment\n",
    "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n",
    "<think> nothing </think> is marked<|end|>  here <s>and</s> there",
    "def f(x):\n        return {'a': x ** 2}  # \u00fcber\n\n\n",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 camelCaseWords HTTPServer \u00c9cole n\u00e3o",
    "",
    "   ",
    "a",
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<|end|>")
OWN = ("<think>", "</think>", "  \n")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CONTROL, USER_DEFINED, NORMAL, UNKNOWN, BYTE = 3, 4, 1, 2, 6


@functools.cache
def byte_level_file(split: str) -> Path:
    """Return a file with a byte-level tokenizer of 700 tokens that was trained on `TEXTS` and this source."""
    needs_llamacpp()
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(each), behavior="isolated") for each in SPLITS[split].expressions),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator([*TEXTS, Path(__file__).read_text(encoding="utf-8")] * 3, trainer)
    described = json.loads(backend.to_str())["model"]
    tokens = sorted(described["vocab"], key=described["vocab"].get)
    merges = [each if isinstance(each, str) else " ".join(each) for each in described["merges"]]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(SPECIAL) + [USER_DEFINED] * len(OWN)

    def describe(writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(split)
        writer.add_token_list([*tokens, *SPECIAL, *OWN])
        writer.add_token_types(types)
        writer.add_token_merges(merges)
        writer.add_bos_token_id(len(tokens))
        writer.add_eos_token_id(len(tokens) + 1)
        writer.add_chat_template(
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        )

    return _write(folder() / f"tokens-{split}.gguf", len(types), describe)


def sentencepiece_file(model: Path, *, spaced: bool, name: str = "") -> Path:
    """Return a file with the tokenizer of a SentencePiece model."""
    needs_llamacpp()
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    count = pieces.vocab_size()
    kinds = [
        UNKNOWN if pieces.is_unknown(i) else CONTROL if pieces.is_control(i) else BYTE if pieces.is_byte(i) else NORMAL
        for i in range(count)
    ]

    def describe(writer: Any) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([*(pieces.id_to_piece(i) for i in range(count)), "<think>", "<|endoftext|>", "<|end|>"])
        writer.add_token_scores([*(pieces.get_score(i) for i in range(count)), -1000.0, -1000.0, -1000.0])
        writer.add_token_types([*kinds, USER_DEFINED, CONTROL, CONTROL])
        writer.add_bos_token_id(pieces.bos_id())
        writer.add_eos_token_id(pieces.eos_id())
        writer.add_add_space_prefix(spaced)
        if name:
            writer.add_name(name)

    return _write(folder() / f"pieces-{spaced}-{name}.gguf", count + 3, describe)


def write_tokens(
    path: Path, *, tokens: Sequence[str], types: Sequence[int], merges: Sequence[str], model: str = "gpt2",
    pre: str = "gpt-2", rows: int | None = None,
) -> Path:  # fmt: skip
    """Write a file with a few tokens, and an embedding of that many rows."""

    def describe(writer: Any) -> None:
        writer.add_tokenizer_model(model)
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(list(tokens))
        writer.add_token_types(list(types))
        writer.add_token_merges(list(merges))

    return _write(path, rows or len(tokens), describe)


def _write(path: Path, size: int, describe: Any) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = SHAPE | {"vocab_size": size, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    shape |= {"num_hidden_layers": 1, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    write_family(LlamaForCausalLM(LlamaConfig(**shape)), ARCHITECTURES["llama"], path, describe=describe)
    return path
