"""Clients of other projects, unchanged, against a real server on a port: LangChain and `transformers chat`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from servers import MODEL, make_speculator, serving

pytestmark = pytest.mark.clients
QUESTION = "Once upon a time"


def test_transformers_chat(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Guards `transformers chat`: it waits for the model, sends its generation config, and prints what was streamed."""
    messages = [{"role": "user", "content": QUESTION}]
    expected = make_speculator(model, tokenizer).generate(messages, temperature=0, max_new_tokens=7).text
    with serving(model, tokenizer) as (_, address):
        command = [sys.executable, "-m", "transformers.cli.transformers", "chat", MODEL, address]
        done = subprocess.run(
            [*command, "max_new_tokens=7", "do_sample=False"],
            input=f"{QUESTION}\nn\n!exit\n",
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env=os.environ | {"HF_HUB_OFFLINE": "0", "COLUMNS": "200", "TERM": "dumb", "USER": "someone"},
        )
    assert done.returncode == 0, done.stderr
    assert "Generation stopped after reaching the token limit." in done.stdout
    printed = " ".join(done.stdout.split())
    assert " ".join(expected.split()) in printed


@pytest.fixture
def chat_model() -> Any:
    """Return what makes LangChain's chat model for an address."""
    langchain = pytest.importorskip("langchain_openai")

    def make(address: str, **options: Any) -> Any:
        own = {"temperature": 0, "max_tokens": 60, "max_retries": 0, "stream_usage": True} | options
        return langchain.ChatOpenAI(model=MODEL, base_url=f"{address}/v1", api_key="none", **own)

    return make


def test_langchain_texts(model: Any, tokenizer: Any, chat_model: Any) -> None:
    """Guards LangChain: whole, streamed, batched and async texts are the library's own, with usage."""
    messages = [{"role": "user", "content": QUESTION}]
    expected = make_speculator(model, tokenizer).generate(messages, temperature=0, max_new_tokens=12).text
    with serving(model, tokenizer) as (_, address):
        chat = chat_model(address, max_tokens=12)
        whole = chat.invoke(QUESTION)
        assert whole.content == expected
        assert whole.usage_metadata["output_tokens"] == 12
        assert whole.response_metadata["finish_reason"] == "length"
        chunks = list(chat.stream(QUESTION))
        assert "".join(chunk.content for chunk in chunks) == expected
        assert [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata] == [12]
        assert [each.content for each in chat.batch([QUESTION] * 3)] == [expected] * 3

        async def ask() -> str:
            answer = await chat.ainvoke([("human", QUESTION)])
            parts = [chunk.content async for chunk in chat.astream(QUESTION)]
            await chat.root_async_client.close()
            assert "".join(parts) == answer.content
            return str(answer.content)

        assert asyncio.run(ask()) == expected


def test_langchain_structured_output(ending_model: Any, tokenizer: Any, chat_model: Any) -> None:
    """Guards `with_structured_output`, by a JSON schema."""

    class Animal(BaseModel):
        """An animal."""

        name: Literal["dog", "bird"]
        legs: int = Field(ge=2, le=4)

    with serving(ending_model, tokenizer) as (_, address):
        chat = chat_model(address, temperature=1, seed=5)
        found = chat.with_structured_output(Animal, method="json_schema").invoke(QUESTION)
        assert isinstance(found, Animal)
        assert 2 <= found.legs <= 4
        strict = chat.with_structured_output(Animal, method="json_schema", strict=True, include_raw=True)
        assert isinstance(strict.invoke(QUESTION)["parsed"], Animal)


def test_langchain_tools(ending_model: Any, calling: Any, chat_model: Any) -> None:
    """Guards `bind_tools`, streamed too, the results of tools, and structured output by a function's call."""

    class Add(BaseModel):
        """Add two digits."""

        a: int = Field(ge=0, le=9)
        b: Literal[1, 2]

    with serving(ending_model, calling) as (_, address):
        chat = chat_model(address, max_tokens=120)
        bound = chat.bind_tools([Add], tool_choice="Add", parallel_tool_calls=False)
        answer = bound.invoke(QUESTION)
        [call] = answer.tool_calls
        assert Add.model_validate(call["args"])
        streamed = None
        for chunk in bound.stream(QUESTION):
            streamed = chunk if streamed is None else streamed + chunk
        assert [(each["name"], each["args"]) for each in streamed.tool_calls] == [("Add", call["args"])]
        result = {"role": "tool", "content": "3", "tool_call_id": call["id"]}
        assert chat.bind_tools([Add], strict=True).invoke([("human", QUESTION), answer, result]) is not None
        for options in ({}, {"strict": True}):
            found = chat.with_structured_output(Add, method="function_calling", **options).invoke(QUESTION)
            assert isinstance(found, Add)
