"""Processes that benchmarks start: one thread each, suspended while others are measured, with their CPU time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

READY_SECONDS = 600  # the first start compiles kernels
STOP_SECONDS = 30


class Process:
    """A running system.

    Attributes:
        name: what messages call it.
        command: the command that started it, without machine-specific paths.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        log: Path,
        *,
        variables: Mapping[str, str] | None = None,
        **pipes: Any,
    ) -> None:
        """Start the process with one thread for its passes.

        Args:
            name: what messages call it.
            command: its words.
            folder: the model's folder, of which only the name is kept.
            log: receives its standard error.
            variables: further environment variables.
            pipes: its other streams, as of `subprocess.Popen`.
        """
        self.name, self._log = name, log
        hidden = {sys.executable: "python", str(folder): folder.name}
        self.command = [hidden.get(word, Path(word).name if word.startswith("/") else word) for word in command]
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command, env=os.environ | threads | dict(variables or {}), stderr=errors, **pipes
            )

    def pause(self) -> None:
        """Suspend the process until `resume`."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process."""
        self.resume()
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU time used so far, in user and system mode."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory_mb(self) -> float:
        """Return the resident memory in megabytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)

    def counters(self) -> dict[str, int]:
        """Return the drafting counters so far; empty if the system has none."""
        return {}

    def failed(self) -> RuntimeError:
        """Return the error to raise if the process ended or does not answer."""
        return RuntimeError(f"{self.name} does not answer; its log ends with:\n{self._log.read_text()[-2000:]}")


class HttpProcess(Process):
    """A server that answers `GET /health` once it is ready.

    Attributes:
        port: where it listens on 127.0.0.1.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        folder: Path,
        log: Path,
        *,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start the server and wait until it is ready.

        Args:
            name, folder, log, variables: as of `Process`.
            command: returns its words, given the port.

        Raises:
            RuntimeError: it did not start; with the end of its log.
        """
        self.port = free_port()
        super().__init__(name, command(self.port), folder, log, variables=variables, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + READY_SECONDS
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise self.failed()
            time.sleep(0.2)

    def get(self, path: str) -> str:
        """Return the body of a page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as response:
            return str(response.read().decode())

    def _healthy(self) -> bool:
        try:
            return bool(self.get("/health"))
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False


def free_port() -> int:
    """Return a port of 127.0.0.1 at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
