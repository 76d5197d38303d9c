"""Clients that are slow, silent or gone, on real sockets: their connection and their place are free again."""

from __future__ import annotations

import json
import logging
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import pytest

from servers import completion, serving

HEAD = (
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)
LARGE = {"stream": True, "max_tokens": 400, "logprobs": 20}  # more than the kernel's buffers hold


@pytest.fixture
def listening(model: Any, tokenizer: Any) -> Any:
    """Return what serves on a port and yields the server and its address; the kernel keeps little of an answer."""

    @contextmanager
    def started(**options: Any) -> Iterator[tuple[Any, tuple[str, int]]]:
        with serving(model, tokenizer, buffer=4096, **options) as (server, url):
            host, port = url.removeprefix("http://").split(":")
            yield server, (host, int(port))

    return started


def connect(address: tuple[str, int], data: bytes = b"", *, window: int | None = None) -> socket.socket:
    """Return a connection on which this was sent; `window` bounds what the kernel takes for the client."""
    client = socket.socket()
    client.settimeout(60)
    if window is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    client.connect(address)
    client.sendall(data)
    return client


def request(**options: Any) -> bytes:
    """Return a whole request for a completion."""
    body = json.dumps(completion(**options)).encode()
    return HEAD.format(len(body)).encode() + body


def ask(address: tuple[str, int], **options: Any) -> Any:
    """Return the answer of a client that behaves."""
    url = f"http://{address[0]}:{address[1]}/v1/completions"
    sent = Request(url, json.dumps(completion(**options)).encode(), {"Content-Type": "application/json"})
    with urlopen(sent, timeout=60) as answer:
        return json.load(answer)


def metric(address: tuple[str, int], name: str) -> float:
    """Return a metric without labels of its own."""
    with urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return float(next(line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(f"speculant_{name}{{")))


def idle(address: tuple[str, int]) -> bool:
    """Return whether no text holds a place."""
    return metric(address, "num_requests_running") == metric(address, "num_requests_waiting") == 0


def until(happened: Callable[[], bool]) -> None:
    """Wait until something has happened, a minute at most."""
    for _ in range(6000):
        if happened():
            return
        time.sleep(0.01)
    pytest.fail("it did not happen")


def rest_of(client: socket.socket) -> bytes:
    """Return what a connection holds until its end, however it ends."""
    found = b""
    try:
        while part := client.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


def test_a_stream_that_is_not_read_is_cut_off(listening: Any) -> None:
    """Guards `stall_seconds`: the connection ends, though the client never reads, and others get their texts."""
    with listening(stall_seconds=0.2, max_concurrency=2) as (server, address):
        expected = ask(address, max_tokens=30)["choices"]
        with connect(address, request(**LARGE), window=4096) as slow:
            until(lambda: len(server.server_state.connections) == 1)
            assert ask(address, max_tokens=30)["choices"] == expected
            until(lambda: not server.server_state.connections)
            assert b"[DONE]" not in rest_of(slow)
        until(lambda: idle(address))


def test_an_answer_that_is_not_read_is_cut_off(listening: Any) -> None:
    """Guards answers that are not streamed: closing would wait for the client, which holds its socket."""
    with listening(stall_seconds=0.2) as (server, address):
        with connect(address, request(max_tokens=200, logprobs=20), window=4096):
            until(lambda: metric(address, "generation_tokens_total") == 200)
            until(lambda: not server.server_state.connections)
        until(lambda: idle(address))


def test_a_slow_reader_gets_its_answer(listening: Any) -> None:
    """Guards clients that are slow but read: what they have not read yet may take longer than `stall_seconds`."""
    with (
        listening(stall_seconds=0.3) as (_, address),
        connect(address, request(max_tokens=100, logprobs=20), window=4096) as slow,
    ):
        found = b""
        while b"usage" not in found:
            time.sleep(0.01)
            found += slow.recv(2048)
    assert b'"completion_tokens":100' in found


def test_an_unread_text_ends(listening: Any) -> None:
    """Guards `buffer_tokens`: what a client leaves unread is bounded, and its place is free for the next one."""
    with (
        listening(buffer_tokens=16, max_concurrency=1, max_queue=0, stall_seconds=60) as (_, address),
        connect(address, request(**LARGE), window=4096) as slow,
    ):
        until(lambda: metric(address, "request_cancellations_total") == 1)
        until(lambda: idle(address))
        assert metric(address, "generation_tokens_total") < 400
        assert ask(address, max_tokens=16)["usage"]["completion_tokens"] == 16
        assert b"slow_client" in rest_of_stream(slow)


def rest_of_stream(client: socket.socket) -> bytes:
    """Return what a stream holds until its last event."""
    found = b""
    while b"[DONE]" not in found:
        found += client.recv(1 << 16)
    return found


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the facts of the requests for texts that have been logged."""
    found = [vars(record).get("facts", {}) for record in caplog.records]
    return [facts for facts in found if facts.get("path") == "/v1/completions"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [True, False])
def test_a_vanished_client_frees_its_place(
    listening: Any, stream: bool, reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards connections that are closed or reset in the middle: decoding ends, and the log says how far it was."""
    caplog.set_level(logging.INFO, "speculant.serving.access")
    with listening(max_concurrency=1, max_queue=0) as (_, address):
        client = connect(address, request(max_tokens=400, stream=stream))
        until(lambda: metric(address, "generation_tokens_total") > 0)
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        until(lambda: idle(address))
        assert metric(address, "generation_tokens_total") < 400
        assert metric(address, "request_cancellations_total") == 1
        assert metric(address, "request_failures_total") == 0
        until(lambda: logged(caplog))
        [facts] = logged(caplog)
        assert facts["completion_tokens"] > 0
        assert (facts["status"], facts.get("disconnected")) == ((200, True) if stream else (499, None))
        assert ask(address)["usage"]["completion_tokens"] == 12


