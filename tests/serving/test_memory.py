"""The memory of a server: saved, loaded again, kept apart by key, and never the cause of a failed answer."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from servers import Connect, chat, client_of, completion, make_app, make_speculator, running
from speculant.core.errors import FileError, MemoryFileError, UnsupportedError
from speculant.serving.keys import tenant_name

pytestmark = pytest.mark.anyio
LONG = {"max_tokens": 60}


async def drafted(app: Any, key: str | None = None, **options: Any) -> int:
    """Return how many drafted tokens were accepted in a chat."""
    headers = None if key is None else {"Authorization": f"Bearer {key}"}
    async with client_of(app, headers) as client:
        answer = await client.post("/v1/chat/completions", json=chat(**LONG | options))
        assert answer.status_code == 200, answer.text
    return int(answer.json()["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"])


async def test_memory_outlives_the_server(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Guards saving at the end and loading at the start: a second server drafts what the first one learned."""
    path = tmp_path / "memory.speculant"
    counts = []
    for _ in range(2):
        app = make_app(make_speculator(model, tokenizer), memory=path, per_request_metrics=True)
        async with running(app):
            counts.append(await drafted(app))
        assert path.exists()
    assert counts[1] > counts[0]


async def test_corpus_is_only_read(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Guards `corpus`: a memory to begin with, which stays as it was."""
    base, path = tmp_path / "base", tmp_path / "memory"
    teacher = make_speculator(model, tokenizer)
    teacher.generate([{"role": "user", "content": "Once upon a time"}], temperature=0, max_new_tokens=60)
    teacher.save(base)
    before = base.read_bytes()
    app = make_app(make_speculator(model, tokenizer), memory=path, corpus=base, per_request_metrics=True)
    async with running(app):
        assert await drafted(app) > 20
    assert base.read_bytes() == before
    assert path.exists()


async def test_a_method_that_saves_nothing_starts_from_a_corpus(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Guards `aded-paper`: it drafts from the corpus, also after memories were read again; a memory is refused."""
    base = tmp_path / "base"
    teacher = make_speculator(model, tokenizer, method="aded")
    teacher.generate([{"role": "user", "content": "Once upon a time"}], temperature=0, max_new_tokens=60)
    teacher.save(base)
    before = base.read_bytes()
    app = make_app(make_speculator(model, tokenizer, method="aded-paper"), corpus=base, per_request_metrics=True)
    async with running(app):
        before_reading = app.state.models.first.drafters[""]
        counts = [await drafted(app)]
        await app.state.reloader.run()
        assert app.state.models.first.drafters[""] is not before_reading
        counts.append(await drafted(app))
    empty = make_app(make_speculator(model, tokenizer, method="aded-paper"), per_request_metrics=True)
    async with running(empty):
        assert min(counts) > await drafted(empty)
    assert base.read_bytes() == before
    with pytest.raises(UnsupportedError, match="keeps no memory"):
        make_app(make_speculator(model, tokenizer, method="aded-paper"), memory=base)


async def test_memories_by_key(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Guards tenants: what one key's requests teach drafts for no other, in memory and on disk."""
    path = tmp_path / "memory.speculant"
    options = {"api_keys": ("one", "two"), "memory_scope": "key", "memory": path, "per_request_metrics": True}
    app = make_app(make_speculator(model, tokenizer), **options)
    async with running(app):
        first = await drafted(app, "one")
        again = await drafted(app, "one")
        other = await drafted(app, "two")
    assert other == first < again
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {f"memory.{tenant_name(key)}.speculant" for key in ("one", "two")}
    assert not any("one" in name.split(".")[1] for name in names)


async def test_full_disk_costs_a_metric(model: Any, tokenizer: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Guards a disk that is full: a count and a log line, and the server goes on."""
    path = tmp_path / "memory.speculant"
    speculator = make_speculator(model, tokenizer)

    def full(_path: Path) -> None:
        raise FileError("cannot write the memory file: no space left on device.")

    monkeypatch.setattr(speculator.drafter, "save", full)
    app = make_app(speculator, memory=path, save_seconds=0.01)
    async with running(app), client_of(app) as client:
        await client.post("/v1/completions", json=completion())
        for _ in range(500):
            text = (await client.get("/metrics")).text
            if 'speculant_memory_save_failures_total{model_name="tiny"} 0.0' not in text:
                break
        else:
            pytest.fail("no failure was counted")
        assert (await client.post("/v1/completions", json=completion())).status_code == 200


async def test_a_full_disk_leaves_the_last_save(
    model: Any, tokenizer: Any, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    """Guards real saving on a full disk: a count, a log line, the old file as it was, and nothing beside it."""
    path = tmp_path / "memory.speculant"
    async with running(make_app(make_speculator(model, tokenizer), memory=path)):
        pass
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("speculant.memory.aside.os.fsync", full)
    app = make_app(make_speculator(model, tokenizer), memory=path)
    with caplog.at_level("ERROR", "speculant.serving"):
        async with running(app), client_of(app) as client:
            assert (await client.post("/v1/completions", json=completion())).status_code == 200
        async with client_of(app) as client:
            text = (await client.get("/metrics")).text
    assert 'speculant_memory_save_failures_total{model_name="tiny"} 1.0' in text
    assert "No space left on device" in caplog.text
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


async def test_what_a_killed_save_left_does_not_matter(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Guards `kill -9` in the middle of saving: the half file beside the memory is neither read nor in the way."""
    path = tmp_path / "memory.speculant"
    counts = []
    for _ in range(2):
        (tmp_path / f".{path.name}.abcdefgh").write_bytes(b"SPCLNT\r\nhalf")
        app = make_app(make_speculator(model, tokenizer), memory=path, per_request_metrics=True)
        async with running(app):
            counts.append(await drafted(app))
    assert counts[1] > counts[0]


async def test_a_broken_memory_is_counted(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Guards a memory that cannot be used: a gauge says so, and with `memory_strict` the server does not start."""
    path = tmp_path / "memory.speculant"
    path.write_bytes(b"SPCLNT\r\nbroken")
    app = make_app(make_speculator(model, tokenizer), memory=path)
    async with running(app), client_of(app) as client:
        text = (await client.get("/metrics")).text
    assert 'speculant_memory_unused{model_name="tiny"} 1.0' in text
    assert list(app.state.unused_memories) == [path]
    with pytest.raises(MemoryFileError):
        make_app(make_speculator(model, tokenizer), memory=path, memory_strict=True)
    path.unlink()
    app = make_app(make_speculator(model, tokenizer), memory=path, memory_strict=True)
    async with running(app), client_of(app) as client:
        text = (await client.get("/metrics")).text
    assert 'speculant_memory_unused{model_name="tiny"} 0.0' in text


async def test_the_last_save_is_logged(model: Any, tokenizer: Any, tmp_path: Path, caplog: Any) -> None:
    """Guards the end: the log says where the memory is."""
    path = tmp_path / "memory.speculant"
    with caplog.at_level("INFO", "speculant.serving"):
        async with running(make_app(make_speculator(model, tokenizer), memory=path)):
            pass
    assert f"memory saved to {path}" in caplog.text


async def test_a_file_that_is_not_understood_is_kept(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Guards users' files: what is no memory is neither loaded nor overwritten."""
    path = tmp_path / "notes.txt"
    path.write_text("not a memory")
    app = make_app(make_speculator(model, tokenizer), memory=path)
    async with running(app), client_of(app) as client:
        assert (await client.post("/v1/completions", json=completion())).status_code == 200
    assert path.read_text() == "not a memory"


def test_methods_without_memory_have_no_scopes(model: Any, tokenizer: Any) -> None:
    """Guards `memory_scope`: refused where there is nothing to keep apart."""
    speculator = make_speculator(model, tokenizer, method="lookup")
    with pytest.raises(UnsupportedError, match="lookup"):
        make_app(speculator, api_keys=("one",), memory_scope="key")


async def test_metrics(connect: Connect) -> None:
    """Guards names and sums of metrics: they agree with the answers."""
    async with connect(per_request_metrics=True) as client:
        body = completion("a b a b a b a b", max_tokens=40)
        answer = (await client.post("/v1/completions", json=body)).json()
        text = (await client.get("/metrics")).text
    own = answer["metrics"]["speculative_decoding"]
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    label = '{model_name="tiny"}'
    assert float(values[f"speculant_spec_decode_num_draft_tokens_total{label}"]) == own["num_draft_tokens"]
    assert float(values[f"speculant_spec_decode_num_accepted_tokens_total{label}"]) == own["num_accepted_draft_tokens"]
    positions = [float(v) for name, v in values.items() if "num_accepted_tokens_per_pos_total" in name]
    assert sum(positions) == own["num_accepted_draft_tokens"]
    assert float(values[f"speculant_generation_tokens_total{label}"]) == 40
    assert float(values[f"speculant_rounds_total{label}"]) == own["num_spec_steps"]  # the prompt's step is none of them
    assert float(values[f"speculant_batch_size{label}"]) == 1
    assert float(values[f"speculant_prompt_tokens_total{label}"]) == answer["usage"]["prompt_tokens"]
    assert float(values[f"speculant_time_to_first_token_seconds_count{label}"]) == 1
    assert float(values[f"speculant_memory_bytes{label}"]) > 0
    assert values['speculant_http_requests_total{path="/v1/completions",status="200"}'] == "1.0"
