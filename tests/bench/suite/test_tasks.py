"""Items of a benchmark, fitted to the model's positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scripted import recording
from speculant.api.loading import load_tokenizer
from speculant.bench.suite.suites import TaskConversation
from speculant.bench.suite.tasks import make_recorded_task, prompt_task
from speculant.core.errors import TokenizerError, UsageError


def test_recordings_are_cut_to_the_positions() -> None:
    """Outputs that were cut or left out are counted, and an item has a single request."""
    task = make_recorded_task("t", [recording([4] * 5), recording([4] * 9), recording([4], prompt=[1] * 8)], 8)
    requests = [item.request([]) for item in task.items]
    assert [request.max_new_tokens for request in requests if request is not None] == [5, 7]
    assert task.items[0].request([[4]]) is None
    assert task.notes[0] == "t: 1 of 2 outputs were cut at the model's 8 positions."
    assert task.notes[1].startswith("t: 1 requests were left out")
    assert make_recorded_task("t", [recording([4] * 9)], None).notes == ()
    with pytest.raises(UsageError, match="every prompt of t"):
        make_recorded_task("t", [recording([4])], 1)


def test_a_conversation_without_a_chat_template() -> None:
    """Turns follow the answers as text, and a turn that does not fit ends the conversation."""
    tokenizer: Any = load_tokenizer()
    tokenizer.chat_template = None
    conversation = TaskConversation(("Tell me a story.", "Another."), "x")
    item = prompt_task("t", [conversation], tokenizer, positions=64, max_new_tokens=20).items[0]
    first = item.request([])
    assert first is not None
    assert (tokenizer.decode(first.prompt, skip_special_tokens=True), first.max_new_tokens, first.forced) == (
        conversation.turns[0],
        20,
        None,
    )
    answer = tokenizer("Once.", add_special_tokens=False)["input_ids"]
    second = item.request([answer])
    assert second is not None
    words = tokenizer.decode(second.prompt, skip_special_tokens=True).split()
    assert words == ["Tell", "me", "a", "story.", "Once.", "Another."]
    assert second.max_new_tokens == 20
    assert item.request([answer * 40]) is None
    assert item.request([answer, answer]) is None


def test_a_conversation_in_a_chat_template() -> None:
    """Turns and answers go through the template, ready for the next answer."""
    tokenizer: Any = load_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    item = prompt_task(
        "t", [TaskConversation(("A b.", "C d."), "x")], tokenizer, positions=None, max_new_tokens=9
    ).items[0]
    request = item.request([tokenizer("Once.", add_special_tokens=False)["input_ids"]])
    assert request is not None
    text = tokenizer.decode(request.prompt.astype(np.int64), skip_special_tokens=True)
    assert text == "<user>A b.<assistant>Once.<user>C d.<assistant>"


def test_what_cannot_be_asked() -> None:
    """No tokenizer, or no prompt that fits; some that do not are counted."""
    short, long = TaskConversation(("A.",), "x"), TaskConversation(("A. " * 90,), "x")
    with pytest.raises(TokenizerError, match="no tokenizer"):
        prompt_task("t", [short], None, positions=9, max_new_tokens=9)
    tokenizer = load_tokenizer()
    with pytest.raises(UsageError, match="no prompt of t"):
        prompt_task("t", [long], tokenizer, positions=20, max_new_tokens=9)
    assert (
        prompt_task("t", [short, long], tokenizer, positions=20, max_new_tokens=9)
        .notes[0]
        .startswith("t: 1 of 2 prompts")
    )
