"""Converts a GGUF file's tokenizer to a transformers tokenizer with the same ids as llama.cpp's.

Two kinds are supported: byte-level BPE ("gpt2"), and SentencePiece's BPE ("llama"), which merges by the score of the
resulting token. `tokenizers` merges by rank, so every way to make a token from two others becomes a merge, in score
order. A file states which tokens are special, but not all that end a text: llama.cpp knows those by their texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from speculant.core.errors import ModelError, UnsupportedError
from speculant.engines.hf.quantized.gguf.file import GgufFile
from speculant.engines.hf.quantized.gguf.splits import SPLITS, Split

_UNKNOWN, _CONTROL, _OWN, _BYTE = 2, 3, 4, 6  # types of tokens: <unk>, not text, never split, one byte
_SPACE = "▁"
_ENDS = frozenset(
    (
        "</s>", "<eos>", "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>",
        "<end_of_turn>", "<turn|>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
        "<|end_of_text|>", "<end_of_utterance>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>",
        "<reponame>", "<|file_sep|>",
    )
)  # fmt: skip
_END_IDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_NO_ENDS = (  # if these tokens exist, another one does not end the text
    (("<|return|>", "<|call|>"), "<|end|>"),
    (("<|calls|>", "<|flush|>"), "<|end|>"),
    (("<|tool_response>",), "</s>"),
)
_SHOWN = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"))  # of gpt-oss: visible in the output


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Vocabulary:
    """The vocabulary of a file.

    Attributes:
        tokens: token texts by id, in the kind's alphabet.
        types: token types, as numbered in the file.
        ends: ids that end a text.
        byte_level: whether tokens are written in the byte alphabet.
        split: how texts are split; None if they are not.
        spaced: whether a space is prepended to texts.
    """

    file: GgufFile
    tokens: Sequence[str]
    types: Sequence[int]
    ends: tuple[int, ...]
    byte_level: bool
    split: Split | None
    spaced: bool

    def special(self, name: str) -> int | None:
        """Return the id of a special token of the file, such as "bos"; None if there is none."""
        found = self.file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if not self.byte_level:
            found = {"bos": 1, "eos": 2, "unknown": 0}.get(name) if found is None else found
        return found if isinstance(found, int) and 0 <= found < len(self.tokens) else None

    def adds(self, name: str, *, default: bool) -> bool:
        """Return whether a token is prepended ("bos") or appended ("eos") to texts."""
        found = self.file.metadata.get(f"tokenizer.ggml.add_{name}_token", default)
        return bool(found)


def read_vocabulary(file: GgufFile) -> Vocabulary | None:
    """Read the vocabulary of a file; None if it has none.

    Raises:
        ModelError: it is damaged, or larger than the embedding.
        UnsupportedError: the tokenizer is of an unsupported kind.
    """
    kind = file.metadata.get("tokenizer.ggml.model", "none")
    if kind in ("none", "no_vocab"):
        return None
    name = file.metadata.get("tokenizer.ggml.pre", "default")
    if kind not in ("llama", "gpt2") or (kind == "gpt2" and name not in SPLITS):
        what = f"'{kind}'" if kind not in ("llama", "gpt2") else f"'{kind}' with texts split as in '{name}'"
        raise UnsupportedError(
            f"{file.path} has a tokenizer of the kind {what}, which Speculant does not support. Use llama.cpp "
            "(--engine llamacpp)."
        )
    tokens: Any = file.read("tokenizer.ggml.tokens", list)
    types: Any = file.metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    embedding = file.tensors.get("token_embd.weight")
    if not all(isinstance(each, str) for each in tokens) or len(types) != len(tokens):
        raise ModelError(f"{file.path} is damaged: its tokens are not texts with one type each. Download it again.")
    if embedding is not None and len(tokens) > embedding.shape[0]:
        raise ModelError(
            f"{file.path} has {len(tokens)} tokens, but its tensor 'token_embd.weight' has {embedding.shape[0]} rows. "
            "Convert the model again."
        )
    ends = _find_ends(tokens)
    types = [_retype(token, type_, i in ends) for i, (token, type_) in enumerate(zip(tokens, types, strict=True))]
    byte_level = kind == "gpt2"
    spaced = file.metadata.get("tokenizer.ggml.add_space_prefix", not byte_level)
    made = Vocabulary(
        file=file,
        tokens=tokens,
        types=types,
        ends=(),
        byte_level=byte_level,
        split=SPLITS[str(name)] if byte_level else None,
        spaced=bool(spaced),
    )
    named = [made.special(each) for each in _END_IDS]
    return replace(made, ends=tuple(sorted(ends | {each for each in named if each is not None})))


def build_tokenizer(vocabulary: Vocabulary) -> Any:
    """Return the tokenizer of a file, a `PreTrainedTokenizerFast`.

    Raises:
        ModelError: merges or scores are missing or inconsistent.
    """
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    backend = _byte_level(vocabulary) if vocabulary.byte_level else _sentencepiece(vocabulary)
    _add_special(backend, vocabulary)
    found = {name: vocabulary.special(name) for name in ("bos", "eos", "unknown", "padding")}
    texts = {name: None if i is None else vocabulary.tokens[i] for name, i in found.items()}
    begins = vocabulary.split.begins if vocabulary.split is not None else True
    front = texts["bos"] if vocabulary.adds("bos", default=begins) else None
    back = texts["eos"] if vocabulary.adds("eos", default=False) else None
    if front is not None or back is not None:
        marks = [(text, found[name]) for name, text in (("bos", front), ("eos", back)) if text is not None]
        pattern = [*([] if front is None else [front]), "$A", *([] if back is None else [back])]
        backend.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=marks)
    template = vocabulary.file.metadata.get("tokenizer.chat_template")
    given = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        chat_template=template if isinstance(template, str) else None,
        **{name: texts[each] for name, each in given.items()},
    )
    tokenizer.name_or_path = str(vocabulary.file.path)
    return tokenizer


def _find_ends(tokens: Sequence[str]) -> set[int]:
    """Return the ids of tokens whose texts mark the end of a text."""
    found = {token: i for i, token in enumerate(tokens) if token in _ENDS}
    dropped = {token for beside, token in _NO_ENDS if all(each in found for each in beside)}
    return {i for token, i in found.items() if token not in dropped}


def _retype(token: str, type_: int, ends: bool) -> int:
    if ends:
        return _CONTROL
    return _OWN if token in _SHOWN else type_


def _byte_level(vocabulary: Vocabulary) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    split, merges = vocabulary.split, vocabulary.file.read("tokenizer.ggml.merges", list)
    assert split is not None
    pairs = [_pair(each) for each in merges]
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    try:
        model = models.BPE(vocab=ids, merges=pairs, ignore_merges=split.whole)
    except Exception as error:  # a type that `tokenizers` does not export
        raise ModelError(f"{vocabulary.file.path} is damaged: its merges do not fit its tokens: {error}.") from error
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(each), behavior="isolated") for each in split.expressions),
            pre_tokenizers.ByteLevel(add_prefix_space=vocabulary.spaced, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _pair(merge: Any) -> tuple[str, str]:
    left, _, right = str(merge)[1:].partition(" ")
    return str(merge)[:1] + left, right


def _sentencepiece(vocabulary: Vocabulary) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores: Any = vocabulary.file.read("tokenizer.ggml.scores", list)
    if len(scores) != len(vocabulary.tokens):
        raise ModelError(
            f"{vocabulary.file.path} is damaged: it has {len(scores)} scores for {len(vocabulary.tokens)} tokens."
        )
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.special("unknown")
    backend = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges(vocabulary, ids, scores),
            byte_fallback=True,
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
        )
    )
    steps: list[Any] = [normalizers.Prepend(_SPACE)] if vocabulary.spaced else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    stripped = [decoders.Strip(" ", 1, 0)] if vocabulary.spaced else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *stripped]
    )
    return backend


def _merges(vocabulary: Vocabulary, ids: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return every way to make a token from two others, highest score first."""
    found = list[tuple[float, int, int, int, str, str]]()
    for i, token in enumerate(vocabulary.tokens):
        if vocabulary.types[i] in (_CONTROL, _BYTE, _UNKNOWN):
            continue
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in ids and right in ids:
                found.append((-scores[i], i, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _add_special(backend: Any, vocabulary: Vocabulary) -> None:
    """Add the tokens that are recognised before texts are split."""
    from tokenizers import AddedToken

    name = str(vocabulary.file.metadata.get("general.name", "")).lower()
    strips = "phi-3" in name or "phi3" in name  # as in llama.cpp; their special tokens absorb the spaces after them
    kept = ("<unk>", "<s>", "<|endoftext|>")
    special, own = list[Any](), list[Any]()
    for token, type_ in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if type_ in (_UNKNOWN, _CONTROL):
            special.append(AddedToken(token, normalized=False, special=True, rstrip=strips and token not in kept))
        elif type_ == _OWN:
            own.append(AddedToken(token, normalized=False, special=False, rstrip=strips and token not in kept))
    backend.add_special_tokens(special)
    backend.add_tokens(own)
