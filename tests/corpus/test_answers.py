"""The file that answers are appended to."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculant.core.errors import UsageError
from speculant.corpus.answers import AnswerFile
from speculant.corpus.documents import read_rows


def test_a_file_goes_on_where_it_ended(tmp_path: Path) -> None:
    """Guards resumption: rows and the next place are found again, and a row that was cut off is removed."""
    path = tmp_path / "a.jsonl"
    file = AnswerFile(path, tokenizer="t")
    file.append([1, 2], [3, 4, 5], place=1)
    file.append([1], [6], place=0)
    file.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"prompt_ids":[1')
    file = AnswerFile(path, tokenizer="t")
    assert (file.rows, file.tokens, file.place) == (2, 4, 2)
    assert path.read_bytes() == whole
    file.append([7], [8], place=2)
    file.close()
    rows = list(read_rows(path, vocabulary=10, advance=lambda _: None, reject=pytest.fail))
    assert [row.documents for row in rows] == [[[1, 2, 3, 4, 5]], [[1, 6]], [[7, 8]]]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """A user's file and answers of another tokenizer are refused, unchanged; an empty file is not left behind."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "output": "b"}\n')
    with pytest.raises(UsageError, match="holds no answers of this command"):
        AnswerFile(path, tokenizer="t")
    assert path.read_text() == '{"prompt": "a", "output": "b"}\n'
    path.unlink()
    file = AnswerFile(path, tokenizer="t")
    file.append([1], [2], place=0)
    file.close()
    with pytest.raises(UsageError, match="another tokenizer"):
        AnswerFile(path, tokenizer="u")
    AnswerFile(tmp_path / "b.jsonl", tokenizer="t").close()
    assert not (tmp_path / "b.jsonl").exists()
