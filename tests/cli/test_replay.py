"""The command that replays recorded outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speculant.api.loading import bundled_model
from speculant.cli.main import main
from speculant.core.errors import UnsupportedError
from speculant.drafters.none import NoDrafter

CaptureFixture = pytest.CaptureFixture[str]
ROW = {"prompt_ids": [1, 2], "output_ids": [4, 5, 6] * 10, "category": "x", "recorded": {"eagle": [2] * 40}}


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def figures(capsys: CaptureFixture, *argv: str) -> dict[str, Any]:
    assert main(["replay", *argv, "--jobs", "1", "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Return a file of three requests in two categories."""
    return write(tmp_path / "model-task.jsonl", ROW, ROW | {"category": "y"}, ROW)


def test_the_table(trace: str, capsys: CaptureFixture) -> None:
    """A row per file and method, then what the trace recorded; categories where asked for."""
    assert main(["replay", trace, "--method", "none,aded", "--jobs", "1", "--by-category"]) == 0
    out, err = capsys.readouterr()
    heads = [line.split()[:2] for line in out.splitlines()[1:10]]
    each = [["model-task"], ["x"], ["y"]]
    assert heads == [[*name, method] for method in ("none", "aded", "recorded:eagle") for name in each]
    assert "memory kept over the requests of a file, requests in the file's order" in out
    assert err == ""


def test_json(trace: str, tmp_path: Path, capsys: CaptureFixture) -> None:
    """Programs get the promised shape, whether or not a figure is known."""
    found = figures(capsys, trace, "--method", "none,aded", "--nodes", "8")
    assert [row["method"] for row in found["rows"]] == ["none", "aded", "recorded:eagle"]
    for row in found["rows"]:
        assert {"file", "method", "nodes", "tokens", "rounds", "mat", "draft_us", "memory_bytes"} <= row.keys()
        assert row["draft_us"].keys() == {"mean", "p50", "p99"}
    none, aded, eagle = found["rows"]
    assert (none["file"], none["tokens"], none["mat"], aded["nodes"]) == ("model-task", 90, 1.0, 8)
    assert aded["mat"] > 1.5
    assert (eagle["mat"], eagle["nodes"]) == (2.0, 20)
    assert found["settings"]["left_out"] == 0
    assert "python" in found["environment"]


def test_chains_and_trees_of_several_sizes(trace: str, tmp_path: Path, capsys: CaptureFixture) -> None:
    """One run gives every shape and size; recorded chains stand beside chains of their own length, never longer."""
    argv = [trace, "--method", "mix", "--chain", "--tree", "--nodes", "2,20,64"]
    found = figures(capsys, *argv)
    assert [(row["method"], row["shape"], row["nodes"]) for row in found["rows"]] == [
        *(("mix", shape, nodes) for shape in ("tree", "chain") for nodes in (2, 20, 64)),
        ("recorded:eagle", "chain", 2),
        ("recorded:eagle", "chain", 20),
    ]
    mats = {(row["shape"], row["nodes"]): row["mat"] for row in found["rows"] if row["method"] == "mix"}
    assert mats["chain", 2] <= 3
    assert mats["chain", 2] < mats["chain", 20] <= mats["tree", 64]
    assert (found["settings"]["shapes"], found["settings"]["nodes"]) == (["tree", "chain"], [2, 20, 64])
    page = str(tmp_path / "p.html")
    assert main(["replay", *argv, "--jobs", "1", "--html", page]) == 0
    out = capsys.readouterr().out
    assert "Drafts are trees and chains of up to 2, 20 or 64 tokens" in out
    assert "mix, chain of 20" in Path(page).read_text()


def test_sizes_may_be_those_of_decoding(trace: str, tmp_path: Path, capsys: CaptureFixture) -> None:
    """`--nodes auto` sizes drafts by the cost of passes, and says what is missing without one."""
    cost = tmp_path / "cost.json"
    cost.write_text(json.dumps({"nodes": [0, 64], "seconds": [0.1, 0.2]}))
    argv = ["replay", trace, "--method", "mix", "--nodes", "auto,8", "--jobs", "1"]
    assert main(argv) == 2
    assert "--nodes auto needs --step-cost FILE" in capsys.readouterr().err
    assert main([*argv, "--step-cost", str(cost)]) == 0
    out = capsys.readouterr().out
    assert "tree, auto" in out
    assert "Drafts are trees of up to 8 tokens or of the number of tokens that decoding would choose, memory" in out


def test_depth_can_be_limited(trace: str, capsys: CaptureFixture) -> None:
    """No draft is deeper than `--max-depth`, with sizes of any kind."""
    argv = [trace, "--method", "mix", "--nodes", "20", "--max-depth", "2", "--chain"]
    found = figures(capsys, *argv)
    assert max(each["depth"] for each in found["rows"][0]["by_depth"]) == 2
    assert main(["replay", *argv, "--jobs", "1"]) == 0
    assert "of up to 20 tokens, up to 2 deep" in capsys.readouterr().out


