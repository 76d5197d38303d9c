"""vLLM's fields of tokens: `return_token_ids`, and what becomes of special tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers import Connect, chat, client_of, completion, events, make_app, make_speculator, on_port, running
from speculant import Speculator
from speculant.options.serving import ServingOptions

pytestmark = pytest.mark.anyio


def chunks(text: str) -> list[dict[str, Any]]:
    """Return the chunks of a stream."""
    return [json.loads(each) for each in events(text)[:-1]]


def sent(streamed: list[dict[str, Any]]) -> list[int]:
    """Return the ids of a stream of one choice."""
    return [token for chunk in streamed for choice in chunk["choices"] for token in choice.get("token_ids", [])]


async def test_completions_return_ids(connect: Connect, speculator: Speculator) -> None:
    """Guards the ids of texts and of prompts, whole and streamed: the prompt's come with each choice's first chunk."""
    asked = completion(["Once upon a time", "The dog"], n=2, return_token_ids=True)
    prompts = [speculator.tokenizer(each)["input_ids"] for each in asked["prompt"] for _ in range(2)]
    async with connect() as client:
        whole = (await client.post("/v1/completions", json=asked)).json()
        streamed = chunks((await client.post("/v1/completions", json=asked | {"stream": True})).text)
        without = (await client.post("/v1/completions", json=completion())).json()
    assert [each["prompt_token_ids"] for each in whole["choices"]] == prompts
    found: list[list[int]] = [[], [], [], []]
    first: dict[int, Any] = {}
    for chunk in streamed:
        for choice in chunk["choices"]:
            found[choice["index"]] += choice["token_ids"]
            assert ("prompt_token_ids" in choice) == (choice["index"] not in first)
            first.setdefault(choice["index"], choice.get("prompt_token_ids"))
    assert [each["token_ids"] for each in whole["choices"]] == found
    assert [first[index] for index in range(4)] == prompts
    assert sum(map(len, found)) == whole["usage"]["completion_tokens"]
    assert without["choices"][0]["token_ids"] is None


async def test_ids_end_where_a_stop_string_does(connect: Connect, speculator: Speculator) -> None:
    """Guards a round that goes on behind the end of the text: only the text's tokens are told."""
    text = speculator.generate("Once upon a time", temperature=0, max_new_tokens=12).text
    asked = completion(stop=text[8:12], return_token_ids=True, echo=True)
    async with connect() as client:
        answer = (await client.post("/v1/completions", json=asked)).json()
        streamed = chunks((await client.post("/v1/completions", json=asked | {"stream": True})).text)
    ids = answer["choices"][0]["token_ids"]
    assert len(ids) == answer["usage"]["completion_tokens"] < 12
    assert sent(streamed) == ids
    assert "prompt_token_ids" in streamed[0]["choices"][0]


async def test_chats_return_ids(connect: Connect, speculator: Speculator) -> None:
    """Guards the chat's form: the prompt's ids beside the choices, in streams in the first chunk alone."""
    prompt = speculator.encode_chat([{"role": "user", "content": "Once upon a time"}])
    async with connect() as client:
        whole = (await client.post("/v1/chat/completions", json=chat(return_token_ids=True))).json()
        answer = await client.post("/v1/chat/completions", json=chat(return_token_ids=True, stream=True))
    streamed = chunks(answer.text)
    assert whole["prompt_token_ids"] == streamed[0]["prompt_token_ids"] == prompt
    assert not any("prompt_token_ids" in each for each in streamed[1:])
    ids = sent(streamed)
    assert whole["choices"][0]["token_ids"] == ids
    assert len(ids) == 12


async def test_calls_return_ids(ending_model: Any, calling: Any) -> None:
    """Guards ids of chunks that hold a call and no text: none is lost, none comes twice."""
    tool = {"type": "function", "function": {"name": "see", "parameters": {"type": "object", "properties": {}}}}
    asked = chat(tools=[tool], tool_choice="required", max_tokens=60, return_token_ids=True)
    app = make_app(make_speculator(ending_model, calling))
    async with running(app), client_of(app) as client:
        whole = (await client.post("/v1/chat/completions", json=asked)).json()
        streamed = chunks((await client.post("/v1/chat/completions", json=asked | {"stream": True})).text)
    ids = sent(streamed)
    assert whole["choices"][0]["token_ids"] == ids
    assert len(ids) == whole["usage"]["completion_tokens"]
    assert whole["choices"][0]["message"]["tool_calls"]


async def test_special_tokens_are_shown_where_they_are_asked_for(ending_model: Any, tokenizer: Any) -> None:
    """Guards `skip_special_tokens`: they are text, but for the one that ends the text, as in vLLM."""
    special, end = tokenizer.convert_tokens_to_ids(tokenizer.unk_token), tokenizer.eos_token_id
    assert special != end
    app = make_app(make_speculator(ending_model, tokenizer))
    forced = completion(logit_bias={str(special): 100}, max_tokens=3)
    async with running(app), client_of(app) as client:

        async def text(**options: Any) -> str:
            answer = await client.post("/v1/completions", json=forced | options)
            found: str = answer.json()["choices"][0]["text"]
            return found

        assert await text() == ""
        shown = await text(skip_special_tokens=False)
        assert shown.count(tokenizer.unk_token) == 3
        assert await text(skip_special_tokens=False, spaces_between_special_tokens=False) == tokenizer.unk_token * 3
        assert await text(logit_bias={str(end): 100}, skip_special_tokens=False) == ""
        stopped = await text(skip_special_tokens=False, stop=[tokenizer.unk_token])
        assert stopped.strip() == ""


def test_the_official_client_reads_ids(speculator: Speculator) -> None:
    """Guards the fields as extras of OpenAI's own client."""
    openai = pytest.importorskip("openai")
    settings = ServingOptions(port=0, max_new_tokens=40)
    with on_port(make_app(speculator, port=0), settings) as (_, address):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
        extra = {"return_token_ids": True, "priority": -3}
        found = client.completions.create(model="tiny", prompt="Once", max_tokens=5, temperature=0, extra_body=extra)
        assert len(found.choices[0].token_ids) == 5
        with client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Once"}], max_tokens=5, stream=True, extra_body=extra
        ) as stream:
            found = list(stream)
        assert found[0].prompt_token_ids
        assert sum(len(getattr(each.choices[0], "token_ids", ())) for each in found) == 5
