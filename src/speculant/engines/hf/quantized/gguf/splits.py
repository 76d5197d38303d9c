"""The splitting of texts before byte pairs are merged, by its name in a GGUF file (`tokenizer.ggml.pre`).

The expressions come from the tokenizers of these names; several are applied in sequence. Names and their meanings are
llama.cpp's (`llama-vocab.cpp` of github.com/ggml-org/llama.cpp), which writes some of the expressions differently,
because it lacks character classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_SYMBOLS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A way to split texts.

    Attributes:
        expressions: each is applied to the parts left by the previous one; every match becomes a part.
        whole: whether a part that is itself a token is kept, instead of split and merged again.
        begins: whether texts start with a beginning-of-text token if the file does not say.
    """

    expressions: tuple[str, ...]
    whole: bool = False
    begins: bool = False


_LLAMA3 = Split(expressions=(_WORDS % r"\p{N}{1,3}",), whole=True, begins=True)
_QWEN2 = Split(expressions=(_WORDS % r"\p{N}",))
_GPT4O = Split(
    expressions=(
        "|".join((_CASES % (f"{_CONTRACTIONS}?", f"{_CONTRACTIONS}?"), r"\p{N}{1,3}", _SYMBOLS)),
    )
)  # fmt: skip
_DIGITS = Split(expressions=(r"\p{N}", _GPT2))
_PLAIN = Split(expressions=(_GPT2,))

SPLITS: Mapping[str, Split] = MappingProxyType(
    {
        **dict.fromkeys(
            ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3
        ),
        **dict.fromkeys(("smaug-bpe", "dbrx"), Split(expressions=_LLAMA3.expressions)),
        **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2"), _QWEN2),
        "tekken": Split(expressions=("|".join((_CASES % ("", ""), r"\p{N}", _SYMBOLS)),), whole=True, begins=True),
        **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
        **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), _DIGITS),
        **dict.fromkeys(("gpt-2", "phi-2", "olmo", "a.x-4.0", "mellum", "exaone4"), _PLAIN),
        "default": Split(
            expressions=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
        ),
    }
)
