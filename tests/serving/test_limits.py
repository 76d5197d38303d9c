"""Limits, keys and bad input: refused at once, by name, and without touching other requests."""

from __future__ import annotations

import asyncio
import json
from itertools import product
from typing import Any

import pytest

from servers import Connect, chat, completion, make_app, running
from speculant.serving.bodies import BodyLimit

pytestmark = pytest.mark.anyio
JSON = {"Content-Type": "application/json"}


WRONG: list[tuple[dict[str, Any], str | None, int]] = [
    ({"max_token": 3}, "max_token", 400),
    ({"stream": True, "stream_options": {"include_usag": True}}, "stream_options.include_usag", 400),
    ({"messages": None}, "messages", 400),
    ({"temperature": "0.5"}, "temperature", 400),
    ({"temperature": -1}, "temperature", 400),
    ({"top_p": 0}, "top_p", 400),
    ({"n": 0}, "n", 400),
    ({"n": 17}, "n", 400),
    ({"n": True}, "n", 400),
    ({"max_tokens": 1000}, "max_tokens", 400),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", 400),
    ({"min_tokens": 16_000}, "min_tokens", 400),
    ({"stop": [""]}, "stop.0", 400),
    ({"model": "other"}, "model", 404),
    ({"model": "\ud800"}, "model", 404),
    ({"\ud800": 1}, None, 400),
    ({"audio": {"voice": "x", "format": "wav"}}, "audio", 400),
    ({"web_search_options": {}}, "web_search_options", 400),
    ({"stream_options": {"include_usage": True}}, "stream_options", 400),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", 400),
    ({"tool_choice": "required"}, "tool_choice", 400),
    ({"messages": []}, "messages", 400),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content", 400),
    ({"messages": [{"role": "user", "content": "word " * 3000}]}, "messages", 400),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, None, 400),
]


async def test_bad_parameters_are_named(connect: Connect) -> None:
    """Guards every kind of refusal: OpenAI's form, with the parameter's name."""
    async with connect() as client:
        for changes, param, status in WRONG:
            answer = await client.post("/v1/chat/completions", content=json.dumps(chat() | changes), headers=JSON)
            assert answer.status_code == status, (param, answer.text)
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] == "invalid_request_error"
            if param is not None:
                assert error["param"] == param


async def test_a_value_that_has_none_of_its_forms_is_named_by_its_parameter(connect: Connect) -> None:
    """Guards texts that may be lists: pydantic puts the names of its types into the place of the error."""
    async with connect() as client:
        for changes, param, message in (
            ({"prompt": 5}, "prompt", "Input should be a valid string or a valid list."),
            ({"stop": ["a", 3]}, "stop.1", "Input should be a valid string."),
            ({"stop": ["a"] * 17}, "stop", "List should have at most 16 items after validation, not 17."),
        ):
            error = (await client.post("/v1/completions", json=completion() | changes)).json()["error"]
            assert (error["param"], error["message"]) == (param, f"'{param}': {message}")


async def test_unknown_parameters_come_with_the_near_name(connect: Connect) -> None:
    """Guards the way out of a misspelt parameter, at the top and in objects."""
    async with connect() as client:
        for changes, message in (
            ({"max_token": 3}, "there is no parameter 'max_token'; did you mean 'max_tokens'?"),
            (
                {"stream": True, "stream_options": {"include_usag": True}},
                "there is no parameter 'stream_options.include_usag'; did you mean 'include_usage'?",
            ),
            ({"qqq": 3}, "there is no parameter 'qqq'; leave it out."),
        ):
            error = (await client.post("/v1/chat/completions", json=chat() | changes)).json()["error"]
            assert (error["message"], error["code"]) == (message, "unknown_parameter")
        swapped = (("/v1/completions", "messages"), ("/v1/chat/completions", "prompt"))
        for (path, name), (twin, _) in zip(swapped, reversed(swapped), strict=True):
            error = (await client.post(path, json={name: "A dog"})).json()["error"]
            assert error["message"] == f"there is no parameter '{name}'; {twin} takes it."


@pytest.mark.parametrize(
    ("allowed", "asked", "named"), [(2000, 3000, "512 positions"), (400, 500, "allows 400"), (400, 1000, "allows 400")]
)
async def test_the_smaller_limit_of_new_tokens_is_named(connect: Connect, allowed: int, asked: int, named: str) -> None:
    """Guards the message: who heeds the server's limit must not meet the model's smaller one next."""
    async with connect(max_new_tokens=allowed) as client:
        answer = await client.post("/v1/completions", json=completion(max_tokens=asked))
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]


