"""What one key's requests leave is seen by no other key: cached prompts, metrics, and what the page shows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from servers import client_of, completion, make_app, make_speculator, running

pytestmark = pytest.mark.anyio
PROMPT = [3 + place % 50 for place in range(100)]


def bearer(key: str) -> dict[str, str]:
    """Return the headers of a request with a key."""
    return {"Authorization": f"Bearer {key}"}


async def cached(client: Any, key: str, prompt: list[int] = PROMPT) -> int:
    """Return how many tokens of a prompt were cached."""
    answer = await client.post("/v1/completions", json=completion(prompt, max_tokens=8), headers=bearer(key))
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("scope", ["shared", "key"])
async def test_cached_tokens_tell_nothing_of_other_keys(model: Any, tokenizer: Any, scope: str) -> None:
    """Guards the prefix cache: one key's prompts are found by that key alone, one after the other or at once."""
    app = make_app(make_speculator(model, tokenizer), api_keys=("one", "two"), memory_scope=scope)
    async with running(app), client_of(app) as client:
        assert await cached(client, "one") == 0
        assert await cached(client, "two") == 0
        assert await cached(client, "two") >= 96
        assert await cached(client, "one") >= 96
        other = [5, 5, *PROMPT]
        assert await asyncio.gather(*(cached(client, key, other) for key in ("one", "two"))) == [0, 0]


async def metrics(client: Any, key: str) -> dict[str, float]:
    """Return the metrics that a key is shown."""
    text = (await client.get("/metrics", headers=bearer(key))).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name.replace('{model_name="tiny"}', ""): float(value) for name, value in lines}


async def test_metrics_and_page_by_key(model: Any, tokenizer: Any) -> None:
    """Guards scope `key`: a key that has asked nothing is shown nothing of what another has."""
    app = make_app(make_speculator(model, tokenizer), api_keys=("one", "two"), memory_scope="key")
    async with running(app), client_of(app) as client:
        before = await metrics(client, "two"), (await client.get("/page/state", headers=bearer("two"))).json()
        for _ in range(2):
            await cached(client, "one")
        own, others = await metrics(client, "one"), await metrics(client, "two")
        states = [(await client.get("/page/state", headers=bearer(key))).json()["memory"] for key in ("one", "two")]
    assert own["speculant_generation_tokens_total"] == 16
    assert own["speculant_prompt_tokens_total"] == 200
    assert own["speculant_prefix_cache_hits_total"] == 99
    assert own["speculant_batch_size"] == 1
    assert own['speculant_http_requests_total{path="/v1/completions",status="200"}'] == 2
    assert states[0]["drafts"] > 0
    changing = ("created", "http_requests")  # by its own questions
    for name, value in others.items():
        if not any(part in name for part in changing):
            assert value == before[0].get(name, 0), name
    assert states[1] == before[1]["memory"]
    assert not any("completions" in name for name in others)


async def test_metrics_of_all_in_the_shared_scope(model: Any, tokenizer: Any) -> None:
    """Guards the shared scope: every key is shown the server's load."""
    app = make_app(make_speculator(model, tokenizer), api_keys=("one", "two"))
    async with running(app), client_of(app) as client:
        await cached(client, "one")
        assert (await metrics(client, "two"))["speculant_generation_tokens_total"] == 8
