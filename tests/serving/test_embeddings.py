"""`POST /v1/embeddings`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch

from servers import Connect, chat, completion, make_app, make_speculator, on_port
from speculant import Speculator
from speculant.options.serving import ServingOptions

pytestmark = pytest.mark.anyio
TEXTS = ["Once upon a time", "The dog", "A cat sat on the mat and looked at the sky for a long, long time"]


def own(speculator: Speculator, text: str) -> torch.Tensor:
    """Return the model's own mean embedding of a text."""
    ids = torch.tensor([speculator.tokenizer(text)["input_ids"]])
    with torch.no_grad():
        states = speculator.model.base_model(ids).last_hidden_state[0]
    return torch.nn.functional.normalize(states.mean(0), dim=0)


def test_the_official_client(speculator: Speculator) -> None:
    """Guards OpenAI's client: base64 as it asks by default, floats, dimensions, token ids, usage."""
    openai = pytest.importorskip("openai")
    expected = torch.stack([own(speculator, text) for text in TEXTS])
    ids = [speculator.tokenizer(text)["input_ids"] for text in TEXTS]
    with on_port(make_app(speculator, port=0), ServingOptions(port=0)) as (_, address):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
        create = client.embeddings.create
        found = create(model="tiny", input=TEXTS)
        assert [each.index for each in found.data] == [0, 1, 2]
        torch.testing.assert_close(
            torch.tensor([each.embedding for each in found.data]), expected, atol=2e-5, rtol=1e-4
        )
        assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, ids))
        floats = create(model="tiny", input=TEXTS, encoding_format="float")
        same = [torch.tensor(each.embedding) for each in floats.data]
        assert all(torch.equal(a, torch.tensor(b.embedding)) for a, b in zip(same, found.data, strict=True))
        by_ids = create(model="tiny", input=ids)
        torch.testing.assert_close(
            torch.tensor([each.embedding for each in by_ids.data]), expected, atol=2e-5, rtol=1e-4
        )
        one = create(model="tiny", input=ids[0], dimensions=4)
        short = torch.nn.functional.normalize(expected[0, :4], dim=0)
        torch.testing.assert_close(torch.tensor(one.data[0].embedding), short, atol=2e-5, rtol=1e-4)
        last = create(model="tiny", input=TEXTS[0], extra_body={"pooling": "last"})
        assert last.data[0].embedding != found.data[0].embedding


async def test_texts_are_decoded_as_without_embeddings(
    connect: Connect, speculator: Speculator, model: Any, tokenizer: Any
) -> None:
    """Guards decoding beside embeddings: both go on together, and the texts stay what they are."""
    async with connect(prompt_chunk=16) as client:
        alone = [(await client.post("/v1/completions", json=completion(text))).json() for text in TEXTS]
    async with connect(served=make_speculator(model, tokenizer), prompt_chunk=16) as client:
        texts = [client.post("/v1/completions", json=completion(text)) for text in TEXTS]
        vectors = [client.post("/v1/embeddings", json={"input": TEXTS * 5}) for _ in range(3)]
        answers = await asyncio.gather(*texts, *vectors)
    assert all(answer.status_code == 200 for answer in answers)
    for answer, before in zip(answers, alone, strict=False):
        assert answer.json()["choices"] == before["choices"]
    expected = torch.stack([own(speculator, text) for text in TEXTS] * 5)
    for answer in answers[3:]:
        found = torch.tensor([each["embedding"] for each in answer.json()["data"]])
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


async def test_what_cannot_be_embedded_is_refused(connect: Connect) -> None:
    """Guards the errors: empty inputs, too many dimensions, unknown ids, another model, and a full queue."""
    async with connect(max_prompt_tokens=20) as client:
        for body, said in (
            ({"input": ""}, "empty"),
            ({"input": []}, "input"),
            ({"input": ["a", ""]}, "empty"),
            ({"input": [[]]}, "input"),
            ({"input": [9_999_999]}, "below"),
            ({"input": "a " * 50}, "at most 20"),
            ({"input": "a", "dimensions": 100_000}, "dimensions"),
            ({"input": "a", "model": "other"}, "no model"),
            ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
            ({"input": "a", "mood": 1}, "no parameter"),
        ):
            answer = await client.post("/v1/embeddings", json=body)
            assert answer.status_code in (400, 404), answer.text
            assert said in answer.json()["error"]["message"]
    async with connect(max_concurrency=1, max_queue=0) as client:
        answers = await asyncio.gather(*(client.post("/v1/embeddings", json={"input": TEXTS}) for _ in range(3)))
        assert sorted(answer.status_code for answer in answers) == [200, 429, 429]


async def test_a_model_without_hidden_states_says_so(connect: Connect, speculator: Speculator) -> None:
    """Guards llama.cpp and others: the error names the way out, and texts are decoded."""
    runner = speculator.engine._runner  # type: ignore[attr-defined]
    runner.capabilities = replace(runner.capabilities, hidden_layers=0)
    async with connect() as client:
        answer = await client.post("/v1/embeddings", json={"input": "a"})
        assert answer.status_code == 400
        assert "no hidden states" in answer.json()["error"]["message"]
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200


async def test_requests_end_with_their_client_and_in_time(connect: Connect, speculator: Speculator) -> None:
    """Guards the queue: a client that leaves and a deadline free the places, and nothing is left behind."""
    many = {"input": ["Once upon a time there was a dog"] * 400}
    async with connect(prompt_chunk=8, request_seconds=1e-6, max_concurrency=1, max_queue=0) as client:
        late = await client.post("/v1/embeddings", json=many)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    async with connect(prompt_chunk=8, max_concurrency=1, max_queue=0) as client:
        asked = asyncio.create_task(client.post("/v1/embeddings", json=many))
        await asyncio.sleep(0.05)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        answer = await client.post("/v1/embeddings", json={"input": "Once"})
        assert answer.status_code == 200, answer.text


async def test_a_fault_ends_the_request_alone(connect: Connect, speculator: Speculator, monkeypatch: Any) -> None:
    """Guards the thread: an error of a pass is a 500 that tells nothing, memory that is full a 503; others go on."""
    from speculant.api.embeddings import Embedder
    from speculant.core.errors import OutOfMemoryError

    def failing(error: Exception) -> Any:
        def fail(*_: Any) -> None:
            raise error

        return fail

    async with connect() as client:
        for name, error, status in (
            ("_read", ZeroDivisionError("secret"), 500),
            ("_read", OutOfMemoryError("full"), 503),
            ("_choose", ZeroDivisionError("secret"), 500),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(Embedder, name, failing(error))
                answer = await client.post("/v1/embeddings", json={"input": TEXTS})
            assert answer.status_code == status
            assert "secret" not in answer.text
            assert (await client.post("/v1/embeddings", json={"input": "Once"})).status_code == 200
        assert (await client.get("/ready")).status_code == 200
