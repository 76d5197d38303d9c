"""The command that continues prompts, from the arguments to the files it leaves."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bases import saved_base
from speculant import Speculator
from speculant.cli.baselines import Baselines
from speculant.cli.generation import shorten_prompt
from speculant.cli.loading import Loaded
from speculant.cli.main import main
from speculant.drafters.mix.drafter import MixSession
from speculant.memory.fingerprint import tokenizer_fingerprint

KEYS = [
    *("prompt", "text", "ids", "finish_reason", "method", "tokens", "rounds", "mat", "tokens_per_second"),
    *("tokens_per_second_range", "baseline_tokens_per_second", "baseline_tokens_per_second_range"),
    *("speedup", "speedup_range", "pairs", "noisy", "identical"),
    *("hf_tokens_per_second", "identical_to_hf"),
    *("time_share", "acceptance_by_depth", "prompt_tokens", "seconds", "prefill_seconds", "notes", "environment"),
]
SHORT = ["--max-new-tokens", "12"]
CaptureFixture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("two_pairs")


def test_the_text_is_all_that_goes_to_stdout(capsys: CaptureFixture) -> None:
    """A pipe gets the text and a line end; what there is to say goes to stderr, without colours."""
    assert main(["generate", "Once upon a time", *SHORT]) == 0
    out, err = capsys.readouterr()
    assert (
        out == Speculator.from_pretrained().generate("Once upon a time", max_new_tokens=12, temperature=0).text + "\n"
    )
    speed, drafting, *rest = err.splitlines()[1:]
    assert speed.startswith("speed       ")
    assert speed.endswith(" s")
    assert drafting.startswith("drafting    mix: ")
    assert rest == []
    assert "\033" not in out + err


def test_color_paints_both(capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is painted and the report explains the colours; painting changes no letter."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["generate", "one two one two one two", *SHORT]) == 0
    plain = capsys.readouterr().out
    assert main(["generate", "one two one two one two", *SHORT, "--color"]) == 0
    out, err = capsys.readouterr()
    for code in ("\033[32m", "\033[33m", "\033[0m"):
        out = out.replace(code, "")
        assert code in err
    assert out == plain


def test_json_replaces_the_text(record: Callable[..., Any]) -> None:
    """One prompt is one object with every key, and stdout holds nothing else."""
    found = record("Once upon a time", *SHORT, "--method", "none")
    assert list(found) == KEYS
    assert (found["prompt"], found["method"], found["tokens"]) == ("Once upon a time", "none", 12)
    assert len(found["ids"]) == 12
    assert found["mat"] == 1.0
    assert found["environment"]["dtype"] == "float32"


def test_json_goes_beside_the_text(tmp_path: Path, capsys: CaptureFixture) -> None:
    """With a file, text and record agree."""
    assert main(["generate", "Tom", *SHORT, "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["text"] + "\n" == capsys.readouterr().out


def test_repeated_runs_have_the_same_bases(tmp_path: Path) -> None:
    """Otherwise --compare would time drafts of another memory; plain decoding takes none."""
    speculator = Speculator.from_pretrained(base=None)
    size = speculator.model.config.vocab_size
    tokenizer = tokenizer_fingerprint(speculator.tokenizer, size)
    path = saved_base(tmp_path / "b", [np.arange(200) % 50], vocabulary=size, tokenizer=tokenizer)
    speculator = Speculator.from_pretrained(base=path)
    baselines = Baselines(Loaded(speculator, None, None, ""), {}, memory_limit=1 << 28, prompts=1)
    assert [base.path for base in baselines._other("mix").bases] == [path]
    assert baselines._plain.bases == ()
    baselines.close()


def test_chat_goes_through_the_template(record: Callable[..., Any]) -> None:
    """The prompt is sent as a user's message."""
    expected = Speculator.from_pretrained().generate([{"role": "user", "content": "Tom sat"}], max_new_tokens=12)
    found = record("Tom sat", *SHORT, "--chat", "--compare")
    assert (found["ids"], found["identical"]) == (expected.ids, True)


