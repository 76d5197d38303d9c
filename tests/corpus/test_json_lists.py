"""JSON lists that need not fit into memory."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from speculant.corpus import json_lists
from speculant.corpus.json_lists import read_entries


def entries(text: str) -> tuple[list[Any], list[str]]:
    rejected: list[str] = []
    found = list(read_entries(io.BytesIO(text.encode()), lambda: None, rejected.append))
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    return [value for _, value in found], rejected


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_lists_of_any_layout(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are the same wherever the file is cut."""
    monkeypatch.setattr(json_lists, "CHUNK", chunk)
    rows = [{"text": 'a, ] } \\ " ä'}, {"ids": [1, 22]}, {"messages": [{"content": "b"}]}]
    for indent in (None, 2):
        assert entries(json.dumps(rows, indent=indent, ensure_ascii=False)) == (rows, [])
    assert entries("\ufeff [ ] ") == ([], [])
    assert entries('{"text": "a"}') == ([{"text": "a"}], [])


def test_the_rest_of_a_damaged_list_is_left_out() -> None:
    """What was whole is kept, and the message says where it ends."""
    found, rejected = entries('[{"a": 1}, {"b": 2}, {"c": ')
    assert found == [{"a": 1}, {"b": 2}]
    assert rejected[0].startswith("entry 3 is not JSON")


def test_entries_that_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry larger than memory ends the reading, not the process."""
    monkeypatch.setattr(json_lists, "CHUNK", 4)
    monkeypatch.setattr(json_lists, "LONGEST", 20)
    found, rejected = entries('[{"a": 1}, "' + "b" * 100 + '"]')
    assert found == [{"a": 1}]
    assert "longer than" in rejected[0]
