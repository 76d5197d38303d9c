"""Texts through the server are those of the library."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from servers import Connect, chat, completion, events, make_speculator
from speculant import Speculator

pytestmark = pytest.mark.anyio


def plain(speculator: Speculator, prompt: Any, **options: Any) -> Any:
    """Return the library's own result."""
    return speculator.generate(prompt, **{"temperature": 0, "max_new_tokens": 12} | options)


async def test_greedy_chat_is_the_librarys(connect: Connect, model: Any, tokenizer: Any) -> None:
    """Guards the chat template, options and usage."""
    messages = [{"role": "user", "content": "Once upon a time"}]
    alone = make_speculator(model, tokenizer)
    ids = alone.encode_chat(messages)
    async with connect() as client:
        answer = (await client.post("/v1/chat/completions", json=chat())).json()
    assert answer["choices"][0]["message"]["content"] == plain(alone, messages).text
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": len(ids),
        "completion_tokens": 12,
        "total_tokens": len(ids) + 12,
        "prompt_tokens_details": {"cached_tokens": 0, "image_tokens": 0, "audio_tokens": 0, "video_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert answer["model"] == "tiny"
    assert "metrics" not in answer


async def test_streamed_chat_joins_to_the_whole(connect: Connect) -> None:
    """Guards chunks: the role first, then text, a reason, usage at last, and the end."""
    async with connect() as client:
        whole = (await client.post("/v1/chat/completions", json=chat())).json()
        body = chat(stream=True, stream_options={"include_usage": True})
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *sent, done = events(answer.text)
    assert done == "[DONE]"
    chunks = [json.loads(each) for each in sent]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(each["choices"][0]["delta"].get("content", "") for each in chunks[:-1])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert all(each["usage"] is None for each in chunks[:-1])


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3, "temperature": 0.9},
        {"seed": 3, "temperature": 1.1, "top_p": 0.8, "top_k": 20, "min_p": 0.01},
        {"temperature": 0, "repetition_penalty": 1.3},
    ],
)
async def test_options_reach_the_sampler(connect: Connect, model: Any, tokenizer: Any, options: dict[str, Any]) -> None:
    """Guards every option of sampling: with a seed the text is the library's own."""
    alone = make_speculator(model, tokenizer)
    async with connect() as client:
        answer = (await client.post("/v1/completions", json=completion(**options))).json()
    assert answer["choices"][0]["text"] == plain(alone, "Once upon a time", **options).text


async def test_generation_config_stands_in(connect: Connect, model: Any, tokenizer: Any) -> None:
    """Guards `generation_config` of `transformers chat`: it counts where the request itself is silent."""
    alone = make_speculator(model, tokenizer)
    body = {"model": "tiny", "prompt": "Once upon a time"}
    config = {"do_sample": True, "temperature": 0.9, "top_k": 20, "max_new_tokens": 9, "transformers_version": "5.0"}
    async with connect() as client:

        async def text(config: dict[str, Any], **options: Any) -> str:
            sent = body | {"generation_config": json.dumps(config)} | options
            answer = await client.post("/v1/completions", json=sent)
            return str(answer.json()["choices"][0]["text"])

        sampled = await text(config, seed=3)
        greedy = await text(config | {"do_sample": False})
        own = await text(config, temperature=0, max_tokens=5)
        first = alone.generate(body["prompt"], temperature=0, max_new_tokens=9).ids
        ended = await text({"eos_token_id": [first[3]]}, temperature=0, max_tokens=12)
        refused = await client.post("/v1/completions", json=body | {"generation_config": '{"num_beams": 2}'})
        loaded = await client.post("/load_model", json={"model": "tiny"})
    assert sampled == plain(alone, body["prompt"], temperature=0.9, top_k=20, seed=3, max_new_tokens=9).text
    assert greedy == plain(alone, body["prompt"], max_new_tokens=9).text
    assert own == plain(alone, body["prompt"], max_new_tokens=5).text
    assert ended == plain(alone, body["prompt"], eos_token_id=[first[3]]).text
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "generation_config.num_beams"
    assert json.loads(events(loaded.text)[0]) == {"status": "ready", "model": "tiny", "cached": True}


async def test_choices_draw_with_seeds_of_their_own(connect: Connect, model: Any, tokenizer: Any) -> None:
    """Guards `n`: choice i is the text of seed + i, streamed or not."""
    alone = make_speculator(model, tokenizer)
    options = {"temperature": 1.0, "max_new_tokens": 10}
    texts = [plain(alone, "The dog", seed=5 + place, **options).text for place in range(3)]
    body = completion("The dog", temperature=1, seed=5, n=3, max_tokens=10)
    async with connect() as client:
        answer = (await client.post("/v1/completions", json=body)).json()
        streamed = await client.post("/v1/completions", json=body | {"stream": True})
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert answer["usage"]["completion_tokens"] == 30
    joined = ["", "", ""]
    for each in events(streamed.text)[:-1]:
        for choice in json.loads(each)["choices"]:
            joined[choice["index"]] += choice["text"]
    assert joined == texts


