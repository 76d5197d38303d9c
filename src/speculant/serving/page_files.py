"""The page at `/`: three static files, which load nothing from elsewhere and hold nothing of anyone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import Response

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}


def add_page_files(app: FastAPI) -> None:
    """Serve the page's files."""
    folder = files("speculant.serving") / "page"
    for path, (name, media_type) in FILES.items():
        content = (folder / name).read_bytes()
        app.add_api_route(path, _sender(content, media_type), methods=["GET", "HEAD"], include_in_schema=False)


def _sender(content: bytes, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)

    return send
