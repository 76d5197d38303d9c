"""The command that builds frozen bases."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentencepiece import SentencePieceTrainer

from speculant.api.loading import load_tokenizer
from speculant.cli.main import main
from speculant.corpus.work_folder import WorkFolder
from speculant.drafters.mix.base import read_base
from speculant.drafters.mix.base_builder import BaseBuilder
from speculant.memory.file import read_any_memory
from speculant.memory.fingerprint import tokenizer_fingerprint

CaptureFixture = pytest.CaptureFixture[str]
BUILD = ("corpus", "build", "--kind", "mix-base", "--model", "bundled")
TEXTS = [
    "Once upon a time there was a little dog who lived in a big red house near the river with his friends.",
    "The cat and the bird went to the park, and they played with a ball until the sun went down.",
    "Tom and Lily like to draw. They draw a sun, a tree and a house, and their mom puts it on the wall.",
    "One day a boy named Tim found a shiny stone in the garden, and he gave it to his best friend Sam.",
]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Return a file of four texts, each a row."""
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store a state after every row."""
    monkeypatch.setattr("speculant.corpus.base.INTERVAL", 0)
    monkeypatch.setattr("speculant.corpus.rows.BATCH", 1)


def interrupt(monkeypatch: pytest.MonkeyPatch, error: BaseException, after: int) -> None:
    """Have the builder fail once it has taken some documents."""
    taken, add = [0], BaseBuilder.add

    def failing(self: BaseBuilder, ids: Any, *, weight: float = 1.0) -> None:
        taken[0] += 1
        if taken[0] > after:
            raise error
        add(self, ids, weight=weight)

    monkeypatch.setattr(BaseBuilder, "add", failing)


def facts(path: Path) -> dict[str, Any]:
    return dict(read_any_memory(path).facts)


def contents(path: Path) -> tuple[bytes, list[Any]]:
    memory = read_any_memory(path)
    return memory.arrays["lines"].tobytes(), memory.facts["sources"]


def test_a_base_of_a_tokenizer_file(tmp_path: Path, texts: Path) -> None:
    """A single file of SentencePiece is enough, without a model; conversations have no template then."""
    with (tmp_path / "tokenizer.model").open("wb") as file:
        SentencePieceTrainer.Train(sentence_iterator=iter(TEXTS * 9), model_writer=file, vocab_size=80, minloglevel=2)
    chat = {"messages": [{"role": "user", "content": TEXTS[0]}, {"role": "assistant", "content": TEXTS[1]}]}
    with texts.open("a") as file:
        file.write(json.dumps(chat) + "\n")
    out = tmp_path / "base"
    argv = ["corpus", "build", "--kind", "mix-base", "--tokenizer", str(tmp_path / "tokenizer.model"), "-o", str(out)]
    assert main([*argv, str(texts)]) == 0
    assert facts(out)["vocabulary"] == 80
    assert facts(out)["sources"][0]["documents"] == len(TEXTS) + 2


def test_a_base_is_built(tmp_path: Path, texts: Path, capsys: CaptureFixture) -> None:
    """From texts to a file that the drafter opens, with what its builder said of it; nothing else is left behind."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.txt").write_text(TEXTS[0])
    out = tmp_path / "base"
    argv = [*BUILD, "-o", str(out), f"{texts}@2", str(tmp_path / "more"), "--license", "MIT", "--source", "our own"]
    assert main(argv) == 0
    printed, err = capsys.readouterr()
    assert err == ""
    assert [line.split()[0] for line in printed.splitlines()] == [
        "tokens", "source", "source", "entries", "bytes", "seconds",
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "more", "texts.jsonl"]
    tokenizer = load_tokenizer()
    base = read_base(out, vocabulary=4096, tokenizer=tokenizer_fingerprint(tokenizer, 4096))
    assert np.count_nonzero(base.lines) == base.facts["entries"] > 0
    first, second = base.facts["sources"]
    tokens = sum(map(len, tokenizer(TEXTS)["input_ids"]))
    assert first == {"name": "texts.jsonl", "weight": 2, "documents": 4, "tokens": tokens, "excluded": 0}
    assert (second["name"], second["documents"]) == ("more", 1)
    assert base.facts["tokens"] == tokens + second["tokens"]
    assert (base.facts["license"], base.facts["source"]) == ("MIT", "our own")
    assert {"date", "version"} == set(base.facts["made"])


