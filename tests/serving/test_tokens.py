"""`/tokenize` and `/detokenize`: the tokenizer's own ids and texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers import Connect, make_speculator

pytestmark = pytest.mark.anyio
TEXT = "Once upon a time, a café opened."


async def test_prompts_and_back(connect: Connect, tokenizer: Any) -> None:
    """Guards ids with and without special tokens, counts, and the way back to the text."""
    async with connect() as client:
        found = (await client.post("/tokenize", json={"prompt": TEXT, "model": "tiny"})).json()
        bare = (await client.post("/tokenize", json={"prompt": TEXT, "add_special_tokens": False})).json()
        text = (await client.post("/detokenize", json={"tokens": bare["tokens"]})).json()
        nothing = (await client.post("/detokenize", json={"tokens": []})).json()
    ids = tokenizer(TEXT)["input_ids"]
    assert found == {"count": len(ids), "max_model_len": 512, "tokens": ids}
    assert bare["tokens"] == tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert text == {"prompt": TEXT}
    assert nothing == {"prompt": ""}


async def test_messages(connect: Connect, model: Any, tokenizer: Any) -> None:
    """Guards messages: the ids are those that a chat decodes from."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]
    async with connect() as client:
        found = (await client.post("/tokenize", json={"messages": messages})).json()["tokens"]
    assert found == list(make_speculator(model, tokenizer).encode_chat(messages))


WRONG: list[tuple[str, dict[str, Any], int]] = [
    ("/tokenize", {}, 400),
    ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, 400),
    ("/tokenize", {"prompt": "a", "model": "other"}, 404),
    ("/tokenize", {"prompt": "\ud800"}, 400),
    ("/detokenize", {"tokens": [4096]}, 400),
    ("/detokenize", {"tokens": [-1]}, 400),
    ("/detokenize", {"tokens": [1.5]}, 400),
    ("/detokenize", {"tokens": [1], "model": "other"}, 404),
]


async def test_what_is_refused(connect: Connect) -> None:
    """Guards both against ids and texts that are none."""
    async with connect() as client:
        for path, body, status in WRONG:
            answer = await client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
            assert answer.status_code == status, (path, body, answer.text)
            assert answer.json()["error"]["message"]
