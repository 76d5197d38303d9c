"""The command that continues prompts, from the arguments to the files it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculant import Speculator
from speculant.api.batch import Batch
from speculant.cli.baselines import Baselines
from speculant.cli.generate import shortened
from speculant.cli.main import main
from speculant.decoding.step import Decoding
from speculant.drafters.mix.drafter import MixSession
from speculant.engines.hf.batch_pass import RaggedPass

KEYS = [
    *("prompt", "text", "ids", "finish_reason", "method", "tokens", "rounds", "mat", "tokens_per_second"),
    *("baseline_tokens_per_second", "speedup", "identical", "hf_tokens_per_second", "identical_to_hf"),
    *("time_share", "acceptance_by_depth", "prompt_tokens", "seconds", "prefill_seconds", "notes", "environment"),
]
SHORT = ["--max-new-tokens", "12"]
CaptureFixture = pytest.CaptureFixture[str]


@pytest.fixture
def record(capsys: CaptureFixture) -> Callable[..., Any]:
    def run(*argv: str) -> Any:
        assert main(["generate", *argv, "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_the_text_is_all_that_goes_to_stdout(capsys: CaptureFixture) -> None:
    """A pipe gets the text and a line end; what there is to say goes to stderr, without colours."""
    assert main(["generate", "Once upon a time", *SHORT]) == 0
    out, err = capsys.readouterr()
    assert (
        out == Speculator.from_pretrained().generate("Once upon a time", max_new_tokens=12, temperature=0).text + "\n"
    )
    assert err.startswith("\nmethod      mix\ntokens      12 in ")
    assert "\033" not in out + err


def test_color_paints_both(capsys: CaptureFixture) -> None:
    """The text is painted and the block says what the colours mean; painting changes no letter."""
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


@pytest.mark.parametrize("sampling", [[], ["--temperature", "1.2", "--top-k", "20", "--seed", "5"]])
def test_compare_finds_the_same_tokens(sampling: list[str], record: Callable[..., Any]) -> None:
    """Greedy or sampled, the plain loop and model.generate say the same; this is the promise of the project."""
    found = record("Once upon a time", *SHORT, "--compare", *sampling)
    assert found["identical"] is True
    assert found["identical_to_hf"] is True
    assert found["speedup"] == pytest.approx(found["tokens_per_second"] / found["baseline_tokens_per_second"])
    assert found["hf_tokens_per_second"] > 0


@pytest.mark.parametrize("fast", [True, False])
def test_the_baseline_runs_the_same_passes(fast: bool) -> None:
    """A speed-up is that of drafts, whatever --fast and --no-fast make of a pass."""
    speculator = Speculator.from_pretrained(fast=fast)
    assert Baselines(speculator, {})._plain.fast is speculator.fast


def test_compare_without_a_seed_takes_one_and_says_so(capsys: CaptureFixture) -> None:
    """Three runs on three random streams would say three things."""
    assert main(["generate", "Tom", *SHORT, "--compare", "--temperature", "2"]) == 0
    err = capsys.readouterr().err
    assert "--seed 0 is used" in err
    assert "identical   yes" in err


def test_compare_teaches_the_memory_nothing(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The warm-up and the baselines leave the measured memory as it would be without them."""
    for name, more in (("alone", []), ("compared", ["--compare"])):
        for _ in range(2):  # the second time with a memory that is there
            argv = ["generate", "Tom and Sue", *SHORT, "--nodes", "8", "--memory", str(tmp_path / name), *more]
            assert main(argv) == 0
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "compared").read_bytes()


def test_stop_and_compare_agree(record: Callable[..., Any]) -> None:
    """Stop strings reach all three ways of decoding."""
    text = record("Once upon a time", "--max-new-tokens", "40")["text"]
    stop = text[12:15]
    found = record("Once upon a time", "--max-new-tokens", "40", "--stop", stop, "--stop", "qqq", "--compare")
    assert found["finish_reason"] == "stop"
    assert stop in found["text"]
    assert len(found["text"]) < len(text)
    assert found["identical"] is found["identical_to_hf"] is True