def test_the_budget_is_kept(tmp_path: Path) -> None:
    """The whole file, header included, takes no more bytes than asked for."""
    generator = np.random.default_rng(1)
    rows = [{"ids": generator.integers(0, 4096, 4000).tolist() * 2} for _ in range(6)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "base"
    assert main([*BUILD, "-o", str(out), str(tmp_path / "t.jsonl"), "--budget", "64KB"]) == 0
    assert 50_000 < out.stat().st_size <= 64_000
    assert main([*BUILD, "-o", str(out), str(tmp_path / "t.jsonl"), "--budget", "63KB"]) == 2


def test_a_network_is_part_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> None:
    """Of enough text a network is trained, within a quarter of the budget, and described."""
    monkeypatch.setattr("speculant.drafters.mix.base_builder._TRAINABLE", 1000)
    ids = np.random.default_rng(1).permutation(np.arange(4000) % 400).tolist()
    (tmp_path / "t.jsonl").write_text(json.dumps({"ids": ids}) + "\n")
    out = tmp_path / "base"
    assert main([*BUILD, "-o", str(out), str(tmp_path / "t.jsonl"), "--budget", "600KB"]) == 0
    assert "network     400 tokens have vectors; " in capsys.readouterr().out
    arrays = read_any_memory(out).arrays
    assert sum(array.nbytes for name, array in arrays.items() if name != "lines") <= 150_000
    assert out.stat().st_size <= 600_000
    assert main(["memory", "info", str(out)]) == 0
    assert "tokens with vectors" in capsys.readouterr().out


def test_excluded_texts(tmp_path: Path, texts: Path, capsys: CaptureFixture) -> None:
    """Documents that quote one are dropped and counted, by source; --exclude takes several files."""
    ids = load_tokenizer()(TEXTS[1], add_special_tokens=False)["input_ids"]
    (tmp_path / "a.txt").write_text(f"Here it begins. {TEXTS[3]}")
    (tmp_path / "b.jsonl").write_text(json.dumps({"prompt_ids": ids[:4], "output_ids": ids[4:]}))
    out, excluded = tmp_path / "base", [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")]
    assert main([*BUILD, "-o", str(out), str(texts), "--exclude", *excluded, "--budget", "1MB"]) == 0
    assert "2 documents excluded" in capsys.readouterr().out
    (source,) = facts(out)["sources"]
    assert (source["documents"], source["excluded"]) == (2, 2)
    (tmp_path / "kept.jsonl").write_text("".join(json.dumps({"text": TEXTS[i]}) + "\n" for i in (0, 2)))
    assert main([*BUILD, "-o", str(tmp_path / "other"), str(tmp_path / "kept.jsonl"), "--budget", "1MB"]) == 0
    assert contents(out)[0] == contents(tmp_path / "other")[0]


def test_nothing_to_learn_or_to_exclude(tmp_path: Path, texts: Path, capsys: CaptureFixture) -> None:
    """Each is an error of its own, and no file and no folder is left."""
    (tmp_path / "blank.jsonl").write_text('{"text": " "}\n')
    (tmp_path / "short.txt").write_text("Hello")
    out = ["-o", str(tmp_path / "base")]
    for argv, message in (
        ([str(tmp_path / "blank.jsonl")], "the sources hold no text"),
        ([str(texts), "--exclude", str(texts)], "all 4 documents share texts"),
        ([str(texts), "--exclude", str(tmp_path / "short.txt")], "hold no text of 13 tokens"),
    ):
        assert main([*BUILD, *out, *argv]) == 2
        assert message in capsys.readouterr().err
    assert main([*BUILD, *out, str(texts), "--exclude", str(tmp_path / "none")]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blank.jsonl", "short.txt", "texts.jsonl"]


@pytest.mark.usefixtures("row_by_row")
@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_an_interrupted_build_continues(
    after: int, tmp_path: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """Wherever Ctrl-C falls, the same command reads on and the result is that of a build in one go."""
    (tmp_path / "more.txt").write_text("\n<|endoftext|>\n".join(TEXTS))
    (tmp_path / "bad.jsonl").write_text("{\n" + json.dumps({"text": TEXTS[0]}))
    argv = [*BUILD, str(texts), str(tmp_path / "bad.jsonl"), f"{tmp_path / 'more.txt'}@3", "--budget", "1MB"]
    assert main([*argv, "-o", str(tmp_path / "whole")]) == 0
    whole = capsys.readouterr().out
    with monkeypatch.context() as broken:
        interrupt(broken, KeyboardInterrupt(), after)
        assert main([*argv, "-o", str(tmp_path / "base")]) == 130
    assert "give the same command again to continue" in capsys.readouterr().err
    assert not (tmp_path / "base").exists()
    assert main([*argv, "-o", str(tmp_path / "base")]) == 0
    printed, err = capsys.readouterr()
    assert (f"continuing the unfinished work in {tmp_path / '.base.building'}: " in err) == (after > 0)
    assert contents(tmp_path / "base") == contents(tmp_path / "whole")
    assert "left out    1 files or rows" in printed
    assert "left out    1 files or rows" in whole
    assert not (tmp_path / ".base.building").exists()


@pytest.mark.usefixtures("row_by_row")
@pytest.mark.parametrize("saves", [1, 2, 4])
def test_a_state_that_was_not_stored_changes_nothing(
    saves: int, tmp_path: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the builder has written beyond the last stored state is dropped, its counts included."""
    argv = [*BUILD, str(texts), "--budget", "1MB"]
    assert main([*argv, "-o", str(tmp_path / "whole")]) == 0
    stored, save = [0], WorkFolder.save

    def failing(self: WorkFolder, state: dict[str, Any]) -> None:
        stored[0] += 1
        if stored[0] > saves:
            raise KeyboardInterrupt
        save(self, state)

    with monkeypatch.context() as broken:
        broken.setattr(WorkFolder, "save", failing)
        assert main([*argv, "-o", str(tmp_path / "base")]) == 130
    assert main([*argv, "-o", str(tmp_path / "base")]) == 0
    assert contents(tmp_path / "base") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("row_by_row")
def test_another_command_does_not_continue(
    tmp_path: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """Other settings and changed files are refused by name, until the work is dropped."""
    out = ["-o", str(tmp_path / "base")]
    with monkeypatch.context() as broken:
        interrupt(broken, KeyboardInterrupt(), 2)
        assert main([*BUILD, *out, str(texts)]) == 130
    capsys.readouterr()
    (tmp_path / "more.txt").write_text(TEXTS[0])
    for argv, message in (
        ([str(texts), "--budget", "1MB"], "--budget was 64000000 and is now 1000000"),
        ([str(texts), "--license", "MIT"], "--license was not given and is now MIT"),
        ([f"{texts}@2"], f"{texts} has changed since"),
        ([str(texts), str(tmp_path / "more.txt")], "more.txt, which is new"),
        ([str(tmp_path / "more.txt")], f"had {texts}, which is missing now"),
    ):
        assert main([*BUILD, *out, *argv]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert "--restart" in err
    os.utime(texts, ns=(1, 1))
    assert main([*BUILD, *out, str(texts)]) == 2
    assert f"{texts} has changed since" in capsys.readouterr().err
    assert main([*BUILD, *out, str(texts), "--restart"]) == 0
    assert "continuing" not in capsys.readouterr().err
    assert facts(tmp_path / "base")["sources"][0]["documents"] == 4


@pytest.mark.usefixtures("row_by_row")
def test_a_full_disk_keeps_the_work(
    tmp_path: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """The error says what is missing and how to go on once there is room."""
    argv = [*BUILD, "-o", str(tmp_path / "base"), str(texts)]
    with monkeypatch.context() as full:
        interrupt(full, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2)
        assert main(argv) == 1
    err = capsys.readouterr().err
    assert "No space left on device. The work so far is kept" in err
    assert main(argv) == 0
    assert "continuing the unfinished work" in capsys.readouterr().err
    assert facts(tmp_path / "base")["sources"][0]["documents"] == 4


def test_conversations_teach_the_end_of_a_turn(tmp_path: Path) -> None:
    """With a template a row is one document; its messages alone would lack what stands between them."""
    (tmp_path / "chats.jsonl").write_text(json.dumps({"prompt": TEXTS[0], "output": TEXTS[1]}) + "\n")
    out = tmp_path / "base"
    assert main([*BUILD, "-o", str(out), str(tmp_path / "chats.jsonl")]) == 0
    (source,) = facts(out)["sources"]
    tokenizer = load_tokenizer()
    assert source["documents"] == 1
    assert source["tokens"] > sum(map(len, tokenizer(TEXTS[:2], add_special_tokens=False)["input_ids"]))


def test_no_other_file_is_overwritten(tmp_path: Path, texts: Path, capsys: CaptureFixture) -> None:
    """Neither sources, nor excluded files, nor a memory without --force."""
    out, before = tmp_path / "base", texts.read_bytes()
    for argv, message in (
        (["-o", str(texts), f"{texts}@2"], "is one of the inputs"),
        (["-o", str(texts), str(out), "--exclude", str(texts)], "cannot read"),
    ):
        assert main([*BUILD, *argv]) in (1, 2)
        assert message in capsys.readouterr().err
    assert main([*BUILD, "-o", str(out), str(texts)]) == 0
    assert main([*BUILD, "-o", str(out), str(texts)]) == 2
    assert "add --force" in capsys.readouterr().err
    assert main([*BUILD, "-o", str(out), str(texts), "--force"]) == 0
    assert texts.read_bytes() == before
