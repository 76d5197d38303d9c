"""Logs of text to token ids."""

from __future__ import annotations

from typing import Any

import pytest

from speculant.api.loading import load_tokenizer
from speculant.bench.replay.texts import encode_answer, encode_chat, message_text


@pytest.fixture
def tokenizer() -> Any:
    """Return the bundled tokenizer, the test's own to change."""
    return load_tokenizer()


def test_prompt_and_answer_join_to_the_text(tokenizer: Any) -> None:
    """Nothing is lost or doubled at the boundary, and the answer carries no special tokens."""
    ids, answer = encode_answer(tokenizer, "Once upon a", " time there was")
    assert ids == tokenizer("Once upon a")["input_ids"]
    assert tokenizer.decode([*ids, *answer], skip_special_tokens=True) == "Once upon a time there was"
    assert not {*answer} & {*tokenizer.all_special_ids}


def test_a_boundary_within_a_word_is_kept(tokenizer: Any) -> None:
    """Where both would be one token, the prompt stays what it was."""
    ids, answer = encode_answer(tokenizer, "Once upon a ti", "me")
    assert ids == tokenizer("Once upon a ti")["input_ids"]
    assert tokenizer.decode(answer).strip() == "me"


def test_the_template_is_used(tokenizer: Any) -> None:
    """The prompt is what the chat command would send."""
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    ids, answer = encode_chat(tokenizer, [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "Hello")
    assert tokenizer.decode(ids, skip_special_tokens=True).strip() == "[user]Hi[assistant]"
    assert tokenizer.decode(answer).strip() == "Hello"


def test_without_a_template_the_texts_are_joined(tokenizer: Any) -> None:
    """A base model's log can be replayed too."""
    tokenizer.chat_template = None
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    ids, _ = encode_chat(tokenizer, messages, "No")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Hi\n\nYes\n\n"


def test_a_refusing_template_is_a_bad_row(tokenizer: Any) -> None:
    """Templates that want roles in turn must not end the reading."""
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match="roles must alternate"):
        encode_chat(tokenizer, [{"role": "user", "content": "Hi"}], "No")


@pytest.mark.parametrize("content", [None, 3, [{"type": "image_url"}], ["a"]])
def test_what_is_not_text(content: Any) -> None:
    """Pictures and tool calls cannot be replayed."""
    with pytest.raises(ValueError, match="not text"):
        message_text({"role": "assistant", "content": content})
