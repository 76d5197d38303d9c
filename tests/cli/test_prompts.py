"""Prompts and the files they come in."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from speculant.cli.prompts import prompt_of, read_prompt_argument, read_prompts
from speculant.core.errors import FileError, UsageError


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.json", '["one\\u2028", {"prompt": "two", "id": 7}]'),
        ("p.jsonl", '"one\\u2028"\n\n{"prompt": "two"}\n'),
        ("p.jsonl", '"one\u2028"\r\n{"prompt": "two"}\r\n'),
        ("p.txt", "one\u2028\n\ntwo"),
        ("p", "\ufeffone\u2028\ntwo\n"),
    ],
)
def test_every_form_gives_the_same_prompts(name: str, text: str, tmp_path: Path) -> None:
    """A list, rows or lines; only line feeds divide rows, and a byte order mark is no text."""
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert read_prompts(str(tmp_path / name)) == ["one\u2028", "two"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.json", b'["a",\n 3', r"p\.json:2: this is not JSON"),
        ("p.json", b'{"prompt": "a"}', r"p\.json:1: a list"),
        ("p.json", b'["a", 3]', "entry 2: a string, chat"),
        ("p.json", b"[" * 100_000, "nested too deeply"),
        ("p.jsonl", b'"a"\n\n{"words": "b"}', r"p\.jsonl:3: a string, chat"),
        ("p.jsonl", b'"a"\n"b', r"p\.jsonl:2: this is not JSON"),
        ("p.jsonl", b'"a"\n""', r"p\.jsonl:2: the prompt is empty"),
        ("p.jsonl", b'"\\ud800"', r"p\.jsonl:1: .*surrogate"),
        ("p.txt", b"a\n\xff", r"p\.txt:2: this is not UTF-8"),
        ("p.txt", b" \n", "no prompts"),
    ],
)
def test_malformed_files_are_named_with_the_line(name: str, text: bytes, message: str, tmp_path: Path) -> None:
    """Whoever wrote the file finds the place."""
    (tmp_path / name).write_bytes(text)
    with pytest.raises(FileError, match=message):
        read_prompts(str(tmp_path / name))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "a"}, "a"),
        ({"text": "a"}, "a"),
        ({"prompt": "a", "text": "b"}, "a"),
        ({"query": "a", "docs": ["b", "c"]}, "b\n\nc\n\na"),
        ({"turns": ["a"]}, "a"),
        ({"turns": ["a", "b"]}, ("a", "b")),
        ([{"role": "user", "content": "a"}], [{"role": "user", "content": "a"}]),
        (
            {"messages": [{"role": "user", "content": "a", "id": 3}, {"role": "assistant", "content": "b"}]},
            [{"role": "user", "content": "a"}],
        ),
    ],
)
def test_rows_of_benchmarks_and_chats(row: Any, expected: Any) -> None:
    """What `bench --tasks` reads, and chats; a recorded answer at the end is not part of the question."""
    assert prompt_of("here", row) == expected


@pytest.mark.parametrize(
    "row",
    [
        {"turns": []}, {"turns": [3]}, {"turns": ["a", ""]}, {"messages": []}, {"messages": [{"role": "user"}]},
        {"messages": [{"role": "assistant", "content": "b"}]}, {"prompt": 3}, 3, None,
    ],
)  # fmt: skip
def test_rows_without_a_prompt(row: Any) -> None:
    """The place is named."""
    with pytest.raises(FileError, match=r"^here: "):
        prompt_of("here", row)


def test_a_chat_in_a_json_file_is_one_prompt(tmp_path: Path) -> None:
    """A list of messages is not a list of prompts."""
    (tmp_path / "p.json").write_text('[{"role": "user", "content": "a"}]')
    assert read_prompts(str(tmp_path / "p.json")) == [[{"role": "user", "content": "a"}]]


def test_a_missing_file_is_an_error_of_the_file(tmp_path: Path) -> None:
    """No traceback for a misspelled name."""
    with pytest.raises(FileError, match="No such file"):
        read_prompts(str(tmp_path / "none"))


def test_standard_input_loses_its_last_line_end_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """`echo` adds a line feed that nobody wrote; what stands before is the prompt."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("é\n\n".encode())))
    assert read_prompt_argument("-") == "é\n"


def test_bytes_that_are_no_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would fail deep inside the tokenizer."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff")))
    with pytest.raises(UsageError, match="byte 1"):
        read_prompt_argument("-")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_prompt_argument("a\udcff")
