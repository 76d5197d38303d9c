"""Several models behind one server: aliases, models that are loaded on demand, and LoRA adapters."""

from __future__ import annotations

import asyncio
import copy
import re
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from models import endless
from servers import MODEL, chat, client_of, completion, events, make_speculator, running
from speculant import Speculator
from speculant.core.errors import UsageError
from speculant.options.serving import ServingOptions
from speculant.serving.app import create_app
from speculant.serving.model_pool import FurtherModel, weight_bytes

pytestmark = pytest.mark.anyio
NAMES = (MODEL, "second", "third")


@pytest.fixture(scope="module")
def models(model: Any) -> dict[str, Any]:
    """Return random models by name: the first one, another, and the first one with a LoRA adapter."""
    peft = pytest.importorskip("peft")
    other = endless("llama", vocab_size=4096, max_position_embeddings=512)
    torch.manual_seed(1)
    for weight in other.parameters():
        torch.nn.init.normal_(weight, std=0.05)
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    tuned = peft.get_peft_model(copy.deepcopy(model), config).merge_and_unload().eval()
    return dict(zip(NAMES, (model, other, tuned), strict=True))


class Loads:
    """Further models of a server, and what was loaded of them."""

    def __init__(self, models: dict[str, Any], tokenizer: Any) -> None:
        self.models, self.tokenizer = models, tokenizer
        self.loaded: list[str] = []
        self.alive: list[weakref.ref[Any]] = []
        self.fails = False

    def further(self) -> list[FurtherModel]:
        """Return what a server takes."""
        size = weight_bytes(make_speculator(self.models[MODEL], self.tokenizer))

        def load(name: str) -> tuple[Speculator, Any]:
            if self.fails:
                raise UsageError("the weights are gone.")
            self.loaded.append(name)
            own = copy.deepcopy(self.models[name])
            self.alive.append(weakref.ref(own))
            return make_speculator(own, self.tokenizer), None

        return [
            FurtherModel(name=name, size=size, load=lambda _threads, own=name: load(own))
            for name in self.models
            if name != MODEL
        ]

    @asynccontextmanager
    async def serve(self, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
        """Serve all of them; yield a client."""
        defaults: dict[str, Any] = {"max_new_tokens": 400, "drain_seconds": 20, "memory_limit": "8MiB"}
        further = self.further()
        added = {"add_models": [f"{each.name}=folder" for each in further]}
        app = create_app(
            make_speculator(self.models[MODEL], self.tokenizer),
            ServingOptions(**defaults | added | options),
            model=MODEL,
            further=further,
        )
        async with running(app), client_of(app) as client:
            yield client


def expected(model: Any, tokenizer: Any, **options: Any) -> str:
    """Return the text of a model alone, without drafts."""
    made = make_speculator(model, tokenizer, method="none")
    return str(made.generate("Once upon a time", max_new_tokens=12, **options).text)


async def text_of(client: httpx2.AsyncClient, name: str, **options: Any) -> str:
    """Return the text of a completion by a model."""
    answer = await client.post("/v1/completions", json=completion(**{"model": name} | options))
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == name
    return str(answer.json()["choices"][0]["text"])


async def test_each_name_has_its_model(models: dict[str, Any], tokenizer: Any) -> None:
    """Guards the choice by name: texts of each model alone, greedy and sampled, all at once; unknown names get 404."""
    loads = Loads(models, tokenizer)
    sampled = {"temperature": 1.0, "seed": 5}
    async with loads.serve(aliases=("gpt-4o",), metrics_prefix="vllm:") as client:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [(each["id"], each["root"], each["loaded"]) for each in listed] == [
            (MODEL, MODEL, True), ("gpt-4o", MODEL, True), ("second", "second", False), ("third", "third", False)
        ]  # fmt: skip
        asked = [(name, options) for name in NAMES for options in ({}, sampled)] * 3
        texts = await asyncio.gather(*(text_of(client, name, **options) for name, options in asked))
        for (name, options), text in zip(asked, texts, strict=True):
            assert text == expected(models[name], tokenizer, **({"temperature": 0} | options))
        assert sorted(loads.loaded) == ["second", "third"]
        assert len({texts[2 * place] for place in range(3)}) == 3
        answer = await client.post("/v1/chat/completions", json=chat(model="gpt-4o"))
        assert answer.json()["model"] == MODEL
        assert (await client.get("/v1/models/second")).json()["max_model_len"] == 512
        for path, body in (("/v1/chat/completions", chat()), ("/v1/embeddings", {"input": "a"})):
            refused = await client.post(path, json=body | {"model": "fourth"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
            assert "'second'" in refused.json()["error"]["message"]
        page = (await client.get("/metrics")).text
        for name in NAMES:
            assert re.search(rf'vllm:generation_tokens_total{{engine="0",model_name="{name}"}} \d\d', page)
        assert page.count("# TYPE vllm:generation_tokens_total") == 1
        assert page.count("# TYPE vllm:num_preemptions_total") == 1


async def test_unloading_and_loading_under_load(models: dict[str, Any], tokenizer: Any, tmp_path: Path) -> None:
    """Guards the limit: models go and come back while all are asked, no text is lost or wrong, memories are kept."""
    loads = Loads(models, tokenizer)
    size = weight_bytes(make_speculator(models[MODEL], tokenizer))
    memory = tmp_path / "own.speculant"
    wanted = {name: expected(models[name], tokenizer, temperature=0) for name in NAMES}
    async with loads.serve(models_memory=2 * size + 1024, memory=memory) as client:
        for _ in range(2):
            texts = await asyncio.gather(*(text_of(client, name) for name in NAMES * 4))
            assert texts == [wanted[name] for name in NAMES * 4]
        assert len(loads.loaded) > 2
        assert sum(each() is not None for each in loads.alive) == 1
        listed = {each["id"]: each["loaded"] for each in (await client.get("/v1/models")).json()["data"]}
        assert listed.pop(MODEL)
        assert sorted(listed.values()) == [False, True]
        [gone] = [name for name, there in listed.items() if not there]
        page = (await client.get("/metrics")).text
        assert f'num_requests_running{{model_name="{gone}"}}' not in page
        assert f'generation_tokens_total{{model_name="{gone}"}}' in page
    assert {each.name for each in tmp_path.iterdir()} == {f"own{name}.speculant" for name in ("", ".second", ".third")}


async def test_a_stream_ends_before_its_model_goes(models: dict[str, Any], tokenizer: Any) -> None:
    """Guards draining: a streamed text is whole though another model needs the room."""
    loads = Loads(models, tokenizer)
    size = weight_bytes(make_speculator(models[MODEL], tokenizer))
    async with loads.serve(models_memory=2 * size + 1024) as client:
        body = completion(model="second", stream=True, max_tokens=100)
        async with client.stream("POST", "/v1/completions", json=body) as stream:
            other = asyncio.create_task(text_of(client, "third"))
            text = (await stream.aread()).decode()
        assert events(text)[-1] == "[DONE]"
        assert '"finish_reason":"length"' in text
        assert await other == expected(models["third"], tokenizer, temperature=0)


async def test_what_cannot_be_loaded(models: dict[str, Any], tokenizer: Any) -> None:
    """Guards failures: the reason is told, others go on, the next request tries again; too small a limit is refused."""
    loads = Loads(models, tokenizer)
    loads.fails = True
    async with loads.serve() as client:
        failed = await client.post("/v1/completions", json=completion(model="second"))
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "load_failed")
        assert "the weights are gone" in failed.json()["error"]["message"]
        await text_of(client, MODEL)
        loads.fails = False
        await text_of(client, "second")
    with pytest.raises(UsageError, match="--models-memory"):
        async with loads.serve(models_memory=1 << 20):
            pass


def test_decoding_beside_a_load(model: Any, tokenizer: Any) -> None:
    """Guards texts while another model is built, which changes PyTorch's default dtype for all threads."""
    made = make_speculator(model, tokenizer)
    asked: list[dict[str, Any]] = [{"temperature": 0}, {"seed": 3, "top_p": 0.9, "logprobs": 3}]
    before = [made.generate("Once", max_new_tokens=20, **options).ids for options in asked]
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert [made.generate("Once", max_new_tokens=20, **options).ids for options in asked] == before
    finally:
        torch.set_default_dtype(torch.float32)
