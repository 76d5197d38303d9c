"""The page of the API: whole, without scripts, and safe whatever the schema holds."""

from __future__ import annotations

import re

import pytest

from servers import Connect
from speculant.serving.docs_page import render

pytestmark = pytest.mark.anyio


async def test_the_page_has_every_path_and_object(connect: Connect) -> None:
    """Guards `/docs`: all that the schema has, links that lead somewhere, under the page's policy, without a key."""
    async with connect(api_keys=("secret",)) as client:
        answer = await client.get("/docs")
        again = await client.get("/docs", headers={"If-None-Match": answer.headers["etag"]})
        assert (await client.get("/openapi.json")).status_code == 401
        schema = (await client.get("/openapi.json", headers={"x-api-key": "secret"})).json()
        for name in re.findall(r'(?:href|src)="(/static/[^"]+)"', answer.text):
            assert (await client.get(name)).status_code == 200
    assert answer.status_code == 200
    assert again.status_code == 304
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert not any(part in answer.text for part in ("<script", " style=", "https://"))
    ids = set(re.findall(r' id="([^"]+)"', answer.text))
    assert set(re.findall(r'href="#([^"]+)"', answer.text)) <= ids
    for path, methods in schema["paths"].items():
        for method in methods:
            assert f"{method}{path}" in ids
    assert set(schema["components"]["schemas"]) <= ids
    assert "as in vLLM: lower ones leave the queue earlier" in answer.text


def test_names_are_escaped() -> None:
    """Guards the page against markup in a schema."""
    bad = "<b>&\"'"
    schema = {
        "paths": {f"/{bad}": {"get": {"description": bad, "responses": {"200": {"description": bad}}}}},
        "components": {"schemas": {bad: {"properties": {bad: {"enum": [bad], "description": bad}}}}},
    }
    page = render(schema)
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
