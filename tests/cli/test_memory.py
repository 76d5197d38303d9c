"""The commands on memory files."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from memories import KEPT, drafted, saved
from speculant.api.loading import bundled_model
from speculant.cli.main import main
from speculant.cli.memory import ago
from speculant.memory.file import read_any_memory

CaptureFixture = pytest.CaptureFixture[str]
TEXT = [*range(10, 20)] * 3


class Terminal(io.StringIO):
    """Stands in for somebody who types."""

    def isatty(self) -> bool:
        return True


def info(capsys: CaptureFixture, path: Path) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["memory", "info", str(path), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("method", KEPT)
def test_every_kind(method: str, tmp_path: Path, capsys: CaptureFixture) -> None:
    """What any drafter saves can be described, merged and cleared; the drafter loads what comes of it."""
    path = saved(tmp_path / "a", method, TEXT)
    assert method in info(capsys, path)["methods"]
    saved(tmp_path / "b", method, range(30, 40))
    assert main(["memory", "merge", str(path), str(tmp_path / "b"), "-o", str(tmp_path / "c")]) == 0
    assert drafted(tmp_path / "c", method, [9, 11, 12])[0] == 13
    assert main(["memory", "clear", str(tmp_path / "c"), "--yes"]) == 0
    assert not set(drafted(tmp_path / "c", method, [9])) & set(TEXT)
    before, after = read_any_memory(path), read_any_memory(tmp_path / "c")
    assert (after.kind, after.tokenizer, after.facts) == (before.kind, before.tokenizer, before.facts)


@pytest.mark.parametrize("kind", ["trigram", "mix", "suffix"])
def test_every_built_corpus(kind: str, tmp_path: Path, capsys: CaptureFixture) -> None:
    """So can what `corpus build` writes."""
    (tmp_path / "t.jsonl").write_text('{"ids": [5, 6, 7, 8]}\n')
    argv = [str(tmp_path / "t.jsonl"), "--kind", kind, "--tokenizer", str(bundled_model())]
    for name in ("a", "b"):
        assert main(["corpus", "build", "-o", str(tmp_path / name), *argv]) == 0
    assert sum(info(capsys, tmp_path / "a")["holds"].values()) > 0
    assert main(["memory", "merge", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "a")]) == 0
    assert main(["memory", "clear", str(tmp_path / "a"), "--yes"]) == 0
    found = info(capsys, tmp_path / "a")["holds"]
    assert sum(n for name, n in found.items() if name != "places_for_contexts") == 0


def test_info(tmp_path: Path, capsys: CaptureFixture) -> None:
    """People get the figures in lines, programs in a record."""
    path = saved(tmp_path / "m", "sam", TEXT, range(40, 45))
    os.utime(path, (0, 0))
    assert main(["memory", "info", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == [
        "kind        suffix-automaton, read by sam, sam-head",
        "tokenizer   fingerprint t",
        "vocabulary  not recorded",
        "holds       2 documents, 35 tokens",
        f"bytes       {path.stat().st_size}, all checksums verified",
        "version     1 of the format",
    ]
    assert lines[-1].startswith("written     1970-01-01T00:00:00+00:00, ")
    found = info(capsys, path)
    assert found.pop("age_seconds") > 10**9
    assert found == {
        "file": str(path),
        "kind": "suffix-automaton",
        "methods": ["sam", "sam-head"],
        "tokenizer": "t",
        "vocabulary": None,
        "holds": {"documents": 2, "tokens": 35},
        "bytes": path.stat().st_size,
        "checksums": "verified",
        "version": 1,
        "written": "1970-01-01T00:00:00+00:00",
    }
    assert info(capsys, saved(tmp_path / "n", "aded"))["vocabulary"] == 60


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "less than a minute ago"), (60, "1 minute ago"), (7300, "2 hours ago"), (86400 * 40, "40 days ago")],
)
def test_ages(seconds: int, said: str) -> None:
    """An age is told in its largest whole unit."""
    assert ago(seconds) == said


@pytest.mark.parametrize("action", [["info"], ["clear", "--yes"]])
def test_files_that_cannot_be_used(action: list[str], tmp_path: Path, capsys: CaptureFixture) -> None:
    """Missing, foreign, damaged and newer files are one line each, and stay as they are."""
    path = saved(tmp_path / "m", "sam", TEXT)
    good = path.read_bytes()
    cases = [(b"hello", "not a Speculant memory"), (good[:-90], "cut short"), (good[:-64] + bytes(64), "checksum")]
    for content, said in cases:
        path.write_bytes(content)
        assert main(["memory", action[0], str(path), *action[1:]]) == 1
        assert said in capsys.readouterr().err
        assert path.read_bytes() == content
    assert main(["memory", action[0], str(tmp_path / "none"), *action[1:]]) == 1
    assert capsys.readouterr().err == f"error: there is no memory file {(tmp_path / 'none')}.\n"


def test_merge_says_what_came_of_it(tmp_path: Path, capsys: CaptureFixture) -> None:
    """What the files held and what the result holds stand side by side."""
    a, b = saved(tmp_path / "a", "sam", TEXT), saved(tmp_path / "b", "sam", range(5))
    assert main(["memory", "merge", str(a), str(b), "-o", str(tmp_path / "c")]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"from        {a}: 1 documents, 30 tokens",
        f"from        {b}: 1 documents, 5 tokens",
        f"merged      {tmp_path / 'c'}: 2 documents, 35 tokens",
        f"bytes       {(tmp_path / 'c').stat().st_size}",
    ]
    assert err == ""


def test_merges_that_are_refused(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Kinds and tokenizers do not mix, nothing counts twice by mistake, and no other file is overwritten."""
    a, b = str(saved(tmp_path / "a", "sam", TEXT)), str(saved(tmp_path / "b", "sam", range(5)))
    other_kind = str(saved(tmp_path / "k", "suffix", TEXT))
    other_tokenizer = str(saved(tmp_path / "x", "sam", TEXT, tokenizer="y"))
    (tmp_path / "link").symlink_to(a)
    out = str(tmp_path / "out")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    cases = [
        ([a, other_kind, "-o", out], 1, "Merge files of one kind"),
        ([a, other_tokenizer, "-o", out], 1, "Merge files of one tokenizer"),
        ([a, "-o", out], 2, "two or more files"),
        ([a, str(tmp_path / "link"), "-o", out], 2, "named twice"),
        ([a, b, "-o", other_kind], 2, "not one of the files to merge"),
        ([a, str(tmp_path / "none"), "-o", out], 1, "there is no memory file"),
        ([a, b, "-o", str(tmp_path / "none" / "out")], 1, "cannot write"),
    ]
    for argv, code, said in cases:
        assert main(["memory", "merge", *argv]) == code
        assert said in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_limit_that_nothing_fits(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The limit holds, and the message names the way out."""
    a, b = (str(saved(tmp_path / name, "maxgram", vocabulary=40_000)) for name in "ab")
    assert main(["memory", "merge", a, b, "-o", str(tmp_path / "c"), "--memory-limit", "1MiB"]) == 2
    assert "the memory limit is 1 MB. Raise the limit" in capsys.readouterr().err


def test_clearing_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> None:
    """On a terminal anything but yes changes nothing."""
    path = saved(tmp_path / "m", "sam", TEXT)
    good = path.read_bytes()
    for answer in ("\n", "no\n", ""):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        assert main(["memory", "clear", str(path)]) == 1
        out, err = capsys.readouterr()
        assert (out, path.read_bytes()) == ("", good)
        assert "1 documents, 30 tokens. Delete all of it?" in err
        assert err.endswith("nothing was changed.\n")
    monkeypatch.setattr(sys, "stdin", Terminal("Y\n"))
    assert main(["memory", "clear", str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"cleared     {path}, a memory of kind suffix-automaton: 1 documents")
    assert info(capsys, path)["holds"] == {"documents": 0, "tokens": 0}


def test_clearing_without_a_terminal_needs_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """A script must say --yes; what it forgets cannot be had back."""
    path = saved(tmp_path / "m", "sam", TEXT)
    good = path.read_bytes()
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["memory", "clear", str(path)]) == 2
    assert "--yes" in capsys.readouterr().err
    assert path.read_bytes() == good


def test_clearing_follows_links_and_names_what_is_left_over(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The text would otherwise stay in the file behind the link, or in what a killed save left behind."""
    path = saved(tmp_path / "m", "sam", TEXT)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / ".m.abc").write_bytes(path.read_bytes())
    (tmp_path / ".n.abc").write_text("another file's")
    assert main(["memory", "clear", str(tmp_path / "link"), "--yes"]) == 0
    err = capsys.readouterr().err
    assert (tmp_path / "link").is_symlink()
    assert info(capsys, path)["holds"]["tokens"] == 0
    assert str(tmp_path / ".m.abc") in err
    assert ".n.abc" not in err


