"""Balancers in front of replicas: HAProxy with the settings in deploy/, or a small one where that is not installed."""

from __future__ import annotations

import re
import shutil
import socket
import socketserver
import subprocess
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redis_server import wait_for

HAPROXY = shutil.which("haproxy")
SETTINGS = Path(__file__).parents[1] / "deploy/haproxy.cfg"
CONVERSATION = "x-conversation-id"


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def listens(port: int) -> bool:
    """Return whether somebody listens on a port."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@contextmanager
def balancing(ports: list[int], folder: Path) -> Iterator[str]:
    """Balance over the replicas on two ports; yield the address."""
    port = free_port()
    with _haproxy(port, ports, folder) if HAPROXY and SETTINGS.exists() else _small(port, ports):
        wait_for(lambda: listens(port))
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _haproxy(port: int, ports: list[int], folder: Path) -> Iterator[None]:
    assert HAPROXY is not None
    text = re.sub(r"bind :\d+", f"bind 127.0.0.1:{port}", SETTINGS.read_text())
    for number, own in enumerate(ports, start=1):
        text, count = re.subn(rf"10\.0\.0\.{number}:\d+", f"127.0.0.1:{own}", text)
        assert count == 1
    file = folder / "haproxy.cfg"
    file.write_text(text)
    with subprocess.Popen([HAPROXY, "-db", "-f", str(file)]) as process:
        try:
            yield
        finally:
            process.terminate()


class _Handler(socketserver.StreamRequestHandler):
    """Sends a request to the replica of its conversation, or to another one where that does not listen."""

    def handle(self) -> None:
        """Pass a request on, and the answer back until it ends, or breaks off as it does."""
        ports: list[int] = self.server.ports  # type: ignore[attr-defined]
        head = b""
        while (line := self.rfile.readline()) not in (b"", b"\r\n"):
            head += line
        if not head:  # somebody asks whether anybody listens
            return
        fields = {
            name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in head.splitlines())
        }
        body = self.rfile.read(int(fields.get(b"content-length", b"0")))
        first = zlib.crc32(fields.get(CONVERSATION.encode(), b"")) % len(ports)
        for port in [*ports[first:], *ports[:first]]:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as replica:
                replica.sendall(re.sub(rb"(?im)^connection:.*\n", b"", head) + b"Connection: close\r\n\r\n" + body)
                while piece := replica.recv(1 << 16):
                    self.wfile.write(piece)
                return


@contextmanager
def _small(port: int, ports: list[int]) -> Iterator[None]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", port), _Handler) as server:
        server.ports = ports  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
