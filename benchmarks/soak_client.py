"""The soak test's HTTP client: complete answers, and the ways in which a client can misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

WINDOW = 4096  # bytes of the receive buffer of a slow reader
PART = 2048  # bytes that a slow reader reads at a time


@dataclass(slots=True)
class Answer:
    """The answer that a client received.

    Attributes:
        status: HTTP status; 0 if none arrived.
        body: the body, or the data of its events.
        whole: whether the answer was complete.
    """

    status: int = 0
    body: Any = None
    events: list[Any] = field(default_factory=list)
    whole: bool = False


class Client:
    """A client of one server, with a new connection for each request."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def ask(self, path: str, body: Any, *, stream: bool = False, pause: float = 0) -> Answer:
        """Return the whole answer; a positive `pause` between reads makes a slow reader."""
        reader, writer = await self._open(slow=pause > 0)
        try:
            writer.write(self._request(path, body))
            return await self._read(reader, stream=stream, pause=pause)
        finally:
            writer.close()

    async def get(self, path: str) -> str:
        """Return the body of a page."""
        reader, writer = await self._open()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return (_joined(body) if b"chunked" in head else body).decode()

    async def leave(self, path: str, body: Any, *, after: int, reset: bool) -> None:
        """Send a request, read `after` bytes, and close or reset the connection."""
        reader, writer = await self._open()
        writer.write(self._request(path, body))
        if after:
            await reader.read(after)
        else:
            await writer.drain()
        if reset:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        writer.close()

    async def send_half(self, path: str, body: Any) -> None:
        """Close the connection before the body is complete."""
        _, writer = await self._open()
        data = self._request(path, body)
        writer.write(data[: len(data) // 2])
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()

    async def stall(self, path: str, body: Any, *, seconds: float) -> bool:
        """Send a request, read nothing for `seconds`, and return whether the server has reset the connection."""
        _, writer = await self._open(slow=True, paused=True)
        writer.write(self._request(path, body))
        try:
            for _ in range(int(seconds * 10)):
                await asyncio.sleep(0.1)
                if _reset(writer):
                    return True
            return False
        finally:
            writer.transport.abort()

    async def garbage(self, data: bytes) -> bytes:
        """Send data that is not HTTP and return the server's answer."""
        reader, writer = await self._open()
        try:
            writer.write(data)
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def _open(
        self, *, slow: bool = False, paused: bool = False
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket.socket()
        connection.setblocking(False)
        if slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        await asyncio.get_running_loop().sock_connect(connection, (self._host, self._port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=PART if slow else 1 << 24)
        if paused:
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport can
        return reader, writer

    def _request(self, path: str, body: Any) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data

    async def _read(self, reader: asyncio.StreamReader, *, stream: bool, pause: float) -> Answer:
        data = b""
        while part := await reader.read(PART if pause else 1 << 16):
            data += part
            await asyncio.sleep(pause)
        head, _, body = data.partition(b"\r\n\r\n")
        answer = Answer(status=int(head.split(b" ")[1]))
        if b"chunked" in head:
            body = _joined(body)
        if stream and answer.status == 200:
            rows = [row.removeprefix(b"data: ") for row in body.split(b"\n\n") if row]
            answer.whole = rows[-1] == b"[DONE]"
            answer.events = [json.loads(row) for row in rows if row != b"[DONE]"]
        else:
            answer.body, answer.whole = json.loads(body), True
        return answer


def _joined(body: bytes) -> bytes:
    """Return a chunked body without its chunk headers."""
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    return b"".join(parts)


def _reset(writer: asyncio.StreamWriter) -> bool:
    """Return whether the peer has ended an unread connection; `TCP_INFO` begins with the connection's state."""
    state = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return int(state) != 1  # ESTABLISHED
