"""The page at `/` and its files below `/static/`, which refer to no other host and contain no user data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.responses import Response

from speculant.serving.errors import ApiError
from speculant.serving.keys import STATIC

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
START = "index.html"


def add_page_files(app: FastAPI) -> None:
    """Serve the page's files."""
    sent = {path: PageFile(content, MEDIA_TYPES[PurePosixPath(path).suffix]) for path, content in page_files().items()}

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def start(request: Request) -> Response:
        return sent[START].answer(request)

    @app.api_route(STATIC + "{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def static(path: str, request: Request) -> Response:
        if path not in sent:
            raise ApiError(404, "the page has no such file.", code="not_found")
        return sent[path].answer(request)


def page_files() -> dict[str, bytes]:
    """Return the files of the page by their paths below `/static/`; other types, such as licences, are not served."""
    return dict(_walk(files("speculant.serving") / "page", ""))


def _walk(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _walk(each, f"{path}{each.name}/")
        elif PurePosixPath(each.name).suffix in MEDIA_TYPES:
            yield path + each.name, each.read_bytes()


class PageFile:
    """A file of the page, and its ETag, with which a browser can revalidate its copy."""

    def __init__(self, content: bytes, media_type: str) -> None:
        self._content, self._media_type = content, media_type
        self._headers = HEADERS | {"ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}

    def answer(self, request: Request) -> Response:
        """Return the file, or 304 if it has not changed."""
        if request.headers.get("if-none-match") == self._headers["ETag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, media_type=self._media_type, headers=self._headers)
