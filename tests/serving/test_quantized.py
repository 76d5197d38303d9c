"""The server on a model with quantised weights."""

from __future__ import annotations

import asyncio

import pytest

from quantizing import quantized_model
from servers import client_of, completion, make_app, make_speculator, running
from speculant import Speculator
from speculant.engines.hf.cpu.build import BuildError
from speculant.engines.hf.quantized.products import native

PROMPTS = ["Once upon a time, there was", "Tom had a red ball. He", "The dog ran to the park and"]


def test_answers_are_those_of_plain_decoding() -> None:
    """Guards requests that are decoded together, with drafts from a shared memory."""
    try:
        native()
    except BuildError as error:
        pytest.skip(str(error))
    source = Speculator.from_pretrained(method="none")
    model = quantized_model(source.model.float())
    plain = Speculator.from_transformers(model, source.tokenizer, method="none")
    expected = [plain.generate(prompt, max_new_tokens=30, temperature=0).text for prompt in PROMPTS]

    async def answers() -> list[str]:
        app = make_app(make_speculator(model, source.tokenizer, fast=None))
        async with running(app), client_of(app) as client:
            given = [client.post("/v1/completions", json=completion(each, max_tokens=30)) for each in PROMPTS]
            return [found.json()["choices"][0]["text"] for found in await asyncio.gather(*given)]

    assert asyncio.run(answers()) == expected
