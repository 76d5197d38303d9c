"""The tokenizer and chat template of a GGUF file, with the transformers tokenizer methods that are used here.

llama.cpp splits text and returns the bytes of tokens; texts are joined from bytes, so a character made of several
tokens is complete with the last of them. The chat template is rendered by transformers' own function.
"""

from __future__ import annotations

import ctypes
import functools
import json
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from speculant.core.errors import TokenizerError, UsageError
from speculant.engines.llamacpp.model import LlamaModel

_PADDING = re.compile(r"\[PAD\d+\]")  # converters pad the vocabulary to the embedding size with these
_LONGEST = 256  # initial buffer size for a piece
_SPECIAL = b"\xff"  # prefix of tokens that are not text to llguidance


class GGUFTokenizer:
    """Converts text to token ids and back.

    Attributes:
        bos_token, eos_token: the texts of the tokens that begin and end a text, or None.
        bos_token_id, eos_token_id, pad_token_id: their ids, or None.
        stop_ids: ids of the end-of-text and end-of-turn tokens.
        chat_template: Jinja template, or None.
    """

    def __init__(self, model: LlamaModel) -> None:
        """Take the vocabulary of a model; the tokenizer keeps the model loaded."""
        api = model.library.api
        self._api, self._model, self._vocab = api, model, model.vocab
        count = model.vocabulary
        self._attributes = [int(api.llama_vocab_get_attr(self._vocab, i)) for i in range(count)]
        self._hidden = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_UNKNOWN
        self.stop_ids = [i for i in range(count) if api.llama_vocab_is_eog(self._vocab, i)]
        self.bos_token_id, self.eos_token_id, self.pad_token_id = (
            None if found < 0 else int(found)
            for found in (
                api.llama_vocab_bos(self._vocab),
                api.llama_vocab_eos(self._vocab),
                api.llama_vocab_pad(self._vocab),
            )
        )
        self.bos_token, self.eos_token = (
            None if i is None else self._text(i) for i in (self.bos_token_id, self.eos_token_id)
        )
        template = api.llama_model_chat_template(model.pointer, None)
        self.chat_template: str | None = template.decode("utf-8", "replace") if template else None
        self._spaced = api.llama_vocab_type(self._vocab) == api.LLAMA_VOCAB_TYPE_SPM and (
            model.header("tokenizer.ggml.add_space_prefix") != "false"
        )
        self._pieces: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._attributes)

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """Return {"input_ids": the ids of a text}; special tokens in it are recognised, as in transformers."""
        return {"input_ids": self.encode(text, add_special_tokens=add_special_tokens)}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text, with `add_special_tokens` including the model's begin and end tokens."""
        if not isinstance(text, str):
            raise UsageError(f"this tokenizer takes one text at a time, not {type(text).__name__}.")
        data, size = text.encode("utf-8", "replace"), 16 + len(text)
        while True:
            found = (ctypes.c_int32 * size)()
            count = int(self._api.llama_tokenize(self._vocab, data, len(data), found, size, add_special_tokens, True))
            if count >= 0:
                return list(found[:count])
            size = -count

    def decode(
        self, ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> str:
        """Return the text of ids.

        Args:
            ids: a sequence, a tensor [n], or one id.
            skip_special_tokens: whether to omit control tokens.
            clean_up_tokenization_spaces: must not be True; texts match their tokens.
        """
        if clean_up_tokenization_spaces:
            raise UsageError(
                "clean_up_tokenization_spaces is not supported by the tokenizer of a GGUF file; leave it out."
            )
        listed = ids.tolist() if hasattr(ids, "tolist") else ids
        listed = [listed] if isinstance(listed, int) else list(listed)
        kept = [i for i in listed if not (skip_special_tokens and self._attributes[i] & self._hidden)]
        data = b"".join(self._piece(i) for i in kept)
        if self._spaced and data.startswith(b" "):
            data = data[1:]  # the space prepended when the text was split
        return data.decode("utf-8", "replace")

    def batch_decode(self, sequences: Sequence[Any], skip_special_tokens: bool = False) -> list[str]:
        """Return the text of each sequence of ids."""
        return [self.decode(ids, skip_special_tokens=skip_special_tokens) for ids in sequences]

    def get_vocab(self) -> dict[str, int]:
        """Return the id of every token by its text in the vocabulary's own alphabet, without padding."""
        unused = self._api.LLAMA_TOKEN_ATTR_UNUSED
        texts = ((i, self._text(i)) for i in range(len(self)))
        return {text: i for i, text in texts if not (self._attributes[i] & unused and _PADDING.fullmatch(text))}

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens' texts in the vocabulary's own alphabet."""
        return [self._text(i) for i in ids]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens written in the vocabulary's own alphabet."""
        return self.decode([self._ids[token] for token in tokens])

    def _convert_id_to_token(self, i: int) -> str:
        """Return a token's text in the vocabulary's own alphabet; for transformers' stop strings."""
        return self._text(i)

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], *, tokenize: bool = True, add_generation_prompt: bool = False
    ) -> Any:
        """Render messages with the model's chat template, to ids or, with tokenize=False, to text.

        Raises:
            TokenizerError: there is no template, or it rejects the messages.
        """
        if self.chat_template is None:
            raise TokenizerError("this GGUF file has no chat template; pass the prompt as text.")
        from transformers.utils.chat_template_utils import render_jinja_template

        special = {"bos_token": self.bos_token or "", "eos_token": self.eos_token or ""}
        try:
            rendered = render_jinja_template(
                [list(messages)],
                chat_template=self.chat_template,
                add_generation_prompt=add_generation_prompt,
                **special,
            )
        except Exception as error:  # a template may raise anything for messages it rejects
            raise TokenizerError(
                f"the chat template of this GGUF file does not accept these messages: {error}"
            ) from error
        while not isinstance(rendered, str):  # some releases return it with answer spans, or one per conversation
            rendered = rendered[0]
        return self.encode(rendered, add_special_tokens=False) if tokenize else rendered

    @property
    def backend_tokenizer(self) -> SimpleNamespace:
        """The byte encoding, as transformers' stop strings look it up: byte tokens, or characters."""
        bpe = self._api.llama_vocab_type(self._vocab) == self._api.LLAMA_VOCAB_TYPE_BPE
        return SimpleNamespace(decoder=_Decoder("ByteLevel" if bpe else "ByteFallback"))

    def for_grammars(self, *, vocabulary: int, ends: Sequence[int]) -> Any:
        """Return an `llguidance.LLTokenizer`; takes about a second for a large vocabulary.

        `llguidance.llamacpp` does the same with functions that llama.cpp has deprecated.

        Args:
            vocabulary: vocabulary size V of the model.
            ends: ids of the tokens that end a text.
        """
        from llguidance import LLTokenizer

        pieces = [_SPECIAL + piece if special else piece for piece, special in self._marked_pieces()]
        pieces += [b""] * (vocabulary - len(pieces))
        tokenize = ctypes.cast(self._api.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value
        return LLTokenizer.from_llamacpp(
            tokens=pieces, vocab_ptr=self._vocab, tokenize_fptr=tokenize, eos_token=list(ends)
        )

    def _marked_pieces(self) -> list[tuple[bytes, bool]]:
        """Return the bytes of each token, and whether it is special, in the file or as marked by the user."""
        control, own = self._api.LLAMA_TOKEN_ATTR_CONTROL, self._api.LLAMA_TOKEN_ATTR_USER_DEFINED
        found = list[tuple[bytes, bool]]()
        for i, kind in enumerate(self._attributes):
            piece = self._piece(i)
            marked = bool(kind & own) and piece.startswith(b"<") and piece.endswith(b">")
            found.append((piece, bool(kind & control) or marked))
        return found

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return self.get_vocab()

    def _text(self, i: int) -> str:
        found: bytes = self._api.llama_vocab_get_text(self._vocab, i)
        return found.decode("utf-8", "replace")

    def _piece(self, i: int) -> bytes:
        """Return the bytes of a token, including the texts of control tokens."""
        known = self._pieces.get(i)
        if known is not None:
            return known
        size = _LONGEST
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = int(self._api.llama_token_to_piece(self._vocab, i, buffer, size, 0, True))
            if count >= 0:
                self._pieces[i] = buffer.raw[:count]
                return self._pieces[i]
            size = -count


class _Decoder:
    """The byte encoding, in the form in which a decoder of `tokenizers` describes itself."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getstate__(self) -> bytes:
        return json.dumps({"type": self._kind}).encode()


def open_tokenizer(model: LlamaModel) -> GGUFTokenizer | None:
    """Return the tokenizer of a model; None if its file has none."""
    api = model.library.api
    return None if api.llama_vocab_type(model.vocab) == api.LLAMA_VOCAB_TYPE_NONE else GGUFTokenizer(model)