def test_a_failed_clear_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """A full disk in the middle changes nothing."""
    path = saved(tmp_path / "m", "sam", TEXT)
    good = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    assert main(["memory", "clear", str(path), "--yes"]) == 1
    assert "No space left" in capsys.readouterr().err
    assert path.read_bytes() == good
    assert os.listdir(tmp_path) == ["m"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a small frozen base."""
    (tmp_path / "t.jsonl").write_text('{"ids": [5, 6, 7, 8]}\n')
    argv = ["--kind", "mix-base", "--tokenizer", str(bundled_model()), "--license", "MIT", "--source", "our own"]
    assert main(["corpus", "build", "-o", str(tmp_path / "base"), f"{tmp_path / 't.jsonl'}@0.5", *argv]) == 0
    return tmp_path / "base"


def test_what_takes_long_is_named(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the silence of `memory info` and `merge` on large files."""
    named = list[str]()

    @contextmanager
    def waiting(what: str) -> Iterator[None]:
        named.append(what)
        yield

    monkeypatch.setattr("speculant.cli.memory.waiting", waiting)
    assert main(["memory", "info", str(base)]) == 0
    assert main(["memory", "merge", str(base), str(base), "-o", str(tmp_path / "both")]) == 2
    assert named == [f"reading {base}", "reading the memories"]


def test_a_base_is_described(base: Path, capsys: CaptureFixture) -> None:
    """What is in it, what it may be used for and where it is from, for people and for programs."""
    found = info(capsys, base)
    assert (found["kind"], found["methods"][0], found["vocabulary"]) == ("mix-base", "mix", 4096)
    assert found["holds"]["tokens_counted"] == 4
    assert found["corpus"]["license"] == "MIT"
    assert found["corpus"]["sources"][0]["weight"] == 0.5
    assert main(["memory", "info", str(base)]) == 0
    out = capsys.readouterr().out
    for line in ("source      t.jsonl, weight 0.5: 1 document, 4 tokens", "license     MIT", "from        our own"):
        assert line in out
    assert f"{base.stat().st_size}, all checksums verified" in out
    base.write_bytes(base.read_bytes()[:-1] + b"x")
    assert main(["memory", "info", str(base)]) == 1
    assert "checksum" in capsys.readouterr().err


def test_bases_are_neither_merged_nor_cleared(base: Path, tmp_path: Path, capsys: CaptureFixture) -> None:
    """The reason is given, and nothing is written."""
    before = base.read_bytes()
    (tmp_path / "other").write_bytes(before)
    assert main(["memory", "merge", str(base), str(tmp_path / "other"), "-o", str(tmp_path / "merged")]) == 2
    assert "frozen bases cannot be merged" in capsys.readouterr().err
    assert main(["memory", "clear", str(base), "--yes"]) == 2
    assert "is a frozen base" in capsys.readouterr().err
    assert base.read_bytes() == before
    assert not (tmp_path / "merged").exists()
