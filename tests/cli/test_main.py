"""The frame around the commands: exit codes, one-line errors, suggestions, a quick start, standard streams."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from speculant import __version__
from speculant.cli import methods
from speculant.cli.main import COMMANDS, main
from speculant.core.errors import FileError, UsageError

CaptureFixture = pytest.CaptureFixture[str]
SPECULANT = [sys.executable, "-m", "speculant"]


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def table(_: object) -> str:
        raise error

    monkeypatch.setattr(methods, "table", table)


ANSWERS = [["--help"], ["methods"], *([name, "--help"] for name in COMMANDS)]
SHOWN = f"""
import sys
from speculant.cli.main import main

heavy = {{"torch", "transformers", "numba", "numpy", "rich.markdown", "importlib.metadata"}}
for argv in {ANSWERS}:
    main(argv)
    if loaded := heavy & set(sys.modules):
        print(argv, loaded, file=sys.stderr)
"""


def test_nothing_heavy_is_imported_for_an_answer() -> None:
    """`methods` and the help of every command must not wait for torch or numpy, nor for anything that needs them."""
    done = subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "speculant serve" in done.stdout


def test_the_package_runs_as_a_module() -> None:
    """`python -m speculant` is the command."""
    done = subprocess.run([*SPECULANT, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"speculant {__version__}\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name a command: demo, generate, chat"),
        (["genrate"], "there is no command 'genrate'. Did you mean 'generate'? See `speculant --help`."),
        (["nonsense"], "there is no command 'nonsense'. There are demo, generate"),
        (["memory", "infoo"], "there is no command 'infoo'. Did you mean 'info'? See `speculant memory --help`."),
        (["methods", "--jsn"], "there is no option --jsn. Did you mean --json? See `speculant methods --help`."),
        (["methods", "mxi"], "there is no method 'mxi'. Did you mean 'mix'?"),
        (["corpus", "build", "f", "--kind", "mixbase", "-o", "o"], "--kind 'mixbase' is not one of 'mix', 'trigram'"),
        (["corpus", "build", "f", "--kind", "mixbase", "-o", "o"], "Did you mean mix-base?"),
        (["compare", "one"], "Missing argument 'B.json'"),
        (["generate", "--nodes"], "'--nodes' requires an argument"),
    ],
)
def test_arguments_that_do_not_parse_end_with_2(argv: list[str], message: str, capsys: CaptureFixture) -> None:
    """Scripts tell misuse from failure by the exit code; people are told what they may have meant."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    assert message in err


SUB_COMMANDS = ["corpus build", *(f"memory {name}" for name in ("info", "merge", "clear"))]
SUB_COMMANDS += [f"base {name}" for name in ("list", "add", "remove", "learn")]
SUB_COMMANDS += [f"train {name}" for name in ("data", "medusa", "draft-model")]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS), *map(str.split, SUB_COMMANDS)])
def test_help(command: list[str], capsys: CaptureFixture) -> None:
    """Every command has a page that fits 80 columns, without colours in a pipe."""
    assert main([*command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"Usage: {' '.join(['speculant', *command])} ")
    assert "--help" in out
    assert "\nExamples\n" in out
    assert "\033" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_help_shows_examples_and_groups(capsys: CaptureFixture) -> None:
    """A newcomer finds a line to copy."""
    assert main(["generate", "--help"]) == 0
    out = capsys.readouterr().out
    for part in ('speculant generate "Once upon a time" --compare', "\nDrafting\n", "--set NAME=VALUE", "--threads N"):
        assert part in out


def test_completion_knows_commands_and_methods() -> None:
    """What a shell asks when Tab is pressed."""
    for words, expected in (("speculant ge", "generate"), ("speculant generate --method lo", "lookup")):
        environment = {
            **os.environ,
            "_SPECULANT_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        done = subprocess.run(SPECULANT, env=environment, capture_output=True, text=True)
        assert expected in done.stdout.split()


@pytest.mark.parametrize(("error", "code"), [(UsageError("no."), 2), (FileError("no."), 1)])
def test_expected_faults_are_one_line(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """A fault the library names is no traceback, and its class decides the exit code."""
    fail_with(monkeypatch, error)
    assert main(["methods"]) == code
    assert capsys.readouterr().err == "error: no.\n"


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_memory_that_runs_out_is_named(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """Torch's CPU allocator raises a bare RuntimeError; users get the cause and the way out."""
    fail_with(monkeypatch, error)
    assert main(["methods"]) == 1
    assert "ran out of memory" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), FileNotFoundError(2, "No such file", "x")])
def test_bugs_keep_their_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A RuntimeError that is not about memory, and an OSError that is not about the output, are ours to see."""
    fail_with(monkeypatch, error)
    with pytest.raises(type(error)):
        main(["methods"])


def test_interruption_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> None:
    """Ctrl-C is what shells expect it to be, without a traceback."""
    fail_with(monkeypatch, KeyboardInterrupt())
    assert main(["methods"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("argv", [["methods"], ["--help"]])
def test_a_closed_pipe_is_quiet(argv: list[str]) -> None:
    """`speculant methods | head -0` must not complain."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*SPECULANT, *argv], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    "command", ["replay", "help", *(pytest.param(name, marks=pytest.mark.slow) for name in ("methods", "memory"))]
)
def test_a_full_disk_under_standard_output(command: str, tmp_path: Path) -> None:
    """One line and exit code 1, whatever prints."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "t.jsonl").write_text(json.dumps({"prompt_ids": [1], "output_ids": [4, 5, 6]}) + "\n")
    corpus = Path(__file__).parents[2] / "src/speculant/models/stories/base.speculant"
    argv = {
        "methods": ["methods"],
        "replay": ["replay", str(tmp_path / "t.jsonl"), "--method", "none", "--jobs", "1"],
        "memory": ["memory", "info", str(corpus)],
        "help": ["--help"],
    }[command]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*SPECULANT, *argv], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("error: cannot write to standard output: No space left on device.\n")
    assert "Traceback" not in done.stderr


def test_closed_standard_streams() -> None:
    """Without an output there is an error; messages never end up among results, and no input is an empty one."""
    closed = subprocess.run(f"{sys.executable} -m speculant methods >&-", shell=True, capture_output=True, text=True)
    assert (closed.returncode, closed.stderr[:33]) == (1, "error: standard output is closed.")
    silent = subprocess.run(f"{sys.executable} -m speculant methods x 2>&-", shell=True, capture_output=True, text=True)
    assert (silent.returncode, silent.stdout) == (2, "")
    nothing = subprocess.run(f"{sys.executable} -m speculant methods <&-", shell=True, capture_output=True, text=True)
    assert (nothing.returncode, nothing.stderr) == (0, "")


def test_nothing_stays_frozen(capsys: pytest.CaptureFixture[str]) -> None:
    """Objects out of the garbage collector's reach are never freed, which bindings report as leaks at exit."""
    gc.freeze()
    assert main(["methods"]) == 0
    assert gc.get_freeze_count() == 0
