"""`/props` and `/slots`, as llama.cpp's server has them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from servers import Connect, completion
from speculant import Speculator

pytestmark = pytest.mark.anyio


async def test_props(connect: Connect, tokenizer: Any) -> None:
    """Guards what clients read: context, slots, the template, what is taken, and the default parameters."""
    async with connect(max_concurrency=3, max_new_tokens=77) as client:
        found = (await client.get("/props")).json()
    assert found["total_slots"] == 3
    assert found["model_alias"] == "tiny"
    assert found["chat_template"] == tokenizer.chat_template
    assert found["eos_token"] == tokenizer.eos_token
    assert found["modalities"] == {"vision": False, "audio": False}
    settings = found["default_generation_settings"]
    assert (settings["n_ctx"], settings["speculative"]) == (512, True)
    params = settings["params"]
    assert (params["n_predict"], params["temperature"], params["repeat_penalty"], params["seed"]) == (77, 1.0, 1.0, -1)


async def test_slots_show_what_is_decoded(connect: Connect, speculator: Speculator) -> None:
    """Guards slots while texts are decoded: their places, parameters and progress; and 503 where none is free."""
    async with connect(max_concurrency=2) as client:
        asked = [
            asyncio.create_task(client.post("/v1/completions", json=completion(max_tokens=count, stop=["never found"])))
            for count in (390, 391)
        ]
        while True:
            slots = (await client.get("/slots")).json()
            if all(each["is_processing"] for each in slots):
                break
            await asyncio.sleep(0.01)
        full = await client.get("/slots?fail_on_no_slot=1")
        assert (full.status_code, full.json()["error"]["code"]) == (503, "busy")
        answers = await asyncio.gather(*asked)
        idle = (await client.get("/slots?fail_on_no_slot=1")).json()
    assert [each["id"] for each in slots] == [0, 1]
    assert sorted(each["id_task"] for each in slots) == [0, 1]
    assert sorted(each["params"]["n_predict"] for each in slots) == [390, 391]
    for each in slots:
        assert each["params"]["stop"] == ["never found"]
        assert each["params"]["temperature"] == 0
        assert each["n_prompt_tokens"] == answers[0].json()["usage"]["prompt_tokens"]
        ahead = each["next_token"]
        assert ahead["n_decoded"] + ahead["n_remain"] == each["params"]["n_predict"]
        assert "Once upon" not in str(each)
    assert [(each["is_processing"], each["id_task"], each["params"]) for each in idle] == [(False, -1, None)] * 2


async def test_slots_of_another_key_show_nothing(connect: Connect) -> None:
    """Guards keys from each other: of another's text only its place is told; without a key nothing is."""
    mine, other = ({"Authorization": f"Bearer {key}"} for key in ("mine", "other"))
    async with connect(api_keys=("mine", "other"), max_concurrency=1) as client:
        assert (await client.get("/slots")).status_code == (await client.get("/props")).status_code == 401
        asked = asyncio.create_task(client.post("/v1/completions", json=completion(max_tokens=390), headers=mine))
        while not (await client.get("/slots", headers=mine)).json()[0]["is_processing"]:
            await asyncio.sleep(0.01)
        hidden = (await client.get("/slots", headers=other)).json()[0]
        shown = (await client.get("/slots", headers=mine)).json()[0]
        await asked
    assert shown["id_task"] == 0
    assert hidden["is_processing"]
    assert (hidden["id_task"], hidden["params"], hidden["next_token"], hidden["n_prompt_tokens"]) == (-1, *[None] * 3)
