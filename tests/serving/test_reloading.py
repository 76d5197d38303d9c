"""Files that a running server reads again: keys, memories, bases; what is bad leaves what was in force."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from servers import client_of, completion, make_app, make_speculator, running
from speculant.core.errors import FileError, UsageError

pytestmark = pytest.mark.anyio
PROMPT = [3 + place % 50 for place in range(40)]


async def status(app: Any, key: str) -> int:
    """Return how a request with a key is answered."""
    async with client_of(app, {"Authorization": f"Bearer {key}"}) as client:
        return int((await client.get("/v1/models")).status_code)


async def accepted(app: Any, **options: Any) -> int:
    """Return how many draft tokens of a text were accepted."""
    async with client_of(app) as client:
        answer = await client.post("/v1/completions", json=completion(PROMPT, max_tokens=40, **options))
    assert answer.status_code == 200, answer.text
    return int(answer.json()["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"])


async def test_keys_are_exchanged(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Guards keys without a restart: new ones count, old ones do not, and those of options stay."""
    file = tmp_path / "keys"
    file.write_text("# of a team\none\n\ntwo\n")
    app = make_app(make_speculator(model, tokenizer), api_key_file=file, api_keys=("fixed",))
    async with running(app):
        assert [await status(app, key) for key in ("one", "two", "fixed", "three")] == [200, 200, 200, 401]
        file.write_text("three\n")
        await app.state.reloader.run()
        assert [await status(app, key) for key in ("one", "two", "fixed", "three")] == [401, 401, 200, 200]


@pytest.mark.parametrize("content", ["", "# nothing\n", "a key\n", "schlüssel\n", None])
async def test_a_bad_file_of_keys_leaves_the_old_ones(
    model: Any, tokenizer: Any, tmp_path: Path, content: str | None, caplog: Any
) -> None:
    """Guards a slip in the file: the server neither opens nor locks itself, and says what is wrong."""
    file = tmp_path / "keys"
    file.write_text("one\n")
    app = make_app(make_speculator(model, tokenizer), api_key_file=file)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    async with running(app):
        await app.state.reloader.run()
        assert [await status(app, key) for key in ("one", "two", "")] == [200, 401, 401]
    assert "keys were not read again" in caplog.text
    with pytest.raises((FileError, UsageError)):
        make_app(make_speculator(model, tokenizer), api_key_file=file)


async def test_a_memory_that_was_replaced_is_read(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Guards merged memories: what the file holds is drafted from, and a text that is on its way ends well."""
    learned, memory = tmp_path / "learned", tmp_path / "memory"
    first = make_speculator(model, tokenizer)
    app = make_app(first, per_request_metrics=True)
    async with running(app):
        unknown, known = await accepted(app), await accepted(app)
        assert known > unknown
        app.state.models.first.drafters[""].save(learned)
    app = make_app(make_speculator(model, tokenizer), memory=memory, per_request_metrics=True)
    async with running(app):
        on_its_way = asyncio.create_task(accepted(app, temperature=1.0, seed=4))
        await asyncio.sleep(0)
        learned.replace(memory)
        await app.state.reloader.run()
        await on_its_way
        assert await accepted(app) >= known


async def test_what_was_learned_outlives_reading_again(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Guards SIGHUP without a new file: bases are opened again, and the memory is what it was."""
    app = make_app(make_speculator(model, tokenizer), per_request_metrics=True)
    async with running(app):
        unknown, known = await accepted(app), await accepted(app)
        before = app.state.models.first.drafters[""]
        await app.state.reloader.run()
        assert app.state.models.first.drafters[""] is not before
        assert await accepted(app) >= known > unknown


@pytest.mark.parametrize("what", ["memory", "base"])
async def test_a_bad_memory_or_base_leaves_the_old_one(
    model: Any, tokenizer: Any, tmp_path: Path, what: str, caplog: Any
) -> None:
    """Guards damaged files: nothing is exchanged, and the log says why."""
    options: dict[str, Any] = {"memory": tmp_path / "memory"} if what == "memory" else {"base": str(tmp_path / "base")}
    app = make_app(make_speculator(model, tokenizer), per_request_metrics=True, **options)
    async with running(app):
        await accepted(app)
        known, before = await accepted(app), app.state.models.first.drafters[""]
        (tmp_path / what).write_bytes(b"SPCLNT\r\nbroken")
        await app.state.reloader.run()
        assert app.state.models.first.drafters[""] is before
        assert await accepted(app) >= known
    assert "memories and bases were not read again" in caplog.text


async def test_an_unused_memory_is_used_once_it_is_whole(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Guards the way out of a memory that could not be used on start: a whole file in its place, which is saved to."""
    whole, memory = tmp_path / "whole", tmp_path / "memory"
    make_speculator(model, tokenizer).save(whole)
    memory.write_bytes(b"SPCLNT\r\nbroken")
    app = make_app(make_speculator(model, tokenizer), memory=memory, per_request_metrics=True)
    async with running(app), client_of(app) as client:
        whole.replace(memory)
        await app.state.reloader.run()
        text = (await client.get("/metrics")).text
        size = memory.stat().st_mtime_ns
    assert 'speculant_memory_unused{model_name="tiny"} 0.0' in text
    assert memory.stat().st_mtime_ns > size


async def test_new_keys_with_memories_of_their_own_need_a_restart(
    model: Any, tokenizer: Any, tmp_path: Path, caplog: Any
) -> None:
    """Guards scope `key`: keys may be taken out of the file; one without a memory is refused, and logged."""
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    app = make_app(make_speculator(model, tokenizer), api_key_file=file, memory_scope="key")
    async with running(app):
        file.write_text("two\n")
        await app.state.reloader.run()
        assert [await status(app, key) for key in ("one", "two")] == [401, 200]
        file.write_text("two\nthree\n")
        await app.state.reloader.run()
        assert [await status(app, key) for key in ("two", "three")] == [200, 401]
    assert "restart" in caplog.text
