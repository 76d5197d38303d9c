"""A real server on a port, asked by the official client, and its end."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
from contextlib import closing
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from servers import MODEL, chat, events, serving

openai = pytest.importorskip("openai")
MESSAGES = [{"role": "user", "content": "Once upon a time"}]


def test_official_client(model: Any, tokenizer: Any) -> None:
    """Guards OpenAI's client: whole, streamed, async, completions, models and errors."""
    with (
        serving(model, tokenizer, api_keys=("secret",), per_request_metrics=True) as (_, address),
        openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0) as client,
    ):
        options = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 12}
        whole = client.chat.completions.create(**options)
        text = whole.choices[0].message.content
        assert whole.usage.completion_tokens == 12
        assert "speculative_decoding" in whole.metrics
        with client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}) as stream:
            chunks = list(stream)
        assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == text
        assert chunks[-1].usage == whole.usage
        found = client.completions.create(model=MODEL, prompt="The dog", max_tokens=5, extra_body={"top_k": 3})
        assert found.choices[0].finish_reason == "length"
        assert [each.id for each in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
        with pytest.raises(openai.BadRequestError, match="top_logprobs"):
            client.chat.completions.create(**options, top_logprobs=2)
        with (
            openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()

        async def ask() -> tuple[str, str]:
            async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0) as own:
                answer = await own.chat.completions.create(**options)
                async with await own.chat.completions.create(**options, stream=True) as stream:
                    parts = [each.choices[0].delta.content or "" async for each in stream if each.choices]
            return answer.choices[0].message.content, "".join(parts)

        assert asyncio.run(ask()) == (text, text)


def test_shutdown_drains(model: Any, tokenizer: Any) -> None:
    """Guards the end: a text that is being decoded is finished, then the server is gone."""
    with serving(model, tokenizer) as (server, address):
        host, port = address.removeprefix("http://").split(":")
        body = json.dumps(chat(max_tokens=120, stream=True)).encode()
        with closing(socket.create_connection((host, int(port)), timeout=60)) as client:
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            received = client.recv(1024)
            server.should_exit = True
            while part := client.recv(65536):
                received += part
    assert b'"finish_reason":"length"' in received
    assert b"data: [DONE]" in received


def test_header_floods(model: Any, tokenizer: Any) -> None:
    """Guards headers: too many bytes of them are refused, and the server goes on."""
    with serving(model, tokenizer) as (_, address):
        host, port = address.removeprefix("http://").split(":")
        with closing(socket.create_connection((host, int(port)), timeout=60)) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Flood: " + b"a" * 60_000)
            assert b" 400 " in client.recv(65536).split(b"\r\n")[0]
        with closing(socket.create_connection((host, int(port)), timeout=60)) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b" 200 " in client.recv(65536).split(b"\r\n")[0]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(model: Any, tokenizer: Any) -> None:
    """Guards curl, as the documentation shows it: a text, whole and as events."""
    with serving(model, tokenizer) as (_, address):

        def curl(**options: Any) -> str:
            command = ["curl", "-sS", "--fail-with-body", "-N", f"{address}/v1/chat/completions"]
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(chat(**options))]
            return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

        text = json.loads(curl())["choices"][0]["message"]["content"]
        *sent, done = events(curl(stream=True))
    assert done == "[DONE]"
    chunks = [json.loads(each)["choices"][0]["delta"] for each in sent]
    assert "".join(each.get("content", "") for each in chunks) == text


def test_structured_output_of_the_official_client(ending_model: Any, tokenizer: Any) -> None:
    """Guards `parse` and `stream` of OpenAI's client, with a pydantic model as the format."""

    class Animal(BaseModel):
        """An animal."""

        name: Literal["dog", "bird"]
        legs: int = Field(ge=2, le=4)

    with (
        serving(ending_model, tokenizer) as (_, address),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        options = {"model": MODEL, "messages": MESSAGES, "temperature": 1, "seed": 4, "max_tokens": 60}
        whole = client.chat.completions.parse(**options, response_format=Animal).choices[0].message
        assert isinstance(whole.parsed, Animal)
        with client.chat.completions.stream(**options, response_format=Animal) as stream:
            kinds = {event.type for event in stream}
            assert stream.get_final_completion().choices[0].message.parsed == whole.parsed
        assert {"content.delta", "content.done"} <= kinds