async def test_bodies_that_are_not_declared_as_json(connect: Connect) -> None:
    """Guards curl without a header: 415 names the header to send."""
    kinds = ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data")
    cases = product(("/v1/chat/completions", "/tokenize"), ({}, *({"Content-Type": kind} for kind in kinds)))
    async with connect() as client:
        for path, headers in cases:
            answer = await client.post(path, content=json.dumps(chat()).encode(), headers=headers)
            assert answer.status_code == 415, (path, headers, answer.text)
            assert "Content-Type: application/json" in answer.json()["error"]["message"]


async def test_paths_and_methods_that_there_are_not(connect: Connect) -> None:
    """Guards the way out: the near path, or the right method."""
    async with connect() as client:
        misspelt = await client.post("/v1/chat/completion", json=chat())
        other = await client.get("/nothing")
        wrong = await client.get("/v1/completions")
    assert (misspelt.status_code, other.status_code, wrong.status_code) == (404, 404, 405)
    assert "did you mean /v1/chat/completions?" in misspelt.json()["error"]["message"]
    assert "/openapi.json" in other.json()["error"]["message"]
    assert "send POST" in wrong.json()["error"]["message"]
    assert wrong.headers["allow"] == "POST"


async def test_neutral_values_are_taken(connect: Connect) -> None:
    """Guards clients that send every field: values that ask for nothing are no reason to refuse."""
    neutral = {
        "logprobs": False, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "n": 1, "tools": None,
        "response_format": {"type": "text"}, "store": False, "top_p": 1, "seed": None, "parallel_tool_calls": True,
    }  # fmt: skip
    async with connect() as client:
        answer = await client.post("/v1/chat/completions", json=chat(**neutral))
    assert answer.status_code == 200, answer.text


MALFORMED = [b"{", b"[]", b"", b'{"model": "\xff"}', b"[" * 100_000, b"null", b'{"a": NaN}']
MALFORMED += [b'{"n": ' + b"9" * 5000 + b"}"]


async def test_malformed_bodies(connect: Connect) -> None:
    """Guards against bodies that are no request: 400, never a fault."""
    paths = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
    async with connect() as client:
        for path, content in product(paths, MALFORMED):
            answer = await client.post(path, content=content, headers=JSON)
            assert answer.status_code == 400, (path, content[:20], answer.text)
            assert answer.json()["error"]["message"]


async def test_large_bodies_are_not_read(connect: Connect) -> None:
    """Guards the limit of bytes, announced or streamed without a length."""

    async def streamed() -> Any:
        for _ in range(100):
            yield b" " * 100

    async with connect(max_body_bytes=2000) as client:
        whole = await client.post("/v1/completions", content=b" " * 2001)
        parts = await client.post("/v1/completions", content=streamed())
        small = await client.post("/v1/completions", json=completion())
    assert (whole.status_code, parts.status_code, small.status_code) == (413, 413, 200)


async def test_keys(connect: Connect) -> None:
    """Guards every path but health and the page: only valid keys are let in."""
    async with connect(api_keys=("one", "two")) as client:
        for value in (None, "", "Bearer", "Bearer three", "Basic one", "one"):
            headers = {} if value is None else {"Authorization": value}
            for path in ("/v1/models", "/metrics", "/openapi.json"):
                answer = await client.get(path, headers=headers)
                assert answer.status_code == 401, (value, path)
                assert answer.json()["error"]["code"] == "invalid_api_key"
        for key in ("one", "two"):
            assert (await client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})).status_code == 200
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/")).status_code == 200


async def test_other_hosts_names_are_refused_on_loopback(connect: Connect) -> None:
    """Guards against pages that reach a loopback server without keys by a name of their own."""
    async with connect() as client:
        refused = await client.get("/v1/models", headers={"Host": "evil.example"})
        assert refused.status_code == 400
        assert "SPECULANT_ALLOWED_HOSTS" in refused.json()["error"]["message"]
        assert (await client.get("/v1/models", headers={"Host": "localhost:8000"})).status_code == 200


async def test_queue_is_bounded(connect: Connect) -> None:
    """Guards the queue: what does not fit gets 429, and places are free again when texts have ended."""
    async with connect(max_concurrency=2, max_queue=1) as client:
        bodies = [completion(max_tokens=150) for _ in range(6)]
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        later = await client.post("/v1/completions", json=completion())
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200, 200, 200, 429, 429, 429]
    assert later.status_code == 200


async def test_time_limit(connect: Connect) -> None:
    """Guards the limit of time: a request beyond it ends with 504, and its place is free."""
    async with connect(request_seconds=1e-6) as client:
        answer = await client.post("/v1/completions", json=completion(max_tokens=300))
        metrics = (await client.get("/metrics")).text
    assert answer.status_code == 504
    assert 'speculant_num_requests_running{model_name="tiny"} 0.0' in metrics


