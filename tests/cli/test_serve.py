"""`speculant serve` up to the point where it would wait for requests, and its end by signals."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from speculant.cli.main import main

HANGUP = pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="servers ignore it too where it is ignored, as by nohup"
)


def test_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards `--parameters`: the table, without a model."""
    assert main(["serve", "--parameters"]) == 0
    assert "| `temperature` | supported | supported |" in capsys.readouterr().out


def test_what_is_refused_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Guards unsafe hosts, ports in use and folders that do not exist: exit code 2 or 1, and the reason."""
    assert main(["serve", "--host", "0.0.0.0"]) == 2
    assert "--allow-no-key" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "--port" in capsys.readouterr().err
    assert main(["serve", "--memory", str(tmp_path / "no" / "memory")]) == 1
    assert "no folder" in capsys.readouterr().err


@contextmanager
def serving(memory: Path, *options: str, terminal: int | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command as users do; yield the process, and its address once it accepts requests.

    Args:
        memory: its file.
        options: further ones.
        terminal: that it runs in; None for none, as below a service manager.
    """
    command = [sys.executable, "-m", "speculant", "serve", "--port", "0", "--memory", str(memory)]

    def begin() -> None:
        os.setsid()
        if terminal is not None:
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        [*command, "--log-format", "json", *options], stderr=subprocess.PIPE, text=True, preexec_fn=begin
    ) as process:
        try:
            assert process.stderr is not None
            address = ""
            block = list[str]()
            for line in process.stderr:
                block.append(line)
                if line.startswith("serving"):
                    address = line.split(" on ")[1].split()[0]
                if line.startswith("page"):
                    break
            assert address
            process.block = block  # type: ignore[attr-defined]
            yield process, address
        finally:
            process.kill()


def ask(address: str, *, key: str = "", **options: object) -> dict[str, Any]:
    """Return the answer to a greedy completion."""
    body = json.dumps({"model": "bundled", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0} | options)
    request = Request(
        f"{address}/v1/completions", body.encode(), {"Content-Type": "application/json", "x-api-key": key}
    )
    with urlopen(request, timeout=60) as answer:
        return cast("dict[str, Any]", json.load(answer))


@pytest.mark.slow
def test_serves_and_ends_by_a_signal(tmp_path: Path) -> None:
    """Guards the command as users run it: the block on start, an answer, a signal, exit code 0, the saved memory."""
    memory = tmp_path / "memory.speculant"
    with serving(memory) as (process, address):
        assert ask(address)["usage"]["completion_tokens"] == 8
        assert process.stderr is not None
        logged = json.loads(process.stderr.readline())
        assert (logged["path"], logged["status"], logged["completion_tokens"]) == ("/v1/completions", 200, 8)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
        assert f"memory saved to {memory}" in process.stderr.read()
    assert memory.exists()


@pytest.mark.slow
def test_a_broken_memory_is_said_where_the_server_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the block on start, which named a memory that was not used; `--memory-strict` refuses to start."""
    memory = tmp_path / "memory.speculant"
    memory.write_bytes(b"SPCLNT\r\nbroken")
    with serving(memory) as (process, _):
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
    assert any(line.startswith("memory") and "cannot be used" in line for line in process.block)  # type: ignore[attr-defined]
    assert main(["serve", "--port", "0", "--memory", str(memory), "--memory-strict"]) == 1
    assert str(memory) in capsys.readouterr().err


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """Guards the way out of draining: a request that is still on its way holds the first signal up, not the second."""
    with serving(tmp_path / "memory.speculant", "--drain-seconds", "600") as (process, address):
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
            with urlopen(f"{address}/health", timeout=60):  # the request before it was seen, too
                pass
            os.kill(process.pid, signal.SIGTERM)
            until(lambda: refused(host, int(port)))
            assert process.poll() is None
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(10) == -signal.SIGTERM


@pytest.mark.slow
def test_a_killed_server_keeps_its_last_save(tmp_path: Path) -> None:
    """Guards `kill -9`: what was saved is there, and the next server drafts from it."""
    memory = tmp_path / "memory.speculant"
    with serving(memory, "--save-seconds", "1", "--per-request-metrics", "--no-base") as (process, address):
        first = ask(address, max_tokens=60)
        before = saves(address)
        until(lambda: saves(address) >= before + 2)  # one may have begun before the text had ended
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    with serving(memory, "--per-request-metrics", "--no-base") as (_, address):
        again = ask(address, max_tokens=60)
    assert again["choices"] == first["choices"]
    steps = [each["metrics"]["speculative_decoding"]["num_spec_steps"] for each in (first, again)]
    assert steps[1] < steps[0] / 2


@pytest.mark.slow
@HANGUP
def test_a_hangup_reads_files_again(tmp_path: Path) -> None:
    """Guards SIGHUP of service managers: keys change while a text is decoded, which ends, and a bad file does not."""
    keys, memory = tmp_path / "keys", tmp_path / "memory.speculant"
    keys.write_text("one\n")

    def status(key: str) -> int:
        try:
            with urlopen(Request(f"{address}/v1/models", headers={"x-api-key": key}), timeout=60) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    with serving(memory, "--api-key-file", str(keys)) as (process, address), ThreadPoolExecutor(1) as pool:
        on_its_way = pool.submit(ask, address, key="one", max_tokens=900, ignore_eos=True)
        until(lambda: running(address, "one") > 0)
        keys.write_text("two\n")
        os.kill(process.pid, signal.SIGHUP)
        until(lambda: status("two") == 200)
        assert status("one") == 401
        assert on_its_way.result()["usage"]["completion_tokens"] == 900
        keys.write_text("")
        memory.write_bytes(b"SPCLNT\r\nbroken")
        os.kill(process.pid, signal.SIGHUP)
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        failed = list(islice((line for line in lines if "not read again" in line), 2))
        assert "holds no key" in failed[0]
        assert str(memory) in failed[1]
        assert status("two") == 200
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.slow
@HANGUP
def test_a_closed_terminal_ends_the_server(tmp_path: Path) -> None:
    """Guards servers in a terminal: its end is theirs, drained and saved, rather than a reason to read files again."""
    memory = tmp_path / "memory.speculant"
    outer, inner = os.openpty()
    with serving(memory, terminal=inner) as (process, _):
        os.close(inner)
        os.kill(process.pid, signal.SIGHUP)  # by a user, while it is open
        assert process.stderr is not None
        assert "keys: there is no file of them" in process.stderr.readline()
        os.close(outer)
        assert process.wait(60) == 0
    assert memory.exists()


def running(address: str, key: str) -> float:
    """Return how many texts are decoded."""
    with urlopen(Request(f"{address}/metrics", headers={"x-api-key": key}), timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith("speculant_num_requests_running")))


def saves(address: str) -> float:
    """Return how often a server has saved its memory."""
    with urlopen(f"{address}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith("speculant_memory_saves_total")))


def refused(host: str, port: int) -> bool:
    """Return whether nobody listens there."""
    try:
        socket.create_connection((host, port)).close()
    except OSError:
        return True
    return False


def until(happened: Callable[[], bool]) -> None:
    """Wait until something has happened, a minute at most."""
    for _ in range(1200):
        if happened():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen")
