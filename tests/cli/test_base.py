"""The commands on the user's folder of bases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from speculant.cli.main import main

CaptureFixture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small base of the bundled model."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "t.txt").write_text("Once upon a time there was a dog. The dog was big.")
    argv = ["corpus", "build", "--kind", "mix-base", "--model", "bundled", "-o", str(folder / "stories.speculant")]
    assert main([*argv, str(folder / "t.txt"), "--license", "MIT"]) == 0
    return folder / "stories.speculant"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of bases, which is not the user's."""
    monkeypatch.setenv("SPECULANT_BASES", str(tmp_path / "bases"))
    return tmp_path / "bases"


def test_add_list_remove(built: Path, folder: Path, capsys: CaptureFixture) -> None:
    """The way of a base through the folder, for people and for programs."""
    capsys.readouterr()
    assert main(["base", "list"]) == 0
    assert f"there are no bases in {folder}" in capsys.readouterr().out
    assert main(["base", "add", str(built)]) == 0
    assert main(["base", "add", str(built), "--name", "other"]) == 0
    assert f"other: {folder / 'other.speculant'}" in capsys.readouterr().out
    assert main(["base", "list"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["name", "tokenizer", "license", "ids", "tokens", "MB"]
    assert [row.split()[0] for row in rows] == ["other", "stories"]
    assert rows[0].split()[2:4] == ["MIT", "4,096"]
    assert main(["base", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(folder)
    assert [(base["name"], base["license"], base["bytes"]) for base in found["bases"]] == [
        ("other", "MIT", built.stat().st_size),
        ("stories", "MIT", built.stat().st_size),
    ]
    assert main(["base", "remove", "other"]) == 0
    assert f"removed     {folder / 'other.speculant'}" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["stories.speculant"]


def test_what_is_refused(built: Path, folder: Path, tmp_path: Path, capsys: CaptureFixture) -> None:
    """Memories of other kinds, taken names and names that nobody has."""
    (tmp_path / "t.txt").write_text("Once upon a time")
    memory = tmp_path / "memory"
    assert main(["corpus", "build", "--model", "bundled", "-o", str(memory), str(tmp_path / "t.txt")]) == 0
    assert main(["base", "add", str(memory)]) == 1
    assert "holds a memory of kind 'mix', not a base" in capsys.readouterr().err
    assert main(["base", "add", str(built)]) == 0
    assert main(["base", "add", str(built)]) == 2
    assert "a base 'stories' exists already" in capsys.readouterr().err
    assert main(["base", "add", str(built), "--force"]) == 0
    assert main(["base", "remove", "story"]) == 2
    assert "there is no base 'story'. There are: stories." in capsys.readouterr().err


def test_unreadable_files_are_warnings(built: Path, folder: Path, capsys: CaptureFixture) -> None:
    """The others are listed."""
    assert main(["base", "add", str(built)]) == 0
    (folder / "half.speculant").write_bytes(built.read_bytes()[:-10])
    capsys.readouterr()
    assert main(["base", "list"]) == 0
    out, err = capsys.readouterr()
    assert "stories" in out
    assert err.startswith("warning: ")
    assert "half.speculant is cut short" in err
