"""`speculant serve` up to the point where it would wait for requests, and its end by signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from speculant.cli.main import main


def test_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards `--parameters`: the table, without a model."""
    assert main(["serve", "--parameters"]) == 0
    assert "| `temperature` | honoured | honoured |" in capsys.readouterr().out


def test_what_is_refused_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Guards unsafe hosts, ports in use and folders that do not exist: exit code 2 or 1, and the reason."""
    assert main(["serve", "--host", "0.0.0.0"]) == 2
    assert "--allow-no-key" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "--port" in capsys.readouterr().err
    assert main(["serve", "--memory", str(tmp_path / "no" / "memory")]) == 1
    assert "no folder" in capsys.readouterr().err


@pytest.mark.slow
def test_serves_and_ends_by_a_signal(tmp_path: Path) -> None:
    """Guards the command as users run it: the block on start, an answer, SIGTERM, and the saved memory."""
    memory = tmp_path / "memory.speculant"
    command = [
        sys.executable,
        "-m",
        "speculant",
        "serve",
        "--port",
        "0",
        "--memory",
        str(memory),
        "--log-format",
        "json",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = ""
        for line in process.stderr:
            if line.startswith("serving"):
                address = line.split(" on ")[1].split()[0]
            if line.startswith("docs"):
                break
        body = json.dumps({"model": "bundled", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0})
        request = Request(f"{address}/v1/completions", body.encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 8
        logged = json.loads(process.stderr.readline())
        assert (logged["path"], logged["status"], logged["completion_tokens"]) == ("/v1/completions", 200, 8)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 143
    assert memory.exists()
