"""Files that are too large, too many, damaged or elsewhere are refused within bounded time and memory."""

from __future__ import annotations

import base64
import http.server
import io
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from PIL import Image

from media_models import build_media_model, make_processor
from servers import client_of, make_app, running
from speculant import Speculator
from speculant.serving.errors import ApiError
from speculant.serving.fetching import Fetcher

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def seeing() -> Speculator:
    """Return a speculator of a tiny model that takes images."""
    model, _ = build_media_model("llava")
    return Speculator.from_transformers(model, make_processor(), method="none", fast=False)


def image(size: tuple[int, int] = (8, 8)) -> bytes:
    """Return a PNG file."""
    file = io.BytesIO()
    Image.new("RGB", size).save(file, "PNG")
    return file.getvalue()


def bomb() -> bytes:
    """Return a PNG of a few kilobytes that claims 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1 << 20))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def encoded(data: bytes) -> str:
    """Return a data: URL."""
    return "data:image/png;base64," + base64.b64encode(data).decode()


def chat(*parts: dict[str, Any]) -> dict[str, Any]:
    """Return a request with these parts."""
    text = {"type": "text", "text": "w7"}
    return {"messages": [{"role": "user", "content": [*parts, text]}], "max_tokens": 2, "temperature": 0}


def picture(url: Any) -> dict[str, Any]:
    """Return a part with an image."""
    return {"type": "image_url", "image_url": {"url": url}}


BAD = {
    "bomb": (picture(encoded(bomb())), "pixels"),
    "truncated": (picture(encoded(image((64, 64))[:-40])), "cannot be read as an image"),
    "no image": (picture(encoded(b"%PDF-1.4 not an image")), "cannot be read as an image"),
    "svg": (picture(encoded(b"<svg xmlns='http://www.w3.org/2000/svg'/>")), "cannot be read as an image"),
    "no base64": (picture("data:image/png;base64,%%%"), "base64"),
    "empty": (picture(""), "holds"),
    "not text": (picture(7), "holds"),
    "no object": ({"type": "image_url", "image_url": "x"}, "holds"),
    "another detail": ({"type": "image_url", "image_url": {"url": encoded(image()), "detail": "extreme"}}, "detail"),
    "sound": ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "reads text and image"),
    "video": ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}, "reads text and image"),
    "unknown": ({"type": "hologram", "hologram": {}}, "not supported"),
    "elsewhere": (picture("https://example.com/a.png"), "fetches nothing"),
    "a file": (picture("file:///etc/passwd"), "begins with https"),
    "a path": (picture("/etc/passwd"), "begins with https"),
    "large": (picture("data:image/png;base64," + "A" * 300_000), "larger"),
}


async def test_bad_files_are_refused_with_the_reason(seeing: Speculator) -> None:
    """Guards the server: each is a 400 that names the part, and a good image is taken after all of them."""
    app = make_app(seeing, max_media_bytes=200_000, max_body_bytes=1 << 20)
    async with running(app), client_of(app) as client:
        for name, (part, said) in BAD.items():
            answer = await client.post("/v1/chat/completions", json=chat(part))
            error = answer.json()["error"]
            assert answer.status_code == 400, name
            assert said in error["message"], (name, error)
            assert error["param"] == "messages.0.content.0", name
        many = chat(*[picture(encoded(image()))] * 9)
        answer = await client.post("/v1/chat/completions", json=many)
        assert "at most 8" in answer.json()["error"]["message"]
        good = await client.post("/v1/chat/completions", json=chat(picture(encoded(image()))))
        assert good.status_code == 200


class Site(http.server.BaseHTTPRequestHandler):
    """A host with a good file, one without an end, a slow one and a redirect."""

    def do_GET(self) -> None:
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/good.png")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        try:
            if self.path == "/good.png":
                self.wfile.write(image())
            elif self.path == "/slow":
                for _ in range(100):
                    self.wfile.write(b"x")
                    time.sleep(0.05)
            else:
                while True:
                    self.wfile.write(bytes(65536))
        except OSError:
            pass

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[str]:
    """Return the address of a site on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


async def test_listed_hosts_are_fetched_from_within_limits(seeing: Speculator, site: str) -> None:
    """Guards fetching: the file comes, and what is endless, slow or elsewhere ends at the limits."""
    app = make_app(seeing, media_hosts=("127.0.0.1",), max_media_bytes=100_000, fetch_seconds=0.5)
    async with running(app), client_of(app) as client:

        async def ask(path: str) -> httpx2.Response:
            return await client.post("/v1/chat/completions", json=chat(picture(site + path)))

        assert (await ask("/good.png")).status_code == 200
        for path, said in (("/endless", "larger"), ("/slow", "could not be fetched"), ("/redirect", "not followed")):
            began = time.monotonic()
            answer = await ask(path)
            assert answer.status_code == 400
            assert said in answer.json()["error"]["message"]
            assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("hosts", "url"),
    [
        (["*"], "http://127.0.0.1:9/x"),
        (["*"], "http://[::1]:9/x"),
        (["*"], "http://[::ffff:127.0.0.1]:9/x"),
        (["*"], "http://10.0.0.1/x"),
        (["*"], "http://169.254.169.254/latest"),
        (["*"], "http://0.0.0.0/x"),
        (["localhost"], "http://localhost:9/x"),
        (["example.com"], "http://example.com@127.0.0.1/x"),
        (["example.com"], "http://example.com.evil.org/x"),
        (["*.example.com"], "http://notexample.com/x"),
        (["example.com"], "ftp://example.com/x"),
        (["*"], "http://127.1:99999/x"),
        (["*"], "http://[zz]/x"),
    ],
)
def test_private_addresses_are_never_asked(hosts: list[str], url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the server's own network: no connection is made, whatever form an address has."""

    def connect(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was made")

    monkeypatch.setattr("speculant.serving.fetching.socket.create_connection", connect)
    with pytest.raises(ApiError):
        Fetcher(hosts, 1000, 1.0).fetch(url, kind="image", param="x")


def test_the_checked_address_is_the_one_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards names that resolve otherwise the second time: they are resolved once."""
    answers, asked = iter([[(2, 1, 6, "", ("93.184.216.34", 80))]]), []
    monkeypatch.setattr("speculant.serving.fetching.socket.getaddrinfo", lambda *_, **__: next(answers))

    def connect(address: Any, timeout: float) -> None:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr("speculant.serving.fetching.socket.create_connection", connect)
    with pytest.raises(ApiError, match="could not be fetched"):
        Fetcher(["a.example.com"], 1000, 1.0).fetch("http://a.example.com/x", kind="video", param="x")
    assert asked == [("93.184.216.34", 80)]
