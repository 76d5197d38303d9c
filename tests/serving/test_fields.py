"""Fields of vLLM's requests: what ends a text, what it must match, and switches of the chat template."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from servers import Connect, chat, make_speculator
from speculant import Speculator
from speculant.serving.lenience import UNUSED

pytestmark = pytest.mark.anyio
START = "Once upon a time"
SWITCHED = (
    "{% if enable_thinking is defined and not enable_thinking %}quick: {% endif %}"
    "{% if reasoning_effort %}{{ reasoning_effort }}: {% endif %}"
    "{% for m in messages %}{{ m.content }} {% endfor %}"
)


async def text(client: Any, **options: Any) -> Any:
    """Return the choice of a chat."""
    answer = await client.post("/v1/chat/completions", json=chat(temperature=0, **options))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


async def test_token_ids_end_texts_beside_the_models_own(connect: Connect, tokenizer: Any, ending: Speculator) -> None:
    """Guards `stop_token_ids`, `min_tokens` and `ignore_eos`, alone and together."""
    async with connect(served=ending) as client:
        endless = await client.post("/v1/chat/completions", json=chat(ignore_eos=True, guided_regex="a+"))
        assert (endless.status_code, "needs 'stop_token_ids'" in endless.text) == (400, True)
        whole = await text(client, max_tokens=24, ignore_eos=True)
        ids = ending.generate(
            [{"role": "user", "content": "Once upon a time"}], max_new_tokens=24, temperature=0, eos_token_id=-1
        ).ids
        assert whole["finish_reason"] == "length"
        assert len(ids) == 24
        first = ids.index(ids[6]) + 1
        stopped = await text(client, max_tokens=24, ignore_eos=True, stop_token_ids=[ids[6]])
        assert stopped["finish_reason"] == "stop"
        assert stopped["message"]["content"] == tokenizer.decode(ids[:first], skip_special_tokens=True)
        later = await text(client, max_tokens=24, ignore_eos=True, stop_token_ids=[ids[6]], min_tokens=first + 3)
        assert len(later["message"]["content"]) > len(stopped["message"]["content"])
        refused = await client.post("/v1/chat/completions", json=chat(stop_token_ids=[10_000_000]))
        assert refused.status_code == 400


async def test_guided_fields_are_structured_outputs(connect: Connect, ending: Speculator) -> None:
    """Guards vLLM's earlier names, and two constraints at once."""
    async with connect(served=ending) as client:
        choice = await text(client, guided_choice=["red", "blue"], max_tokens=20)
        assert choice["message"]["content"] in ("red", "blue")
        assert (await text(client, guided_regex="[ab]{3}", max_tokens=20))["message"]["content"].strip("ab") == ""
        both = await client.post("/v1/chat/completions", json=chat(guided_regex="a", guided_choice=["b"]))
        assert both.status_code == 400
        assert "one constraint" in both.json()["error"]["message"]


async def test_switches_reach_the_chat_template(connect: Connect, model: Any, tokenizer: Any) -> None:
    """Guards `chat_template_kwargs`, and the effort of reasoning by either name and in each protocol."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = SWITCHED
    async with connect(served=make_speculator(model, own)) as client:

        async def tokens(**options: Any) -> int:
            answer = await client.post("/v1/chat/completions", json=chat(max_tokens=1, **options))
            assert answer.status_code == 200, answer.text
            return int(answer.json()["usage"]["prompt_tokens"])

        plain = await tokens()
        assert await tokens(chat_template_kwargs={"enable_thinking": True}) == plain
        assert await tokens(chat_template_kwargs={"enable_thinking": False}) > plain
        high = await tokens(reasoning_effort="high")
        assert high > plain
        asked: dict[str, Any] = {"input": START, "max_output_tokens": 1, "reasoning": {"effort": "high"}}
        answer = await client.post("/v1/responses", json=asked)
        assert (answer.json()["usage"]["input_tokens"], UNUSED in answer.headers) == (high, False)
        asked = {"messages": [{"role": "user", "content": START}], "output_config": {"effort": "high"}}
        counted = await client.post("/v1/messages/count_tokens", json=asked)
        answer = await client.post("/v1/messages", json=asked | {"max_tokens": 1})
        assert (answer.json()["usage"]["input_tokens"], UNUSED in answer.headers) == (high, False)
        assert counted.json()["input_tokens"] == high
        for name in ("tokenize", "chat_template", "tools"):
            answer = await client.post("/v1/chat/completions", json=chat(chat_template_kwargs={name: True}))
            assert answer.status_code == 400
    own.chat_template = "{% if reasoning_effort == 'medium' %}{{ raise_exception('no') }}{% endif %}" + SWITCHED
    async with connect(served=make_speculator(model, own)) as client:
        asked = {"input": START, "max_output_tokens": 1, "reasoning": {"effort": "medium"}, "service_tier": "flex"}
        for stream in (False, True):
            answer = await client.post("/v1/responses", json=asked | {"stream": stream})
            assert (answer.status_code, answer.headers[UNUSED]) == (200, "service_tier, reasoning_effort")
        asked = {"messages": [{"role": "user", "content": START}], "output_config": {"effort": "medium"}}
        answer = await client.post("/v1/messages/count_tokens", json=asked)
        assert (answer.json()["input_tokens"], answer.headers[UNUSED]) == (plain, "reasoning_effort")
        assert await tokens(reasoning_effort="high") > plain
        refused = chat(chat_template_kwargs={"tokenize": True}, reasoning_effort="high")
        assert (await client.post("/v1/chat/completions", json=refused)).status_code == 400
    own.chat_template = SWITCHED.replace("reasoning_effort", "thinking_effort")
    async with connect(served=make_speculator(model, own)) as client:
        assert await tokens(reasoning_effort="high") > plain
    async with connect() as client:
        answer = await client.post("/v1/chat/completions", json=chat(max_tokens=1, reasoning_effort="high"))
        assert (answer.status_code, answer.headers[UNUSED]) == (200, "reasoning_effort")
