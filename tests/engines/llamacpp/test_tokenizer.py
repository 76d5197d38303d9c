"""The tokenizer of a GGUF file does what the one of transformers does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ggufs import bundled_gguf, needs_llamacpp, tiny_gguf
from speculant.api.detokenizer import Detokenizer
from speculant.api.loading import load_tokenizer
from speculant.core.errors import TokenizerError, UnsupportedError, UsageError
from speculant.engines.llamacpp.gguf_tokenizer import describe_tokenizer
from speculant.memory.fingerprint import tokenizer_fingerprint

pytestmark = pytest.mark.peers

TEXTS = [
    "Once upon a  time\n\nthere was a caf\u00e9, \u6f22\u5b57 and \U0001f600.",
    " a leading space",
    "</s>two <s>texts",
    "",
    "tab\tand \u2581 itself",
]


@pytest.fixture(scope="module")
def both() -> tuple[Any, Any]:
    """Return the tokenizer of the GGUF file and that of transformers."""
    needs_llamacpp()
    from speculant.engines.llamacpp.request_model import load_gguf

    return load_gguf(bundled_gguf())[1], load_tokenizer()


@pytest.mark.parametrize("text", TEXTS)
def test_texts_and_ids_are_the_same(text: str, both: tuple[Any, Any]) -> None:
    """Splits and texts agree, with special tokens and without, at once and piece by piece."""
    ours, theirs = both
    for special in (True, False):
        assert (
            ours(text, add_special_tokens=special)["input_ids"] == theirs(text, add_special_tokens=special)["input_ids"]
        )
    ids = theirs(text)["input_ids"]
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    pieces = Detokenizer(ours)
    assert "".join([pieces.push(token) for token in ids] + [pieces.flush()]) == ours.decode(
        ids, skip_special_tokens=True
    )


def test_longer_texts(both: tuple[Any, Any]) -> None:
    """Thousands of tokens of stories are split the same."""
    if "SPECULANT_DATA" not in os.environ:
        pytest.skip("SPECULANT_DATA is not set")
    ours, theirs = both
    text = next((Path(os.environ["SPECULANT_DATA"]) / "text/tinystories").glob("*.txt")).read_text()[:20000]
    theirs.model_max_length = 1 << 30
    assert ours.encode(text) == theirs(text)["input_ids"]


def test_the_vocabulary_is_the_same(both: tuple[Any, Any]) -> None:
    """Memories and draft models of the one fit the other."""
    ours, theirs = both
    assert ours.get_vocab() == theirs.get_vocab()
    assert tokenizer_fingerprint(ours, 4096) == tokenizer_fingerprint(theirs, 4096)
    assert (ours.bos_token, ours.eos_token, ours.stop_ids) == (
        theirs.bos_token,
        theirs.eos_token,
        [theirs.eos_token_id],
    )
    assert ours.convert_tokens_to_string(ours.convert_ids_to_tokens([5 + 60, 300])) == ours.decode([65, 300])


def test_chat_templates(both: tuple[Any, Any]) -> None:
    """A template is rendered as transformers renders it; one that fails, or none, is named."""
    ours, theirs = both
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    messages = [{"role": "user", "content": " Hello "}]
    kept = ours.chat_template
    try:
        ours.chat_template = template
        found = ours.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        expected = theirs.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        assert found == expected == "<s>[user] Hello\n[assistant]"
        ours.chat_template = "{{ raise_exception('no roles') }}"
        with pytest.raises(TokenizerError, match="no roles"):
            ours.apply_chat_template(messages)
        ours.chat_template = None
        with pytest.raises(TokenizerError, match="no chat template"):
            ours.apply_chat_template(messages)
    finally:
        ours.chat_template = kept


def test_what_it_does_not_do_is_refused(both: tuple[Any, Any]) -> None:
    """Lists of texts and clean-ups are not ignored; a file without a tokenizer has none."""
    from speculant.engines.llamacpp.request_model import load_gguf

    ours, _ = both
    with pytest.raises(UsageError, match="one text at a time"):
        ours(["a"])
    with pytest.raises(UsageError, match="leave it out"):
        ours.decode([1], clean_up_tokenization_spaces=True)
    assert load_gguf(tiny_gguf())[1] is None


def test_other_tokenizers_are_not_written() -> None:
    """A file whose splits would differ is never made."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(UnsupportedError, match="Llama 2 kind"):
        describe_tokenizer(None, other, None)
