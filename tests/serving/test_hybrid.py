"""A model with recurrent states behind the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from models import hybrid_model
from passes import plain_text
from servers import Connect, chat, make_speculator

pytestmark = pytest.mark.anyio
TOPICS = ("Once upon a time there was a little dog who", "The dog sat", "Once upon a time")


async def test_chats_are_drafted_and_equal_plain_text(connect: Connect, tokenizer: Any) -> None:
    """Guards the server's batch and prefix cache on states: texts side by side, drafts accepted, turns behind turns."""
    speculator = make_speculator(hybrid_model(vocab_size=4096), tokenizer)
    options = {"served": speculator, "prefix_cache": "16MiB", "max_concurrency": 2, "per_request_metrics": True}
    async with connect(**options) as client:
        for _ in range(2):  # what was learned from the first texts is drafted in the second
            asked = [client.post("/v1/chat/completions", json=chat(topic, max_tokens=24)) for topic in TOPICS]
            answers = [each.json() for each in await asyncio.gather(*asked)]
        texts = [each["choices"][0]["message"]["content"] for each in answers]
        turns = [*chat(TOPICS[0])["messages"], {"role": "assistant", "content": texts[0]}]
        turns.append({"role": "user", "content": "And then?"})
        later = (await client.post("/v1/chat/completions", json=chat(messages=turns, max_tokens=24))).json()
    conversations = [*(chat(topic)["messages"] for topic in TOPICS), turns]
    for messages, answer in zip(conversations, [*answers, later], strict=True):
        ids = plain_text(speculator.model, torch.tensor([speculator.encode_chat(messages)]), 24)
        answered = answer["choices"][0]["message"]["content"].lstrip()  # `decode` drops the first space
        assert answered == tokenizer.decode(ids, skip_special_tokens=True)
    assert all(each["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 5 for each in answers)
    assert later["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
