"""`speculant rag`: an answer from documents, and what is wrong is said before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from speculant.cli.main import main

DOCUMENTS = [f"{name} had a red kite. {name} liked to fly it in the park." for name in ("Tom", "Lily", "Ben")]


@pytest.fixture
def documents(tmp_path: Path) -> str:
    """Return a file of documents."""
    path = tmp_path / "documents.jsonl"
    path.write_text("\n".join(map(json.dumps, DOCUMENTS)), encoding="utf-8")
    return str(path)


def test_an_answer_and_its_comparison(documents: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the way from a file of documents to an answer, and that guesses change none."""
    pytest.importorskip("bm25s")
    asked = ["rag", "Once upon a time Lily", "--documents", documents, "--max-new-tokens", "24", "--compare"]
    assert main(asked) == 0
    out, err = capsys.readouterr()
    assert out.strip()
    assert "the same answer" in err
    assert "guesses right" in err
    assert main([*asked[:-1], "--json", "-", "--sequential"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["text"].strip() == out.strip()
    assert record["stats"]["searches"] == len(record["documents"]) == 6


@pytest.mark.parametrize(
    ("more", "said", "code"),
    [
        (["--retriever", "dense"], "--encoder", 2),
        (["--encoder", "any"], "--encoder", 2),
        (["--compare", "--sequential"], "--sequential", 2),
        (["--template", "{question}"], "document", 2),
        (["--documents", "none.txt"], "cannot be read", 1),
        (["--retriever", "tree"], "bm25", 2),
    ],
)
def test_what_is_wrong_is_said_before_long_work(
    documents: str, more: list[str], said: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards messages: the option, and what to do."""
    assert main(["rag", "Why?", "--documents", documents, *more]) == code
    assert said in capsys.readouterr().err