def test_many_prompts_share_memory_and_a_block(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A pipe gets a line of JSON each, which no line end in a text can break; headers and totals go to stderr."""
    (tmp_path / "p.json").write_text('["Tom and Sue", {"prompt": "Tom and Sue"}]')
    argv = ["--prompts", str(tmp_path / "p.json"), "--json", str(tmp_path / "out.json"), "--compare", "--nodes", "8"]
    assert main(["generate", *argv, *SHORT]) == 0
    out, err = capsys.readouterr()
    first, second = json.loads((tmp_path / "out.json").read_text())
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == [first["text"], second["text"]]
    assert rows[0] == {name: first[name] for name in ("prompt", "text", "finish_reason")}
    assert list(first) == list(second) == KEYS
    assert first["ids"] == second["ids"]
    assert second["rounds"] < first["rounds"], "the second time the memory knows the text"
    assert "--- 2 of 2: Tom and Sue\n" in err
    assert ": 24 tokens in " in err
    assert "identical   2 of 2 to plain decoding, 2 of 2 to model.generate" in err
    assert "prompts     2\n" in err


def test_many_prompts_stop_at_a_bad_one_and_keep_the_others(
    tmp_path: Path, tiny_folder: Path, capsys: CaptureFixture
) -> None:
    """What was decoded before the fault is recorded, and the fault names the prompt."""
    (tmp_path / "p.txt").write_text("short\n" + "long " * 99)
    argv = ["--prompts", str(tmp_path / "p.txt"), "--json", str(tmp_path / "out.json"), "--model", str(tiny_folder)]
    assert main(["generate", *argv, *SHORT]) == 2
    assert "error: prompt 2: the prompt has" in capsys.readouterr().err
    assert [found["prompt"] for found in json.loads((tmp_path / "out.json").read_text())] == ["short"]


def test_memory_is_kept_between_runs(tmp_path: Path, record: Callable[..., Any]) -> None:
    """A second process begins with what the first one learned."""
    memory = ["--memory", str(tmp_path / "memory"), "--nodes", "8", "--no-base"]
    first = record("Once upon a time", *SHORT, *memory)
    second = record("Once upon a time", *SHORT, *memory)
    assert second["ids"] == first["ids"]
    assert second["rounds"] < first["rounds"]


def test_a_method_that_saves_nothing_only_reads_its_memory(
    tmp_path: Path, record: Callable[..., Any], capsys: CaptureFixture
) -> None:
    """ADED as published drafts from a table that was made before, also when compared, and leaves the file alone."""
    table, options = tmp_path / "table", [*SHORT, "--nodes", "8", "--method"]
    record("Once upon a time", *options, "aded", "--memory", str(table))
    before = table.read_bytes()
    table.chmod(0o400)
    fresh = record("Once upon a time", *options, "aded-paper")
    for more in ([], ["--compare"]):
        found = record("Once upon a time", *options, "aded-paper", "--memory", str(table), *more)
        assert found["ids"] == fresh["ids"]
        assert found["rounds"] < fresh["rounds"]
    assert main(["generate", "Tom", *options, "aded-paper", "--memory", str(table)]) == 0
    assert f"{table} is only read: the method 'aded-paper' starts from it" in capsys.readouterr().err
    assert table.read_bytes() == before
    assert main(["generate", "Tom", *options, "aded-paper", "--memory", str(tmp_path / "missing")]) == 1
    assert "there is no memory file" in capsys.readouterr().err
    assert not (tmp_path / "missing").exists()


def test_ctrl_c_keeps_text_record_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """An interrupted run ends with 130 and loses nothing of what it did."""
    observe, calls = MixSession.observe, []

    def interrupted(session: MixSession, verified: Any) -> None:
        observe(session, verified)
        calls.append(verified)
        if len(calls) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(MixSession, "observe", interrupted)
    argv = ["--memory", str(tmp_path / "memory"), "--json", str(tmp_path / "out.json")]
    assert main(["generate", "Once upon a time", *argv]) == 130
    out, err = capsys.readouterr()
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["finish_reason"] == "unfinished"
    assert found["ids"]
    assert out == found["text"] + "\n"
    assert err.startswith("\nspeed       ")
    assert "interrupted" in err
    Speculator.from_pretrained(memory=tmp_path / "memory")


@pytest.mark.parametrize("option", ["--json", "--memory"])
def test_places_that_cannot_be_written_fail_first(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """Nobody should wait for a text that is lost in the end."""
    monkeypatch.setattr("speculant.api.loading.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    assert main(["generate", "Tom", option, str(tmp_path / "none" / "file")]) == 1
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ([""], 2, "the prompt is empty"),
        (["", "--chat"], 2, "the prompt is empty"),
        (["Tom", "--top-p", "0.5"], 2, "would be ignored"),
        (["Tom", "--seed", "1"], 2, "--seed would be ignored"),
        (["Tom", "--temperature", "-1"], 2, "--temperature must be 0"),
        (["Tom", "--temperature", "nan"], 2, "--temperature must be 0"),
        (["Tom", "--temperature", "inf"], 2, "a finite number above 0, not inf"),
        (["Tom", "--stop", ""], 2, "--stop is empty: every text contains"),
        (["Tom", "--model", ""], 2, "--model is empty: name a folder or a hub id"),
        (["Tom", "--device", "foo"], 2, "there is no device 'foo'; try cpu"),
        (["Tom", "--seed", "9" * 30, "--temperature", "1"], 2, "--seed must be at most 9223372036854775807"),
        (["Tom", "--set", "cutt=1"], 2, "Did you mean 'cut'?"),
        (["Tom", "--json", "m", "--memory", "m"], 2, "is also another file of this command"),
        (["Tom", "--method", "none", "--memory", "m"], 2, "keeps no memory"),
        (["Tom", "--model", "./none"], 1, "there is no model at ./none"),
        (["--prompts", "none.json"], 1, "cannot read the prompts"),
    ],
)
def test_faults_are_one_line(
    argv: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """What is wrong with the request is said without a traceback."""
    monkeypatch.chdir(tmp_path)
    assert main(["generate", *argv]) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert message in lines[0]


def test_a_prompt_or_a_file_of_them(capsys: CaptureFixture) -> None:
    """One is needed, and both make no sense."""
    for argv in (["generate"], ["generate", "Tom", "--prompts", "p.json"]):
        assert main(argv) == 2
        assert "standard input) or a file of prompts by --prompts" in capsys.readouterr().err


def test_verbose_explains(capsys: CaptureFixture) -> None:
    """The long sentence about sizes, where time went, and the threads wait behind --verbose."""
    assert main(["generate", "one two one two one two", *SHORT]) == 0
    brief = capsys.readouterr().err
    assert main(["generate", "one two one two one two", *SHORT, "--verbose", "--threads", "1"]) == 0
    err = capsys.readouterr().err
    for word in ("prompt", "rounds", "time", "sizes", "threads"):
        assert f"\n{word.ljust(12)}" in err
        assert f"\n{word.ljust(12)}" not in brief
    assert "threads     1, as asked" in err


def test_a_full_disk_under_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> None:
    """The memory is saved all the same, and one line says what happened."""

    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

        def fileno(self) -> int:
            return os.open(os.devnull, os.O_WRONLY)

    monkeypatch.setattr("sys.stdout", Full())
    assert main(["generate", "Tom", *SHORT, "--memory", str(tmp_path / "memory")]) == 1
    err = capsys.readouterr().err
    assert err.splitlines()[-1] == "error: cannot write to standard output: No space left on device."
    Speculator.from_pretrained(memory=tmp_path / "memory")


def test_an_output_is_never_an_input(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A prompt file behind --json or --memory stays as it is."""
    (tmp_path / "p.jsonl").write_text('"Tom"\n')
    path = str(tmp_path / "p.jsonl")
    for option in ("--json", "--memory"):
        assert main(["generate", "--prompts", path, option, path]) == 2
        assert "is also another file of this command" in capsys.readouterr().err
    assert (tmp_path / "p.jsonl").read_text() == '"Tom"\n'


def test_prompts_in_the_forms_of_benchmarks(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Questions, chats and conversations whose turns follow each other, each with its answer in a line of JSON."""
    rows = [
        {"question": "The dog"},
        {"messages": [{"role": "user", "content": "Tom"}, {"role": "assistant", "content": "left out"}]},
        {"turns": ["Once upon a time", "And then"]},
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["generate", "--prompts", str(tmp_path / "p.jsonl"), *SHORT]) == 0
    question, chat, first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert question["prompt"] == "The dog"
    assert chat["prompt"] == [{"role": "user", "content": "Tom"}]
    assert [message["content"] for message in second["prompt"]] == ["Once upon a time", first["text"], "And then"]
    speculator = Speculator.from_pretrained(method="none")
    assert second["text"] == speculator.generate(second["prompt"], max_new_tokens=12, temperature=0).text
    assert main(["generate", "--prompts", str(tmp_path / "p.jsonl"), *SHORT, "--batch", "2"]) == 2
    assert "prompt 3 has several turns" in capsys.readouterr().err


def test_turns_without_a_chat_template(tmp_path: Path, tiny_folder: Path, capsys: CaptureFixture) -> None:
    """They are joined as text, as `bench` does."""
    (tmp_path / "p.jsonl").write_text('{"turns": ["Tom", "Sue"]}\n')
    argv = ["--prompts", str(tmp_path / "p.jsonl"), "--model", str(tiny_folder), "--max-new-tokens", "4"]
    assert main(["generate", *argv]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert second["prompt"] == f"Tom{first['text']}\n\nSue\n\n"


def test_headers_are_one_short_line() -> None:
    """Prompts of many pages must not flood the terminal."""
    assert shorten_prompt("one\n two") == "one two"
    assert shorten_prompt("x" * 61) == "x" * 57 + "..."
    assert len(shorten_prompt("long text " * 9999)) == 60


def test_lossy_rules_are_compared_for_speed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards --compare under a rule that changes the output on request: another text is no failure there."""
    options = ["--verifier", "typical", "--lossy", "--compare", "--max-new-tokens", "8"]
    assert main(["generate", "Once upon a time", *options]) == 0
    assert "not compared: this acceptance rule keeps at most the distribution" in capsys.readouterr().err
    assert main(["generate", "Once upon a time", "--verifier", "typical"]) == 2
    assert "--lossy in a command" in capsys.readouterr().err


def test_a_schema_and_a_pattern_constrain_the_text(
    tmp_path: Path, capsys: CaptureFixture, record: Callable[..., Any]
) -> None:
    """The text is what they describe; two of them, a file that is none, and --compare are refused."""
    schema = tmp_path / "dog.json"
    schema.write_text('{"enum": [{"age": 1}, {"age": 2}]}')
    assert json.loads(record("A dog: ", "--json-schema", str(schema), *SHORT)["text"])["age"] in (1, 2)
    for wrong in (["--regex", "a", "--json-schema", str(schema)], ["--regex", "a", "--compare"], ["--regex", "("]):
        assert main(["generate", "A dog", *wrong, *SHORT]) == 2
    assert main(["generate", "A dog", "--json-schema", str(tmp_path / "none.json"), *SHORT]) == 1
    assert "cannot read the JSON schema" in capsys.readouterr().err