async def test_disconnect_frees_the_place(speculator: Any) -> None:
    """Guards vanished clients, streamed or not: decoding stops and the place is free."""
    app = make_app(speculator, max_concurrency=1, max_queue=0)
    async with running(app):
        for stream in (True, False):
            body = json.dumps(completion(max_tokens=400, stream=stream)).encode()
            sent: list[Any] = []
            asked = asyncio.Event()

            async def receive(body: bytes = body, asked: asyncio.Event = asked) -> Any:
                if not asked.is_set():
                    asked.set()
                    return {"type": "http.request", "body": body, "more_body": False}
                await asyncio.sleep(0.05)
                return {"type": "http.disconnect"}

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            scope = {
                "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions",
                "query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1", "asgi": {},
                "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
                "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
            }  # fmt: skip
            await app(scope, receive, send)
            for _ in range(200):
                if b'speculant_num_requests_running{model_name="tiny"} 0.0' in await page(app):
                    break
                await asyncio.sleep(0.01)
            else:
                pytest.fail("the place is not free")
            assert speculator.last_stats.tokens < 400


async def page(app: Any) -> bytes:
    """Return the metrics of an application."""
    from servers import client_of

    async with client_of(app) as client:
        return bytes((await client.get("/metrics")).content)


async def test_one_failure_does_not_touch_others(connect: Connect, speculator: Any) -> None:
    """Guards the engine thread: a request whose preparation breaks gets 500, those beside it their texts."""
    prepare = speculator.prepare

    def breaking(prompt: Any, **options: Any) -> Any:
        if options.get("max_new_tokens") == 13:
            raise ZeroDivisionError("a fault of the library")
        return prepare(prompt, **options)

    speculator.prepare = breaking
    async with connect() as client:
        answers = await asyncio.gather(
            *(client.post("/v1/completions", json=completion(max_tokens=count)) for count in (12, 13, 14, 13))
        )
        assert (await client.get("/health")).status_code == 200
    assert [answer.status_code for answer in answers] == [200, 500, 200, 500]
    assert "ZeroDivision" not in answers[1].text


async def test_a_full_device_ends_the_youngest(connect: Connect, speculator: Any, monkeypatch: Any) -> None:
    """Guards the policy of full devices: the youngest request gets 503, the older ones go on."""
    from speculant.api.batch import Batch
    from speculant.core.errors import OutOfMemoryError

    step, faults = Batch.step, []

    def failing(self: Any) -> Any:
        if len(self) == 2 and not faults:
            faults.append(1)
            raise OutOfMemoryError("full")
        return step(self)

    monkeypatch.setattr(Batch, "step", failing)
    async with connect() as client:
        old = asyncio.create_task(client.post("/v1/completions", json=completion(max_tokens=200)))
        await asyncio.sleep(0.1)
        young = await client.post("/v1/completions", json=completion(max_tokens=200))
        assert (await old).status_code == 200
    assert young.status_code == 503
    assert young.json()["error"]["code"] == "out_of_memory"


NULLS: list[dict[str, Any]] = [
    {"max_token": None},
    {"temperature": None, "top_k": None, "tools": None, "n": None},
    {"thinking": None, "stream_options": None},
    {"messages": [{"role": "user", "content": "Once upon a time", "cache_control": None}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Once upon a time", "citations": None}]}]},
]


async def test_null_is_as_if_left_out(connect: Connect) -> None:
    """Guards clients that send every field they know: null asks for nothing, in fields that the server lacks too."""
    async with connect() as client:
        expected = (await client.post("/v1/chat/completions", json=chat())).json()["choices"]
        for changes in NULLS:
            body = chat() | {name: value for name, value in changes.items() if name != "temperature"}
            found = await client.post("/v1/chat/completions", json=body)
            assert found.status_code == 200, (changes, found.text)
            assert found.json()["choices"] == expected


async def test_null_of_the_tokenizer(connect: Connect) -> None:
    """Guards `/tokenize` likewise."""
    async with connect() as client:
        expected = (await client.post("/tokenize", json={"prompt": "a"})).json()
        found = await client.post("/tokenize", json={"prompt": "a", "add_special_tokens": None, "unknown": None})
    assert found.json() == expected


async def test_bodies_held_together_are_bounded() -> None:
    """Guards memory under many large bodies: one too many is told to come again, and what ended makes room."""
    held, release = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        held.set()
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def post(app: BodyLimit) -> int:
        sent = list[Any]()

        async def receive() -> Any:
            return {"type": "http.request", "body": b"x" * 60, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await app({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)
        return int(sent[0]["status"])

    limit = BodyLimit(app, maximum=80, seconds=5, held=100)
    first = asyncio.create_task(post(limit))
    await held.wait()
    assert await post(limit) == 503
    release.set()
    assert await first == 200
    assert await post(limit) == 200
