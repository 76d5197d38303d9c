"""A real Redis or Valkey server for tests, which can be killed and started again."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BINARY = shutil.which("redis-server") or shutil.which("valkey-server")
needs_server = pytest.mark.skipif(BINARY is None, reason="there is no redis-server on this machine")
PATIENCE = 60.0  # seconds; what is waited for takes a fraction of one


class Server:
    """The server of one test; nothing of it is kept on disk."""

    def __init__(self, folder: Path, *, password: str | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._folder, self._password = folder, password
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Where it is."""
        secret = f":{self._password}@" if self._password else ""
        return f"redis://{secret}127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        assert BINARY is not None
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        if self._password:
            options += ["--requirepass", self._password]
        self._process = subprocess.Popen([BINARY, *options], cwd=self._folder, stdout=subprocess.DEVNULL)
        wait_for(self._answers)

    def kill(self) -> None:
        """End it as a crash would; streams are lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self) -> Any:
        """Return a client of redis-py."""
        import redis

        return redis.Redis.from_url(self.url)

    def _answers(self) -> bool:
        import redis

        client = self.client()
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
        finally:
            client.close()


def wait_for(condition: Callable[[], Any], *, seconds: float = PATIENCE) -> Any:
    """Wait until a condition holds, and return what it returned; so many seconds at most."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return found