def test_bodies_must_arrive(listening: Any) -> None:
    """Guards `body_seconds`: 408, and the connection ends though the client would go on sending."""
    with (
        listening(body_seconds=0.2) as (server, address),
        connect(address, HEAD.format(1000).encode() + b"{") as client,
    ):
        found = rest_of(client)
        assert found.startswith(b"HTTP/1.1 408 ")
        assert b"body_timeout" in found
        until(lambda: not server.server_state.connections)


def test_large_bodies_get_their_answer(listening: Any) -> None:
    """Guards 413 for clients that send all before they read: closing at once would reset the connection."""
    with (
        listening(body_seconds=1) as (server, address),
        connect(address, HEAD.format(8_000_000).encode() + b" " * 8_000_000) as client,
    ):
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b'{"status":"ok"}' in rest_of(client)
        until(lambda: not server.server_state.connections)


@pytest.mark.parametrize("options", [{"max_body_bytes": 1000}, {"api_keys": ("key",)}])
def test_refused_bodies_get_their_answer(listening: Any, options: dict[str, Any]) -> None:
    """Guards the same for connections that end with the answer, and for bodies without a key."""
    head = HEAD.format(4_000_000).replace("\r\nHost", "\r\nConnection: close\r\nHost").encode()
    with (
        listening(**options) as (server, address),
        connect(address, head + b" " * 4_000_000) as client,
    ):
        found = rest_of(client)
        assert found.startswith(b"HTTP/1.1 401 " if "api_keys" in options else b"HTTP/1.1 413 ")
        assert found.endswith(b"}}")
        until(lambda: not server.server_state.connections)


def test_endless_bodies_end(listening: Any) -> None:
    """Guards against clients that go on sending after 413."""
    with (
        listening(body_seconds=0.2, max_body_bytes=1000) as (server, address),
        connect(address, HEAD.format(10**9).encode()) as client,
    ):
        until(lambda: not sent(client, b" " * 1000))
        until(lambda: not server.server_state.connections)


def sent(client: socket.socket, data: bytes) -> bool:
    """Return whether data could be sent."""
    try:
        client.sendall(data)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("data", [b"", b"GET /health HTTP/1.1\r\nHost: local"])
def test_headers_must_arrive(listening: Any, data: bytes) -> None:
    """Guards silent connections, which would hold sockets for ever; also after a first request."""
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with listening(body_seconds=0.2) as (server, address):
        with connect(address, data) as client:
            assert rest_of(client) == b""
        if data:
            with connect(address, whole) as client:
                until(lambda: server.server_state.total_requests == 1)
                client.sendall(data)
                assert rest_of(client).count(b"HTTP/1.1") == 1
        until(lambda: not server.server_state.connections)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Flood: 1\r\n" * 20_000,
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nZ\r\n",
    ],
)
def test_heads_that_are_none(listening: Any, head: bytes) -> None:
    """Guards floods of headers and what is no HTTP: 400 or nothing, and the connection ends."""
    with listening() as (server, address):
        try:
            client = connect(address, head)
        except OSError:  # it was closed while this was sent
            client = None
        if client is not None:
            with client:
                assert rest_of(client)[:13] in (b"HTTP/1.1 400 ", b"")
        until(lambda: not server.server_state.connections)
        assert ask(address)["usage"]["completion_tokens"] == 12


def test_the_oldest_idle_connection_makes_room(listening: Any) -> None:
    """Guards clients from connections that ask nothing: beyond `max_connections` the oldest of them is closed."""
    with listening(max_connections=4) as (server, address):
        held = [connect(address)]
        for count in range(2, 5):
            until(lambda count=count: len(server.server_state.connections) == count - 1)  # type: ignore[misc]
            held.append(connect(address))
        until(lambda: len(server.server_state.connections) == 4)
        assert ask(address)["usage"]["completion_tokens"] == 12
        assert rest_of(held[0]) == b""  # closed
        for each in held[1:]:
            each.settimeout(0.05)
            with pytest.raises(TimeoutError):
                each.recv(1)
        for each in held:
            each.close()


def test_health_has_room_of_its_own(listening: Any) -> None:
    """Guards load balancers: while every place is taken by requests others get 503, and `/health` answers."""
    head = HEAD.format(100).encode() + b"{"
    with listening(max_connections=2) as (server, address):
        held = [connect(address, head) for _ in range(2)]
        until(lambda: len(server.server_state.tasks) == 2)
        with connect(address, request()) as client:
            found = rest_of(client)
        assert found.startswith(b"HTTP/1.1 503 ")
        assert b"no_room" in found
        with urlopen(f"http://{address[0]}:{address[1]}/health", timeout=60) as answer:
            assert answer.status == 200
        for each in held:
            each.close()
        until(lambda: not server.server_state.tasks)
        assert ask(address)["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    "head",
    [
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"GET /health HTTP/1.1\r\nHost: localhost\nX-One: 1\r\n\r\n",
        b"GET /health HTTP/1.1\nHost: localhost\n\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-One: 1\r\n  2\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-One: 1\r\n\tContent-Length: 5\r\n\r\n",
    ],
)
@pytest.mark.parametrize("pipelined", [False, True])
def test_heads_with_two_readings_end_the_connection(listening: Any, head: bytes, pipelined: bool) -> None:
    """Guards against smuggled requests (RFC 9112): two lengths, bare line feeds, folded lines, behind a request too."""
    good = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with listening() as (_, address), connect(address, (good if pipelined else b"") + head + good) as client:
        statuses = re.findall(rb"HTTP/1.1 (\d+)", rest_of(client))
    assert statuses == [b"200"] * pipelined + [b"400"]
