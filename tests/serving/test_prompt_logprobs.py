"""Log-probabilities of prompts, which evaluation harnesses sum: `echo` with `logprobs`, and `prompt_logprobs`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from servers import Connect, chat, completion, events, make_speculator

pytestmark = pytest.mark.anyio
TEXT = "The dog ran home"


def expected(model: Any, ids: list[int]) -> list[float]:
    """Return the log-probability of each token but the first."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return [float(logits[place, token]) for place, token in enumerate(ids[1:])]


async def test_echo_holds_the_prompt(connect: Connect, model: Any, tokenizer: Any) -> None:
    """Guards `echo` with `logprobs`: the prompt's tokens come before the text's, with the model's own figures."""
    ids = tokenizer(TEXT)["input_ids"]
    async with connect() as client:
        answer = await client.post("/v1/completions", json=completion(TEXT, echo=True, logprobs=2, max_tokens=3))
        plain = await client.post("/v1/completions", json=completion(TEXT, logprobs=2, max_tokens=3))
    [choice], [new] = answer.json()["choices"], plain.json()["choices"]
    found = choice["logprobs"]
    assert [len(values) for values in found.values()] == [len(ids) + 3] * 4
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    assert found["token_logprobs"][1 : len(ids)] == pytest.approx(expected(model, ids), abs=1e-4)
    assert {len(each) for each in found["top_logprobs"][1:]} == {2}
    assert found["token_logprobs"][len(ids) :] == pytest.approx(new["logprobs"]["token_logprobs"], abs=1e-4)
    assert found["text_offset"][len(ids)] == len(TEXT)
    assert choice["text"] == TEXT + new["text"]


@pytest.mark.parametrize("prompt", [TEXT, [TEXT, "A"], [5, 6, 7, 8], [5], [*range(3, 132)]])
async def test_the_prompt_alone(connect: Connect, prompt: Any) -> None:
    """Guards `max_tokens` 0: the echoed prompt and nothing else, for texts, lists, ids and a last row alone."""
    async with connect() as client:
        answer = await client.post("/v1/completions", json=completion(prompt, echo=True, logprobs=0, max_tokens=0))
        asked = await client.post("/v1/completions", json=completion(prompt, max_tokens=2, echo=True, logprobs=0))
    found, more = answer.json(), asked.json()
    assert found["usage"]["completion_tokens"] == 0
    assert found["usage"]["prompt_tokens"] == sum(len(each["logprobs"]["tokens"]) for each in found["choices"])
    for each, longer in zip(found["choices"], more["choices"], strict=True):
        assert each["finish_reason"] == "length"
        assert longer["text"].startswith(each["text"])
        count = len(each["logprobs"]["tokens"])
        assert longer["logprobs"]["token_logprobs"][1:count] == pytest.approx(each["logprobs"]["token_logprobs"][1:])


async def test_streams_hold_the_same(connect: Connect) -> None:
    """Guards streams of several choices: the first chunk of each is the prompt with its log-probabilities."""
    body = completion([TEXT, "A"], echo=True, logprobs=1, max_tokens=3, n=2)
    async with connect() as client:
        whole = (await client.post("/v1/completions", json=body)).json()["choices"]
        streamed = (await client.post("/v1/completions", json=body | {"stream": True})).text
    found: dict[int, dict[str, list[Any]]] = {}
    for each in events(streamed)[:-1]:
        for choice in json.loads(each)["choices"]:
            own = found.setdefault(choice["index"], {"text": [], "token_logprobs": [], "text_offset": []})
            own["text"].append(choice["text"])
            for name in ("token_logprobs", "text_offset"):
                own[name] += (choice["logprobs"] or {name: []})[name]
    for choice in whole:
        own = found[choice["index"]]
        assert "".join(own["text"]) == choice["text"]
        assert own["text_offset"] == choice["logprobs"]["text_offset"]
        assert own["token_logprobs"][1:] == pytest.approx(choice["logprobs"]["token_logprobs"][1:], abs=1e-4)


async def test_prompt_logprobs(connect: Connect, model: Any, tokenizer: Any) -> None:
    """Guards vLLM's parameter on both endpoints: by token id, with ranks and texts, the prompt's own token first."""
    speculator = make_speculator(model, tokenizer)
    async with connect() as client:
        text = await client.post("/v1/completions", json=completion(TEXT, prompt_logprobs=2, max_tokens=1))
        talk = await client.post("/v1/chat/completions", json=chat(TEXT, prompt_logprobs=0))
    found, ids = text.json()["choices"][0]["prompt_logprobs"], tokenizer(TEXT)["input_ids"]
    assert found[0] is None
    own = [each[str(token)] for each, token in zip(found[1:], ids[1:], strict=True)]
    assert [each["logprob"] for each in own] == pytest.approx(expected(model, ids), abs=1e-4)
    for each, token in zip(found[1:], ids[1:], strict=True):
        assert next(iter(each)) == str(token)
        assert {1, 2} <= {value["rank"] for value in each.values()}
        assert each[str(token)]["rank"] >= 1
    assert own[0]["decoded_token"].strip() == "The"
    chatted = speculator.encode_chat([{"role": "user", "content": TEXT}])
    assert len(talk.json()["prompt_logprobs"]) == len(chatted)
    assert {len(each) for each in talk.json()["prompt_logprobs"][1:]} == {1}


async def test_the_whole_prompt_is_computed(connect: Connect) -> None:
    """Guards long prompts, read in chunks, against the prefix cache, which would leave rows out."""
    prompt = [3 + place % 50 for place in range(400)]
    async with connect() as client:
        found = [
            (await client.post("/v1/completions", json=completion(prompt, echo=True, logprobs=0, max_tokens=0))).json()
            for _ in range(2)
        ]
    first, second = (each["choices"][0]["logprobs"]["token_logprobs"] for each in found)
    assert len(first) == 400
    assert first == second
    assert found[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("path", "changes", "param"),
    [
        ("completions", {"max_tokens": 0}, "max_tokens"),
        ("completions", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("completions", {"prompt_logprobs": 21}, "prompt_logprobs"),
        ("completions", {"prompt_logprobs": -1}, "prompt_logprobs"),
        ("chat/completions", {"max_tokens": 0}, "max_tokens"),
        ("chat/completions", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
async def test_what_is_refused(connect: Connect, path: str, changes: dict[str, Any], param: str) -> None:
    """Guards what has no answer, as vLLM refuses it: nothing at all, or figures of the prompt in a stream."""
    async with connect() as client:
        body = (chat(TEXT) if path.startswith("chat") else completion(TEXT)) | changes
        answer = await client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