def test_a_text_that_fills_the_model_is_compared_too(tiny_folder: Path, record: Callable[..., Any]) -> None:
    """Where positions run out before --max-new-tokens, the reference must stop at the same place."""
    found = record("a b c d", "--model", str(tiny_folder), "--compare", "--max-new-tokens", "100")
    assert found["identical"] is found["identical_to_hf"] is True
    assert "only" in found["notes"][0]


def test_chat_goes_through_the_template(record: Callable[..., Any]) -> None:
    """The prompt is sent as a user's message."""
    expected = Speculator.from_pretrained().generate([{"role": "user", "content": "Tom sat"}], max_new_tokens=12)
    found = record("Tom sat", *SHORT, "--chat", "--compare")
    assert (found["ids"], found["identical"]) == (expected.ids, True)


def test_many_prompts_share_memory_and_a_block(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Texts go to stdout, headers and totals to stderr, a list to the JSON file."""
    (tmp_path / "p.json").write_text('["Tom and Sue", {"prompt": "Tom and Sue"}]')
    argv = ["--prompts", str(tmp_path / "p.json"), "--json", str(tmp_path / "out.json"), "--compare", "--nodes", "8"]
    assert main(["generate", *argv, *SHORT]) == 0
    out, err = capsys.readouterr()
    first, second = json.loads((tmp_path / "out.json").read_text())
    assert out == first["text"] + "\n" + second["text"] + "\n"
    assert list(first) == list(second) == KEYS
    assert first["ids"] == second["ids"]
    assert second["rounds"] < first["rounds"], "the second time the memory knows the text"
    assert "--- 2 of 2: Tom and Sue\n" in err
    assert "prompts     2\ntokens      24 in" in err
    assert "identical   2 of 2 to the baseline, 2 of 2 to the reference" in err


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
    memory = ["--memory", str(tmp_path / "memory"), "--nodes", "8"]
    first = record("Once upon a time", *SHORT, *memory)
    second = record("Once upon a time", *SHORT, *memory)
    assert second["ids"] == first["ids"]
    assert second["rounds"] < first["rounds"]


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
    assert err.startswith("\nmethod      mix\n")
    assert "interrupted" in err
    Speculator.from_pretrained(memory=tmp_path / "memory")


@pytest.mark.parametrize("option", ["--json", "--memory"])
def test_places_that_cannot_be_written_fail_first(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """Nobody should wait for a text that is lost in the end."""
    monkeypatch.setattr("speculant.api.speculator.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    assert main(["generate", "Tom", option, str(tmp_path / "none" / "file")]) == 1
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ([""], 2, "the prompt is empty"),
        (["", "--chat"], 2, "the prompt is empty"),
        (["Tom", "--top-p", "0.5"], 2, "would be ignored"),
        (["Tom", "--temperature", "-1"], 2, "temperature must be 0 or more"),
        (["Tom", "--temperature", "nan"], 2, "temperature"),
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


def test_a_prompt_or_a_file_of_them() -> None:
    """One is needed, and both make no sense."""
    for argv in (["generate"], ["generate", "Tom", "--prompts", "p.json"]):
        with pytest.raises(SystemExit):
            main(argv)


def test_headers_are_one_short_line() -> None:
    """Prompts of many pages must not flood the terminal."""
    assert shortened("one\n two") == "one two"
    assert shortened("x" * 61) == "x" * 57 + "..."
    assert len(shortened("long text " * 9999)) == 60


def test_a_batch_prints_texts_in_order(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The texts of a batch are those of prompts one by one, in their order, and the block counts the time once."""
    prompts = tmp_path / "p.json"
    prompts.write_text(json.dumps(["Once upon a time", "The dog", "One day"]))
    argv = ["generate", "--prompts", str(prompts), *SHORT, "--temperature", "0.8", "--seed", "4", "--top-k", "20"]
    assert main([*argv, "--batch", "2", "--json", str(tmp_path / "out.json")]) == 0
    out, err = capsys.readouterr()
    assert "prompts a pass" in err
    assert err.index("--- 1 of 3") < err.index("--- 2 of 3") < err.index("--- 3 of 3")
    speculator = Speculator.from_pretrained(method="none")
    options = {"max_new_tokens": 12, "temperature": 0.8, "top_k": 20}
    texts = [
        speculator.generate(prompt, seed=4 + place, **options).text
        for place, prompt in enumerate(["Once upon a time", "The dog", "One day"])
    ]
    assert out == "".join(text + "\n" for text in texts)
    assert [each["text"] for each in json.loads((tmp_path / "out.json").read_text())] == texts


def test_a_batch_is_for_many_prompts(capsys: CaptureFixture) -> None:
    """What a batch cannot do is said before a model is loaded."""
    assert main(["generate", "Once", "--batch", "2"]) == 2
    assert "--batch is for --prompts" in capsys.readouterr().err


MANY = ["Once upon a time", "The dog", "One day", "Tom sat"]


@pytest.fixture
def together(tmp_path: Path) -> list[str]:
    """Return the arguments for some prompts at once, with a method that remembers when a request ends."""
    (tmp_path / "p.json").write_text(json.dumps(MANY))
    files = ["--prompts", str(tmp_path / "p.json"), "--json", str(tmp_path / "out.json")]
    return ["generate", *files, *SHORT, "--batch", "4", "--method", "suffix", "--memory", str(tmp_path / "memory")]


def test_a_batch_goes_on_after_a_failure(
    tmp_path: Path, together: list[str], monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """The texts of the others are printed, what there is of the failed one too, and the end names it."""
    follow, rounds = Decoding.follow, []

    def failing(decoding: Decoding, tree: Any) -> Any:
        rounds.append(tree)
        if len(rounds) == 6:
            raise ZeroDivisionError("a bug")
        return follow(decoding, tree)

    monkeypatch.setattr(Decoding, "follow", failing)
    assert main(together) == 1
    out, err = capsys.readouterr()
    records = json.loads((tmp_path / "out.json").read_text())
    assert [found["finish_reason"] for found in records] == ["length", "error", "length", "length"]
    assert out == "".join(found["text"] + "\n" for found in records)
    assert [found["tokens"] for found in records] == [12, len(records[1]["ids"]), 12, 12]
    assert "error: 1 of 4 prompts failed: 2. The cause for prompt 2 is ZeroDivisionError: a bug" in err
    assert err.count(", failed\n") == 1


def test_an_interrupted_batch_keeps_texts_and_memory(
    tmp_path: Path, together: list[str], monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """Ctrl-C prints what there is of every text, in order, and what was learned is saved."""
    decode, rounds = Batch._round, []

    def interrupted(batch: Batch) -> Any:
        rounds.append(batch)
        if len(rounds) == 5:
            raise KeyboardInterrupt
        return decode(batch)

    monkeypatch.setattr(Batch, "_round", interrupted)
    assert main(together) == 130
    out, err = capsys.readouterr()
    records = json.loads((tmp_path / "out.json").read_text())
    assert all(0 < found["tokens"] < 12 for found in records)
    assert out == "".join(found["text"] + "\n" for found in records)
    assert err.count(", interrupted\n") == 4
    empty = tmp_path / "empty"
    Speculator.from_pretrained(method="suffix").save(empty)
    assert (tmp_path / "memory").stat().st_size > empty.stat().st_size


def test_a_batch_says_how_it_was_run(
    tmp_path: Path, together: list[str], monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """Where a model's sequences cannot share a pass, the block says so."""
    monkeypatch.setattr(RaggedPass, "_together", lambda *_: [][1])
    assert main(together) == 0
    assert "note        the sequences of a batch are run one after the other" in capsys.readouterr().err
