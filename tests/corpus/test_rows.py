"""Rows of a corpus."""

from __future__ import annotations

from typing import Any

import pytest

from speculant.corpus import rows
from speculant.corpus.rows import Document, batches, parse_chat, parse_row


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"text": "a"}, ["a"]),
        ({"messages": [{"role": "user", "content": "a"}, {"content": None}, {"content": "b"}]}, ["a", "b"]),
        ({"ids": [1, 2]}, [[1, 2]]),
        ({"prompt_ids": [1], "output_ids": [2, 3]}, [[1, 2, 3]]),
        ({"output_ids": [2, 3]}, [[2, 3]]),
        ({"prompt": "a", "output": "b"}, ["a", "b"]),
        ({"prompt": "", "output": "b"}, ["b"]),
        ({"question": "a", "answer": "b"}, ["a", "b"]),
        ({"instruction": "a", "input": "b", "output": "c"}, ["a\n\nb", "c"]),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, ["a", "b"]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}]}, ["ab"]),
        ({"content": "a", "path": "b"}, ["a"]),
    ],
)
def test_rows(row: Any, expected: list[Document]) -> None:
    """Every form that recorded traces and data sets come in."""
    assert parse_row(row, 10) == expected


@pytest.mark.parametrize(
    "row",
    [
        {"text": 3},
        {"messages": []},
        {"messages": ["a"]},
        {"ids": [1, 10]},
        {"ids": [-1]},
        {"ids": [1.0]},
        {"ids": [True]},
        {"prompt_ids": 3},
        {"prompt_ids": [1], "output_ids": 3},
        {"text": "\ud800"},
        {"prompt": "a"},
        {"prompt": "a", "output": 3},
        {"conversations": [{"from": "human"}]},
        ["a"],
        None,
    ],
)
def test_rows_that_hold_nothing_usable(row: Any) -> None:
    """Neither wrong types nor foreign ids get into a table."""
    with pytest.raises(ValueError, match=r"row is|token ids|surrogate"):
        parse_row(row, 10)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, [("user", "a")]),
        ({"prompt": "a", "output": "b"}, [("user", "a"), ("assistant", "b")]),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            [("user", "a"), ("assistant", "b")],
        ),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]}, None),
        ({"messages": [{"content": "a"}]}, None),
        ({"text": "a", "prompt": "b", "output": "c"}, None),
        ({"prompt_ids": [1], "prompt": "b", "output": "c"}, None),
        ({"prompt": "", "output": "b"}, None),
        (["a"], None),
    ],
)
def test_conversations(row: Any, expected: list[tuple[str, str]] | None) -> None:
    """Only rows whose every message has a role and a text go through a chat template."""
    chat = parse_chat(row)
    assert (chat and [(message["role"], message["content"]) for message in chat]) == expected


def test_batches_hold_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents are tokenised many at a time, in order."""
    monkeypatch.setattr(rows, "BATCH", 4)
    assert list(batches(["ab", "c", "def", "", "g"], len)) == [["ab", "c", "def"], ["", "g"]]
