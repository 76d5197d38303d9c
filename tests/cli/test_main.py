"""The frame around the commands: exit codes, one-line errors, a quick start."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from speculant import __version__
from speculant.cli import methods
from speculant.cli.main import main
from speculant.core.errors import FileError, UsageError


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(args: Any) -> int:
        raise error

    monkeypatch.setattr(methods, "run", run)


def test_nothing_heavy_is_imported_before_a_command_runs() -> None:
    """`--help` must not wait for torch."""
    heavy = "{'torch', 'transformers', 'numba'}"
    code = f"import sys; from speculant.cli.main import build_parser; build_parser(); print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_the_package_runs_as_a_module() -> None:
    """`python -m speculant` is the command."""
    done = subprocess.run([sys.executable, "-m", "speculant", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"speculant {__version__}\n")


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["methods", "--nonsense"]])
def test_arguments_that_do_not_parse_end_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts tell misuse from failure by the exit code."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: speculant" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(UsageError("no."), 2), (FileError("no."), 1)])
def test_expected_faults_are_one_line(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault the library names is no traceback, and its class decides the exit code."""
    fail_with(monkeypatch, error)
    assert main(["methods"]) == code
    assert capsys.readouterr().err == "error: no.\n"


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_memory_that_runs_out_is_named(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torch's CPU allocator raises a bare RuntimeError; users get the cause and the way out."""
    fail_with(monkeypatch, error)
    assert main(["methods"]) == 1
    assert "ran out of memory" in capsys.readouterr().err


def test_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A RuntimeError that is not about memory is ours to see."""
    fail_with(monkeypatch, RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        main(["methods"])


def test_interruption_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C is what shells expect it to be, without a traceback."""
    fail_with(monkeypatch, KeyboardInterrupt())
    assert main(["methods"]) == 130
    assert capsys.readouterr().err == ""


def test_a_closed_pipe_is_quiet() -> None:
    """`speculant methods | head -0` must not complain."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "speculant", "methods"], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