async def test_prompts_in_every_form(connect: Connect, tokenizer: Any) -> None:
    """Guards lists of prompts, token ids and `echo`."""
    texts = ["The dog", "A small house"]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    async with connect() as client:
        answers = [
            (await client.post("/v1/completions", json=completion(prompt))).json()["choices"]
            for prompt in (texts, ids, ids[0])
        ]
        echoed = (await client.post("/v1/completions", json=completion(texts, echo=True))).json()["choices"]
    assert [each["text"] for each in answers[0]] == [each["text"] for each in answers[1]]
    assert answers[2][0]["text"] == answers[0][0]["text"]
    assert [each["text"] for each in echoed] == [a + b["text"] for a, b in zip(texts, answers[0], strict=True)]


async def test_stop_strings_are_left_out(connect: Connect) -> None:
    """Guards `stop`: the text ends before it, streamed or not, whatever pieces it came in."""
    async with connect() as client:
        whole = (await client.post("/v1/completions", json=completion(max_tokens=40))).json()["choices"][0]["text"]
        stop = whole[len(whole) // 2 : len(whole) // 2 + 5]
        body = completion(max_tokens=40, stop=["never there", stop])
        answer = (await client.post("/v1/completions", json=body)).json()
        streamed = await client.post("/v1/completions", json=body | {"stream": True})
    choice = answer["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 40
    chunks = [json.loads(each)["choices"][0] for each in events(streamed.text)[:-1]]
    assert "".join(each["text"] for each in chunks) == choice["text"]
    assert chunks[-1]["finish_reason"] == "stop"


async def test_many_at_once_are_those_alone(connect: Connect, model: Any, tokenizer: Any) -> None:
    """Guards continuous batching behind the server: 8 together, 12 in all, some of them streamed."""
    alone = make_speculator(model, tokenizer)
    words = ("dog", "cat", "boy", "girl", "man", "sun", "bird", "fish", "tree", "car", "king", "moon")
    prompts = [f"The {word} went" for word in words]
    async with connect(max_concurrency=8) as client:

        async def ask(place: int, prompt: str) -> str:
            body = completion(prompt, max_tokens=10 + place, stream=place % 3 == 0)
            answer = await client.post("/v1/completions", json=body)
            if not body["stream"]:
                return str(answer.json()["choices"][0]["text"])
            return "".join(json.loads(each)["choices"][0]["text"] for each in events(answer.text)[:-1])

        texts = await asyncio.gather(*(ask(place, prompt) for place, prompt in enumerate(prompts)))
    expected = [plain(alone, prompt, max_new_tokens=10 + place).text for place, prompt in enumerate(prompts)]
    assert texts == expected


async def test_prediction_drafts_and_changes_nothing(connect: Connect) -> None:
    """Guards `prediction`: the text stays, drafts of the predicted text are accepted, and it reaches no memory."""
    async with connect(per_request_metrics=True) as client:
        first = (await client.post("/v1/chat/completions", json=chat(max_tokens=40))).json()
        text = first["choices"][0]["message"]["content"]
    async with connect(per_request_metrics=True) as client:
        prediction = {"type": "content", "content": text}
        second = (await client.post("/v1/chat/completions", json=chat(max_tokens=40, prediction=prediction))).json()
    assert second["choices"][0]["message"]["content"] == text
    measured = second["metrics"]["speculative_decoding"]
    assert measured["num_accepted_draft_tokens"] > 0
    assert measured["mean_acceptance_length"] > 1


@pytest.mark.parametrize("usage", [False, True])
async def test_metrics_of_streams(connect: Connect, usage: bool) -> None:
    """Guards clients that read the first choice of every chunk: only usage has a chunk of its own."""
    extra = {"stream_options": {"include_usage": True}} if usage else {}
    async with connect(per_request_metrics=True) as client:
        for path, body in (("/v1/chat/completions", chat(n=2, **extra)), ("/v1/completions", completion(**extra))):
            answer = await client.post(path, json=body | {"stream": True})
            chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
            assert all(chunk["choices"] for chunk in chunks[:-1])
            assert bool(chunks[-1]["choices"]) != usage
            assert ["metrics" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_per_request_metrics(connect: Connect) -> None:
    """Guards vLLM's form: steps and accepted tokens add up to the text; none are given for several choices."""
    async with connect(per_request_metrics=True) as client:
        body = completion("a a a a a a a a", max_tokens=40)
        measured = (await client.post("/v1/completions", json=body)).json()["metrics"]["speculative_decoding"]
        several = (await client.post("/v1/completions", json=completion(n=2))).json()["metrics"]
    assert sum(measured["acceptance_histogram"]) == measured["num_spec_steps"]
    accepted = sum(count * place for place, count in enumerate(measured["acceptance_histogram"]))
    assert accepted == measured["num_accepted_draft_tokens"]
    assert measured["num_spec_steps"] + accepted == 39
    assert several == {"speculative_decoding": None}