def test_recorded_chains_are_not_set_beside_trees_unsaid(trace: str, capsys: CaptureFixture) -> None:
    """Where recorded chains stand beside trees only, the notes say so and how to compare chains with chains."""
    advice = "--chain --nodes 20 compares chains with chains"
    assert main(["replay", trace, "--method", "none", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "recorded:eagle: chains recorded with the traces" in out
    assert advice in out
    assert main(["replay", trace, "--method", "none", "--jobs", "1", "--chain", "--nodes", "20"]) == 0
    assert advice not in capsys.readouterr().out


def test_memory_can_be_forgotten(trace: str, capsys: CaptureFixture) -> None:
    """Kept, later requests are known by heart."""
    kept, fresh = (figures(capsys, trace, "--method", "aded", flag) for flag in ("--keep-memory", "--no-keep-memory"))
    assert kept["rows"][0]["mat"] > fresh["rows"][0]["mat"]


def test_requests_can_be_chosen(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The first so many, in the file's order or shuffled by a seed."""
    path = write(tmp_path / "t.jsonl", *({"prompt_ids": [1], "output_ids": [4] * (1 << i)} for i in range(10)))
    orders = [["file"], *(["shuffled", "--seed", seed] for seed in "112")]
    tokens = [
        figures(capsys, path, "--method", "none", "--limit", "3", "--order", *order)["rows"][0]["tokens"]
        for order in orders
    ]
    assert tokens[0] == 7
    assert tokens[1] == tokens[2] != tokens[3]


def test_bad_rows_are_reported_and_counted(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A line for each, the rest is replayed, and the end says how many were left out."""
    path = write(tmp_path / "t.jsonl", ROW, {"text": "a"}, ROW)
    assert main(["replay", path, "--method", "none", "--jobs", "1"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith(f"warning: {path}:2: a row is")
    assert len(err.splitlines()) == 1
    assert "could not be used: 1." in out
    assert main(["replay", write(tmp_path / "none.jsonl", {"text": "a"})]) == 1
    assert "has no row that can be replayed" in capsys.readouterr().err


def test_files_of_one_name_are_told_apart(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The path is the name where the file's own is not enough."""
    (tmp_path / "a").mkdir()
    paths = [write(tmp_path / "a" / "t.jsonl", ROW), write(tmp_path / "t.jsonl", ROW), write(tmp_path / "u.jsonl", ROW)]
    rows = figures(capsys, *paths, "--method", "none")["rows"]
    assert list(dict.fromkeys(row["file"] for row in rows)) == [paths[0], paths[1], "u"]


def test_a_step_cost_gives_the_speed_up(trace: str, tmp_path: Path, capsys: CaptureFixture) -> None:
    """Where a pass costs the same at any size, the speed-up is nearly the MAT."""
    (tmp_path / "c").write_text('{"nodes": [0, 64], "seconds": [1000, 1000]}')
    row = figures(capsys, trace, "--method", "aded", "--step-cost", str(tmp_path / "c"))["rows"][0]
    assert row["speedup"] == pytest.approx(row["mat"], rel=1e-3)
    assert main(["replay", trace, "--step-cost", str(tmp_path / "c"), "--nodes", "65"]) == 2
    assert "ends at 64 nodes" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_text_with_a_tokenizer_and_a_corpus(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Chat logs are replayed through a tokenizer; a corpus of the same one helps, and who takes none is said."""
    messages = [{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": "Once upon a time"}]
    path = write(tmp_path / "log.jsonl", {"messages": messages})
    assert main(["replay", path]) == 2
    assert "--tokenizer" in capsys.readouterr().err
    argv = [path, "--method", "none,aded", "--tokenizer", str(bundled_model())]
    alone = figures(capsys, *argv)
    (tmp_path / "texts.txt").write_text("Once upon a time there was a cat. " * 40)
    corpus = str(tmp_path / "trigrams.speculant")
    build = ["corpus", "build", "--kind", "trigram", "--tokenizer", str(bundled_model()), "-o", corpus]
    assert main([*build, str(tmp_path / "texts.txt")]) == 0
    capsys.readouterr()
    argv += ["--corpus", corpus]
    assert main(["replay", *argv, "--jobs", "1", "--json", str(tmp_path / "o"), "--html", str(tmp_path / "p")]) == 0
    out, err = capsys.readouterr()
    assert "since they do not read this kind: none." in err
    assert "Methods that can read them started from trigrams.speculant." in out
    helped = json.loads((tmp_path / "o").read_text())
    assert helped["rows"][1]["mat"] > alone["rows"][1]["mat"]
    page = (tmp_path / "p").read_text()
    assert page.startswith("<!doctype html>")
    assert " upon</span>" in page


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--method", "adde"], "Did you mean 'aded'"),
        (["--method", ","], "no method was named"),
        (["--method", "peer:x"], "there is no peer"),
        (["--step-cost", "nowhere"], "cannot read nowhere"),
        (["--corpus", "nowhere"], "cannot read nowhere"),
        (["--json", "nowhere/o"], "cannot write nowhere/o"),
        (["--html", "nowhere/o"], "cannot write nowhere/o"),
        (["--nodes", "100000"], "must be at most 1024, not 100000: a pass over so many tokens"),
        (["--nodes", "5,x"], "must be a whole number of 0 or more, or auto, not 'x'"),
        (["--nodes", ","], "one or more comma-separated values"),
        (["--seed", "1"], "--seed would be ignored"),
    ],
)
def test_faults_come_before_the_work(
    argv: list[str], message: str, trace: str, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot work is reported before anything is replayed."""
    monkeypatch.setattr(NoDrafter, "open", None)
    assert main(["replay", trace, *argv]) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_no_other_file_is_overwritten(trace: str, tmp_path: Path, capsys: CaptureFixture) -> None:
    """A result replaces an earlier result, never an input or a file of another form."""
    (tmp_path / "notes").write_text("do not lose me")
    for option, path, message in (
        ("--json", trace, "also another file of this command"),
        ("--html", trace, "also another file of this command"),
        ("--json", str(tmp_path / "notes"), "is not JSON"),
        ("--html", str(tmp_path / "notes"), "is not an HTML page"),
    ):
        before = Path(path).read_text()
        assert main(["replay", trace, "--method", "none", option, path]) == 2
        assert message in capsys.readouterr().err
        assert Path(path).read_text() == before
    out = [str(tmp_path / "o.json"), str(tmp_path / "o.html")]
    for _ in range(2):
        assert main(["replay", trace, "--method", "none", "--jobs", "1", "--json", out[0], "--html", out[1]]) == 0


@pytest.mark.slow  # bench/replay/test_workers.py has the processes
def test_two_processes(trace: str, capsys: CaptureFixture) -> None:
    """The rows are the same in the same order, and the table says that times were taken side by side."""
    alone = figures(capsys, trace, "--method", "aded,none")["rows"]
    assert main(["replay", trace, "--method", "aded,none", "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[1:8] for line in out.splitlines()[1:3]] == [
        [row["method"], "tree", "of", "64", str(row["tokens"]), str(row["rounds"]), f"{row['mat']:.3f}"]
        for row in alone[:2]
    ]
    assert "2 parallel processes" in out


def test_settings(trace: str, capsys: CaptureFixture) -> None:
    """A setting reaches the method that has it and is recorded; what fits none is refused before anything is read."""
    argv = [trace, "--method", "lookup,mix", "--nodes", "16"]
    default, short = (figures(capsys, *argv, *more) for more in ([], ["--set", "copied=1"]))
    assert default["settings"]["method_settings"] == {}
    assert short["settings"]["method_settings"]["lookup"]["copied"] == 1
    assert short["rows"][0]["mat"] < default["rows"][0]["mat"]
    assert short["rows"][1]["mat"] == default["rows"][1]["mat"]
    assert main(["replay", trace, "--method", "lookup,mix", "--set", "copid=1"]) == 2
    assert "none of the methods lookup, mix has a setting 'copid'" in capsys.readouterr().err


def test_table_and_json_before_the_page(
    trace: str, tmp_path: Path, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the work of a replay whose page fails at the end; a page that cannot be made is refused before it."""
    argv = ["replay", trace, "--method", "none", "--jobs", "1", "--json", str(tmp_path / "r.json")]
    argv += ["--html", str(tmp_path / "r.html")]

    def fail(*_: object, **__: object) -> str:
        raise UnsupportedError("no page today")

    with monkeypatch.context() as patched:
        patched.setattr("speculant.bench.report.replay_page.replay_page", fail)
        assert main(argv) == 2
    assert "MAT" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["rows"]
    (tmp_path / "r.json").unlink()
    monkeypatch.setattr("speculant.bench.report.extra.find_spec", lambda _: None)
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert "pip install jinja2 matplotlib" in err
    assert out == ""
    assert not (tmp_path / "r.json").exists()


def test_the_bundled_tokenizer_and_base(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The name "bundled" is known for them as for the model, and no hub is asked; figures are explained."""
    path = write(tmp_path / "t.jsonl", {"prompt": "Once upon a time", "output": " there was a little girl."})
    assert main(["replay", path, "--tokenizer", "bundled", "--base", "bundled", "--jobs", "1"]) == 0
    assert "MAT: mean accepted tokens per target pass" in capsys.readouterr().out


def test_a_head_united_with_methods(trace: str, capsys: CaptureFixture) -> None:
    """Guards the rows of unions, beside the method's own and the head's."""
    found = figures(capsys, trace, "--method", "mix,lookup", "--unite", "recorded:eagle", "--nodes", "8")
    assert [row["method"] for row in found["rows"]] == ["mix", "mix+recorded:eagle", "lookup", "recorded:eagle"]
    mix, both, _, _ = found["rows"]
    assert both["mat"] > mix["mat"]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--unite", "eagle"], "takes recorded:NAME"),
        (["--unite", "recorded:medusa"], "They recorded that of eagle"),
        (["--unite", "recorded:eagle", "--method", "lookup"], "takes mix or suffix"),
    ],
)
def test_heads_that_cannot_be_united(argv: list[str], reason: str, trace: str, capsys: CaptureFixture) -> None:
    """Guards the errors: what is not the name of a recorded head, and methods without probabilities."""
    assert main(["replay", trace, *argv]) == 2
    assert reason in capsys.readouterr().err
