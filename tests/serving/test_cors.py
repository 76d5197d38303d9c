"""Which pages may ask from a browser: none, unless an origin is named."""

from __future__ import annotations

from typing import Any

import pytest

from servers import Connect, completion

pytestmark = pytest.mark.anyio
ALLOWED = "access-control-allow-origin"


def preflight(origin: str) -> dict[str, str]:
    """Return the headers of a browser's question before a request."""
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,authorization",
    }


async def test_no_origin_by_default(connect: Connect) -> None:
    """Guards the default: neither the question nor the answer names an origin."""
    async with connect() as client:
        asked = await client.options("/v1/completions", headers=preflight("https://page.example"))
        answer = await client.post("/v1/completions", json=completion(), headers={"Origin": "https://page.example"})
    assert asked.status_code == 405
    assert ALLOWED not in asked.headers
    assert ALLOWED not in answer.headers


@pytest.mark.parametrize("options", [{}, {"api_keys": ("key",)}])
async def test_named_origins_only(connect: Connect, options: dict[str, Any]) -> None:
    """Guards named origins, with keys too: a browser asks first without one, and must be able to read a refusal."""
    async with connect(cors_origins=("https://page.example",), **options) as client:
        asked = await client.options("/v1/completions", headers=preflight("https://page.example"))
        other = await client.options("/v1/completions", headers=preflight("https://other.example"))
        answers = [
            await client.post(
                "/v1/completions", json=completion(), headers={"Origin": origin, "Authorization": "Bearer key"}
            )
            for origin in ("https://page.example", "https://other.example")
        ]
        refused = await client.post("/v1/completions", json={}, headers={"Origin": "https://page.example"})
    assert asked.status_code == 200
    assert asked.headers[ALLOWED] == "https://page.example"
    assert other.status_code == 400
    assert ALLOWED not in other.headers
    assert [each.status_code for each in answers] == [200, 200]
    assert [each.headers.get(ALLOWED) for each in answers] == ["https://page.example", None]
    assert refused.status_code == (401 if options else 400)
    assert refused.headers[ALLOWED] == "https://page.example"
