"""Fixtures of the server's tests: a tiny model, and clients of it."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from models import endless, tiny_model
from servers import Connect, client_of, make_app, make_speculator, running
from speculant import Speculator
from speculant.api.loading import load_tokenizer

TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}<tool_call>{% endif %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>"
    "{% endfor %}\n{% endfor %}assistant: "
)


@pytest.fixture
def anyio_backend() -> str:
    """Return the event loop of uvicorn."""
    return "asyncio"


@pytest.fixture(scope="session")
def model() -> Any:
    """Return a random model whose texts do not end."""
    return endless("llama", vocab_size=4096, num_hidden_layers=3, max_position_embeddings=512)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Return the bundled tokenizer, which has a chat template."""
    return load_tokenizer()


@pytest.fixture(scope="session")
def calling(tokenizer: Any) -> Any:
    """Return a tokenizer whose chat template knows tools."""
    found = copy.deepcopy(tokenizer)
    found.chat_template = TEMPLATE
    return found


@pytest.fixture(scope="session")
def ending_model(tokenizer: Any) -> Any:
    """Return a random model whose texts end, as constraints need."""
    model = tiny_model("llama", vocab_size=4096, num_hidden_layers=3, max_position_embeddings=512)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model


@pytest.fixture
def ending(ending_model: Any, tokenizer: Any) -> Speculator:
    """Return a speculator of a model whose texts end."""
    return make_speculator(ending_model, tokenizer)


@pytest.fixture
def speculator(model: Any, tokenizer: Any) -> Speculator:
    """Return a speculator with an empty memory."""
    return make_speculator(model, tokenizer)


@pytest.fixture
def connect(speculator: Speculator) -> Connect:
    """Return what serves the speculator and yields a client of it; options are settings."""

    @asynccontextmanager
    async def connected(
        *, served: Speculator | None = None, headers: dict[str, str] | None = None, **options: Any
    ) -> AsyncIterator[httpx2.AsyncClient]:
        app = make_app(served or speculator, **options)
        async with running(app), client_of(app, headers) as client:
            yield client

    return connected
