"""The command that builds tables."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from speculant import Speculator
from speculant.api.loading import bundled_model, load_tokenizer
from speculant.cli.main import main
from speculant.core.drafter import Budget, SessionRequest
from speculant.corpus import rejected
from speculant.corpus import rows as corpus_rows
from speculant.drafters.aded.drafter import AdedDrafter, load_table
from speculant.drafters.aded.frozen import thaw
from speculant.drafters.suffix.rest import RestDrafter
from speculant.drafters.suffix.sam import SamDrafter
from speculant.memory.fingerprint import tokenizer_fingerprint

CaptureFixture = pytest.CaptureFixture[str]
BUDGET = Budget(nodes=4, depth=4)
BUNDLED = ("--model", "bundled")


def rows(path: Path) -> set[tuple[int, int, int]]:
    fingerprint = tokenizer_fingerprint(load_tokenizer(), 4096)
    a, b, c, _ = thaw(load_table(path, tokenizer=fingerprint))
    return set(zip(a.tolist(), b.tolist(), c.tolist(), strict=True))


def test_a_built_table_drafts_what_it_has_seen(tmp_path: Path, capsys: CaptureFixture) -> None:
    """From texts to accepted drafts: the file is a memory that aded begins with."""
    plain = Speculator.from_pretrained(method="none").generate("Once upon a time", max_new_tokens=40, temperature=0)
    (tmp_path / "t.txt").write_text("Once upon a time" + plain.text + "\n<|endoftext|>\nThe end.")
    out = tmp_path / "table"
    capsys.readouterr()  # a bar while weights load
    assert main(["corpus", "build", *BUNDLED, "--kind", "trigram", "-o", str(out), str(tmp_path / "t.txt")]) == 0
    printed, err = capsys.readouterr()
    assert err == ""
    assert [line.split()[0] for line in printed.splitlines()] == ["tokens", "tri-grams", "bytes", "seconds"]
    assert f"{out.stat().st_size}: " in printed

    options = {"max_new_tokens": 40, "temperature": 0}
    helped = Speculator.from_pretrained(method="aded", memory=out, nodes=8).generate("Once upon a time", **options)
    alone = Speculator.from_pretrained(method="aded", nodes=8).generate("Once upon a time", **options)
    assert helped.ids == alone.ids == plain.ids
    assert helped.stats.rounds < alone.stats.rounds


def test_without_a_kind_it_is_the_default_methods(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The file that is built by default is one that generate begins with by default."""
    (tmp_path / "t.txt").write_text("Once upon a time there was a dog. The dog was big.")
    out = tmp_path / "memory"
    assert main(["corpus", "build", *BUNDLED, "-o", str(out), str(tmp_path / "t.txt")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["tokens", "bytes", "seconds"]
    assert Speculator.from_pretrained(memory=out).drafter.memory_bytes > 0


def test_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    """Token ids need no tokenizer, rows do not flow into each other, and pairs count from the first token."""
    (tmp_path / "t.jsonl").write_text('{"ids": [5, 6, 7]}\n{"prompt_ids": [8], "output_ids": [9, 10]}\n')
    assert (
        main(
            ["corpus", "build", *BUNDLED, "--kind", "trigram", "-o", str(tmp_path / "table"), str(tmp_path / "t.jsonl")]
        )
        == 0
    )
    assert rows(tmp_path / "table") == {
        (5, 6, 7), (8, 9, 10), (4096, 5, 6), (4096, 6, 7), (4096, 8, 9), (4096, 9, 10),
    }  # fmt: skip


def test_batches_count_like_single_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenising many texts at a time changes nothing."""
    texts = ["The dog sat.", "A cat, too.", "", "Tom\n"]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    argv = [str(tmp_path / "t.jsonl"), "--tokenizer", str(bundled_model())]
    assert main(["corpus", "build", "--kind", "trigram", "-o", str(tmp_path / "many"), *argv]) == 0
    monkeypatch.setattr(corpus_rows, "BATCH", 1)
    assert main(["corpus", "build", "--kind", "trigram", "-o", str(tmp_path / "single"), *argv]) == 0
    assert (tmp_path / "many").read_bytes() == (tmp_path / "single").read_bytes()


def test_the_table_has_room_for_every_id_of_the_model(tmp_path: Path) -> None:
    """A model may have more ids than its tokenizer; the table must have room for all of them."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in bundled_model().iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 5000}))
    (tmp_path / "t.jsonl").write_text('{"ids": [5, 6, 4999]}\n')
    argv = ["-o", str(tmp_path / "table"), str(tmp_path / "t.jsonl"), "--model", str(folder)]
    assert main(["corpus", "build", "--kind", "trigram", *argv]) == 0
    fingerprint = tokenizer_fingerprint(load_tokenizer(), 5000)
    drafter = AdedDrafter(vocabulary=5000, tokenizer=fingerprint)
    drafter.load(tmp_path / "table")
    assert 4999 in drafter.search(5, 6, BUDGET).tokens
    assert np.array_equal(drafter.search(0, 6, BUDGET).tokens, drafter.search(5, 6, BUDGET).tokens), "by the bi-gram"


def test_bad_rows_are_shown_up_to_a_point_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """A file of another form must not flood the terminal."""
    monkeypatch.setattr(rejected, "MAX_SHOWN", 2)
    (tmp_path / "t.jsonl").write_text('{"x": 1}\n' * 5 + '{"ids": [5, 6, 7]}\n')
    assert (
        main(
            ["corpus", "build", *BUNDLED, "--kind", "trigram", "-o", str(tmp_path / "table"), str(tmp_path / "t.jsonl")]
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert "left out    5 files or rows" in out
    assert len(err.splitlines()) == 3
    assert err.startswith(f"warning: {tmp_path / 't.jsonl'}:1: ")


def test_what_cannot_work_fails_first(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Missing inputs, unwritable outputs, texts without tri-grams and missing models leave no file."""
    (tmp_path / "empty").write_text("")
    (tmp_path / "short").write_text("a")
    out, none, short = str(tmp_path / "table"), str(tmp_path / "none"), str(tmp_path / "short")
    cases = [
        (["-o", out, none, *BUNDLED], 1, "cannot read"),
        (["-o", f"{none}/table", short, *BUNDLED], 1, "there is no folder"),
        (["-o", out, str(tmp_path / "empty"), *BUNDLED], 2, "none of the files contains text"),
        (["-o", out, short, *BUNDLED], 2, "hold no tri-grams"),
        (["-o", out, short, "--tokenizer", str(tmp_path)], 1, "no tokenizer in"),
        (["-o", out, short, "--model", none], 1, "there is no tokenizer at"),
        (["-o", out, short], 2, "name the memory's model by --model"),
        (["-o", out, short, *BUNDLED, "--tokenizer", "x"], 2, "name the memory's model by --model"),
    ]
    for argv, code, message in cases:
        assert main(["corpus", "build", "--kind", "trigram", *argv]) == code
        assert message in next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert not Path(out).exists()


def test_no_other_file_is_overwritten(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A forgotten name after -o, an output among the inputs and an earlier memory cost nobody a file."""
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("def main(): print('Once upon a time')\n")
    a, b, memory = (str(tmp_path / name) for name in ("a.py", "b.py", "memory"))
    argv = ["corpus", "build", *BUNDLED]
    assert main([*argv, "-o", memory, a]) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    cases = [
        ([*argv, "-o", a, b], "missing after -o"),
        ([*argv, "-o", a, a, b], "is one of the inputs"),
        ([*argv, "--force", "-o", a, b], "missing after -o"),
        ([*argv, "-o", memory, a], "add --force"),
        ([*argv, "--force", "-o", memory, memory], "is one of the inputs"),
    ]
    for case, message in cases:
        assert main(case) == 2
        assert message in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert main([*argv, "--force", "-o", memory, a, b]) == 0
    assert (tmp_path / "memory").read_bytes() != before["memory"]


def test_binaries_and_empty_files_are_left_out(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Each is named and counted; the rest is learned."""
    (tmp_path / "t.txt").write_text("Once upon a time there was a dog.")
    (tmp_path / "picture").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "latin").write_bytes(bytes(range(128, 256)) * 4)
    (tmp_path / "empty").write_text("\n")
    inputs = [str(tmp_path / name) for name in ("t.txt", "picture", "latin", "empty")]
    assert main(["corpus", "build", *BUNDLED, "-o", str(tmp_path / "memory"), *inputs]) == 0
    out, err = capsys.readouterr()
    assert [line.split(" ", 2)[2] for line in err.splitlines()] == [
        "is binary; it is left out.",
        "is binary; it is left out.",
        "is empty; it is left out.",
    ]
    assert "left out    3 files or rows" in out


def test_a_tokenizer_without_a_model_is_recognised(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A folder without config.json is a tokenizer's, and the message names the way out."""
    folder = tmp_path / "tokenizer"
    load_tokenizer().save_pretrained(folder)
    (tmp_path / "t.jsonl").write_text('{"ids": [5, 6, 7]}\n')
    argv = ["corpus", "build", "--kind", "trigram", "-o", str(tmp_path / "table"), str(tmp_path / "t.jsonl")]
    assert main([*argv, "--model", str(folder)]) == 1
    assert "--tokenizer" in capsys.readouterr().err
    assert main([*argv, "--tokenizer", str(folder)]) == 0


def test_a_suffix_array_is_built(tmp_path: Path, capsys: CaptureFixture) -> None:
    """--kind suffix writes a datastore that rest drafts from, and leaves nothing else behind."""
    (tmp_path / "t.jsonl").write_text('{"ids": [5, 6, 7, 8]}\n{"prompt_ids": [9], "output_ids": [6, 7, 10]}\n')
    out = tmp_path / "array"
    assert main(["corpus", "build", *BUNDLED, "--kind", "suffix", "-o", str(out), str(tmp_path / "t.jsonl")]) == 0
    printed, err = capsys.readouterr()
    assert err == ""
    assert [line.split()[0] for line in printed.splitlines()] == ["tokens", "blocks", "bytes", "seconds"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["array", "t.jsonl"]
    drafter = RestDrafter(vocabulary=4096, tokenizer=tokenizer_fingerprint(load_tokenizer(), 4096))
    drafter.load(out)
    assert drafter.search(np.array([5, 6, 7], np.int32), BUDGET).tokens.tolist() == [8]
    assert sorted(drafter.search(np.array([1, 6, 7], np.int32), BUDGET).tokens.tolist()) == [8, 10]


def test_suffix_automata_are_built(tmp_path: Path, capsys: CaptureFixture) -> None:
    """--kind sam writes a memory whose documents sam continues."""
    (tmp_path / "t.jsonl").write_text('{"ids": [5, 6, 7, 8]}\n{"prompt_ids": [9], "output_ids": [6, 7, 10]}\n')
    out = tmp_path / "automata"
    assert main(["corpus", "build", *BUNDLED, "--kind", "sam", "-o", str(out), str(tmp_path / "t.jsonl")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["tokens", "bytes", "in", "seconds"]
    drafter = SamDrafter(vocabulary=4096, tokenizer=tokenizer_fingerprint(load_tokenizer(), 4096))
    drafter.load(out)
    assert drafter.tokens == 8
    assert drafter.open(SessionRequest(prompt=np.array([1, 5, 6], np.int32))).propose(BUDGET).tokens.tolist() == [7, 8]


def test_an_empty_suffix_array_is_refused(tmp_path: Path, capsys: CaptureFixture) -> None:
    """There would be nothing to draft from; no file and no folder is left."""
    (tmp_path / "empty").write_text("")
    argv = ["corpus", "build", *BUNDLED, "--kind", "suffix", "-o", str(tmp_path / "array"), str(tmp_path / "empty")]
    assert main(argv) == 2
    assert "none of the files contains text" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_folders_compressed_files_and_pairs_are_read(tmp_path: Path) -> None:
    """Every kind takes what a base takes; prompt and output are documents of their own."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b'{"ids": [5, 6, 7]}\n'))
    (folder / "b.json").write_text('[{"output_ids": [8, 9, 10]}]')
    argv = ["corpus", "build", *BUNDLED, "--kind", "trigram", "-o", str(tmp_path / "table"), str(folder)]
    assert main(argv) == 0
    assert {(5, 6, 7), (8, 9, 10)} <= rows(tmp_path / "table")


@pytest.mark.parametrize("options", [["--budget", "1MB"], ["--license", "MIT"], ["--exclude", "x"], ["--restart"]])
def test_options_of_bases_are_refused_elsewhere(options: list[str], tmp_path: Path, capsys: CaptureFixture) -> None:
    """An option that would be ignored is an error."""
    (tmp_path / "t.txt").write_text("Once upon a time")
    argv = ["corpus", "build", *BUNDLED, "-o", str(tmp_path / "memory"), str(tmp_path / "t.txt"), *options]
    assert main(argv) == 2
    assert f"{options[0]} is for frozen bases" in capsys.readouterr().err


def test_weights_are_refused_elsewhere(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A memory counts what it reads, once."""
    (tmp_path / "t.txt").write_text("Once upon a time")
    assert main(["corpus", "build", *BUNDLED, "-o", str(tmp_path / "memory"), f"{tmp_path / 't.txt'}@2"]) == 2
    assert "has a weight, which only bases" in capsys.readouterr().err


def test_a_vocabulary_is_token_ids_by_frequency(tmp_path: Path, capsys: CaptureFixture) -> None:
    """--kind vocabulary writes a ranked list, the end of a text first, that a head's setting reads."""
    (tmp_path / "t.jsonl").write_text('{"ids": [9, 9, 4, 9, 4, 7]}\n', encoding="utf-8")
    out = tmp_path / "frequent.json"
    argv = ["corpus", "build", *BUNDLED, "--kind", "vocabulary", "-o", str(out), str(tmp_path / "t.jsonl")]
    assert main(argv) == 0
    assert "4 of 4096" in capsys.readouterr().out
    assert json.loads(out.read_text("utf-8"))[1:] == [9, 4, 7]
    settings = ["--set", f"vocabulary={out}", "--set", "vocabulary_size=3"]
    argv = ["generate", "The dog", "--method", "eagle2", *settings, "--json", "-", "--max-new-tokens", "8"]
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "eagle2"
    assert list(tmp_path.glob(".*")) == []
