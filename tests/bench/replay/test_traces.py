"""Reading recorded answers in all their forms."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from speculant.api.loading import load_tokenizer
from speculant.bench.replay.traces import NO_CATEGORY, Recording, read_recordings
from speculant.core.errors import FileError, UsageError

DATA = os.environ.get("SPECULANT_DATA")
GOOD = {"prompt_ids": [1, 2], "output_ids": [3], "category": "c", "recorded": {"eagle": [2, 1]}}


def write(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines))
    return path


def read(path: Path, tokenizer: Any = None) -> tuple[list[Recording], list[str]]:
    rejected: list[str] = []
    return list(read_recordings(path, tokenizer=tokenizer, reject=rejected.append)), rejected


def test_rows_of_ids(tmp_path: Path) -> None:
    """Ids are taken as they are, with category and recorded acceptance where a row has them."""
    (one, two), rejected = read(write(tmp_path / "t.jsonl", GOOD, b"", {"prompt_ids": [1], "output_ids": [2]}))
    assert (one.prompt.tolist(), one.output.tolist(), one.category) == ([1, 2], [3], "c")
    assert {name: each.tolist() for name, each in one.recorded.items()} == {"eagle": [2, 1]}
    assert (two.category, dict(two.recorded), rejected) == (NO_CATEGORY, {}, [])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"3", "a row is"),
        ({"text": "a"}, "a row is"),
        ({"prompt_ids": [1], "output_ids": []}, "the output is empty"),
        ({"prompt_ids": [], "output_ids": [1]}, "the prompt is empty"),
        ({"prompt_ids": [1], "output_ids": "12"}, "output_ids must be a list of whole numbers"),
        ({"prompt_ids": [1.5], "output_ids": [1]}, "prompt_ids must be a list of whole numbers"),
        ({"prompt_ids": [-1], "output_ids": [1]}, "prompt_ids must be a list of whole numbers"),
        ({"prompt_ids": [2**31], "output_ids": [1]}, "prompt_ids must be a list of whole numbers"),
        ({"prompt_ids": [[1]], "output_ids": [1]}, "prompt_ids must be a list of whole numbers"),
        ({"prompt_ids": [[1], [1, 2]], "output_ids": [1]}, "prompt_ids must be a list of whole numbers"),
        (GOOD | {"recorded": [1]}, "recorded must hold"),
        (GOOD | {"recorded": {"eagle": [0]}}, "recorded eagle must be"),
        ({"messages": [{"role": "user", "content": "a"}]}, "no answer"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "no answer"),
        ({"messages": ["a"]}, "a message is"),
        ({"prompt": "a", "output": 3}, "a row is"),
    ],
)
def test_a_bad_row_is_reported_and_left_out(tmp_path: Path, row: Any, reason: str) -> None:
    """The message names file, line and reason, and the rows around it are read."""
    path = write(tmp_path / "t.jsonl", GOOD, row, GOOD)
    found, rejected = read(path, tokenizer=object())
    assert len(found) == 2
    assert len(rejected) == 1
    assert rejected[0].startswith(f"{path}:2: ")
    assert reason in rejected[0]
    with pytest.raises(FileError, match=r"t\.jsonl:2: "):
        list(read_recordings(path))


def test_json_lists(tmp_path: Path) -> None:
    """A .json file is one list; a bad entry is reported by its number."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps([GOOD, 3, GOOD]))
    found, rejected = read(path)
    assert (len(found), [message.split(": ")[1] for message in rejected]) == (2, ["entry 2"])
    for text in ("{}", "{", ""):
        path.write_text(text)
        with pytest.raises(FileError, match=r"\.jsonl if every line is a row"):
            read(path)


def test_a_missing_file(tmp_path: Path) -> None:
    """The message names it."""
    with pytest.raises(FileError, match=r"cannot read .*t\.jsonl: No such file"):
        read(tmp_path / "t.jsonl")


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    """Text without a tokenizer is no bad row but a forgotten option."""
    path = write(tmp_path / "t.jsonl", GOOD, {"prompt": "a", "output": "b"})
    with pytest.raises(UsageError, match=r"t\.jsonl:2: .*--tokenizer"):
        read(path)


def test_chat_logs_and_prompts(tmp_path: Path) -> None:
    """The last answer is the output; what comes after it does not count."""
    tokenizer = load_tokenizer()
    turns = [{"role": "user", "content": "Tell me."}, {"role": "assistant", "content": "Once upon a time"}]
    after = {"role": "user", "content": "Thanks."}
    rows = [{"messages": [*turns, after], "category": "chat"}, {"prompt": "Tom and", "output": " his dog"}]
    (chat, plain), rejected = read(write(tmp_path / "t.jsonl", *rows), tokenizer)
    assert rejected == []
    assert tokenizer.decode(chat.output).strip() == "Once upon a time"
    assert "Tell me." in tokenizer.decode(chat.prompt, skip_special_tokens=True)
    assert chat.category == "chat"
    assert tokenizer.decode([*plain.prompt, *plain.output], skip_special_tokens=True) == "Tom and his dog"


@pytest.mark.skipif(not DATA, reason="SPECULANT_DATA names no folder with traces")
def test_every_trace_is_read() -> None:
    """The recorded traces hold no bad row."""
    for path in sorted(Path(DATA or "").glob("traces/*.jsonl")):
        found, rejected = read(path)
        assert (len(found), rejected) == (len(path.read_bytes().splitlines()), [])
