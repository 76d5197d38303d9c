"""A drafter that learns while it drafts: the same text, whatever happens to the weights."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from models import perturbed, tiny_model
from speculant import Speculator
from speculant.api.memory_kinds import find_memory_kind, methods_reading
from speculant.core.errors import ForeignMemoryError, UnsupportedError, UsageError
from speculant.memory.file import read_any_memory
from speculant.training.online.drafter import OnlineDrafter
from speculant.training.online.learner import publish
from speculant.training.online.settings import settings_of

PROMPTS = [[5 + place, 7, 9, 11 + place, 13] for place in range(12)]


def speculator(online: Any, *, noise: float = 0.3, **options: Any) -> tuple[Speculator, OnlineDrafter]:
    """Return a speculator on a tiny model with a draft model near it, and its drafter."""
    draft = perturbed(tiny_model("llama"), noise)
    options = {"method": "draft-model", "nodes": 4} | options
    made = Speculator.from_transformers(tiny_model("llama"), draft_model=draft, online=online, **options)
    assert isinstance(made.drafter, OnlineDrafter)
    return made, made.drafter


def plain(prompt: list[int], tokens: int = 12) -> list[int]:
    """Return what transformers generates greedily."""
    ids: list[int] = tiny_model("llama").generate(torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False)[0]
    return ids[len(prompt) :].tolist()  # type: ignore[attr-defined]


def scramble(drafter: OnlineDrafter, seed: int) -> None:
    """Replace the weights that draft by random ones, as an update would."""
    learner, source = drafter._learner, torch.Generator().manual_seed(seed)
    with drafter.lock(), torch.no_grad():
        for weight in learner.copy.parameters():
            weight += weight.std() * torch.randn(weight.shape, generator=source)
        publish(learner)


@pytest.mark.parametrize("method", ["draft-model", "opt-tree", "sequoia"])
def test_greedy_text_stays_while_weights_change(method: str) -> None:
    """Guards losslessness: weights are replaced between the rounds of one request, and its text is plain decoding's."""
    made, drafter = speculator(True, method=method, nodes=6)
    stream = made.stream(PROMPTS[0], max_new_tokens=12, temperature=0)
    for place, _ in enumerate(stream):
        scramble(drafter, place)
    assert stream.result.ids == plain(PROMPTS[0])
    made.close()


def test_sampled_text_is_that_of_the_seed_under_chosen_drafts() -> None:
    """Guards sampling: with drafts that are chosen the text is plain decoding's, whatever is learned meanwhile."""
    made, drafter = speculator({"when": "manual", "lr": 1e-3, "steps": 4}, method="opt-tree")
    still, _ = speculator({"when": "manual"}, method="opt-tree", nodes=0)
    for place, prompt in enumerate(PROMPTS[:8]):
        options: dict[str, Any] = {"max_new_tokens": 10, "temperature": 0.9, "seed": place}
        assert made.generate(prompt, **options).ids == still.generate(prompt, **options).ids
        if place % 4 == 3:
            drafter.update()
    assert drafter.updates


def test_a_thread_learns_while_requests_run() -> None:
    """Guards the whole way: requests, an update in the thread, and texts that stay as they are; batches, too."""
    made, drafter = speculator({"every": 4, "steps": 1, "batch": 1, "when": "thread"})
    for prompt in PROMPTS[:5]:
        assert made.generate(prompt, max_new_tokens=8, temperature=0).ids == plain(prompt, 8)
    results = made.generate_batch(PROMPTS[:4], size=4, max_new_tokens=8, temperature=0)
    assert [each.ids for each in results] == [plain(prompt, 8) for prompt in PROMPTS[:4]]
    made.close()
    assert all(not update.error for update in drafter.updates)
    assert not any(thread.name == "speculant-online" for thread in threading.enumerate())


def test_close_ends_the_thread_and_drafts_go_on() -> None:
    """Guards the end: no thread is left, by close() or when the drafter is gone, and close() may come twice."""
    made, drafter = speculator({"every": 1})
    made.generate(PROMPTS[0], max_new_tokens=8, temperature=0)
    assert any(thread.name == "speculant-online" for thread in threading.enumerate())
    made.close()
    made.close()
    assert made.generate(PROMPTS[0], max_new_tokens=8, temperature=0).ids == plain(PROMPTS[0], 8)
    assert not any(thread.name == "speculant-online" for thread in threading.enumerate())
    made, drafter = speculator({"every": 1})
    made.generate(PROMPTS[0], max_new_tokens=8, temperature=0)
    del made, drafter
    gc.collect()
    assert not any(thread.name == "speculant-online" for thread in threading.enumerate())


def test_a_fault_in_an_update_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Guards rounds from the thread: what fails there is logged and recorded, and after three times given up."""
    made, drafter = speculator({"every": 1, "when": "manual"})

    def fail(window: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(drafter._learner, "loss", fail)
    for prompt in PROMPTS[:4]:
        assert made.generate(prompt, max_new_tokens=12, temperature=0).ids == plain(prompt)
    for _ in range(3):
        update = drafter.update()
        assert update is not None
        assert "no room" in update.error
    assert "no more are made" in caplog.text
    drafter._worker.ask()
    assert not drafter.busy
    live, copy = drafter._learner.live.parameters(), drafter._learner.copy.parameters()
    assert all(torch.equal(one, other) for one, other in zip(live, copy, strict=True))


def test_updates_wait_while_requests_are_open() -> None:
    """Guards "idle": a step is taken only when no request is open."""
    made, drafter = speculator({"every": 1, "when": "idle"})
    worker = drafter._worker
    assert worker._ready()
    stream = made.stream(PROMPTS[0], max_new_tokens=12, temperature=0)
    pieces = iter(stream)
    next(pieces)
    assert not worker._ready()
    assert list(pieces)
    assert worker._ready()
    made.close()


def test_saved_and_loaded(tmp_path: Path) -> None:
    """Guards the memory: weights, windows and the count of requests come back; a drafter goes on where it was."""
    made, drafter = speculator({"when": "manual", "lr": 1e-3, "steps": 2})
    for prompt in PROMPTS[:4]:
        made.generate(prompt, max_new_tokens=12, temperature=0)
    assert drafter.update() is not None
    scramble(drafter, 1)
    path = tmp_path / "learned.speculant"
    made.save(path)
    other, again = speculator({"when": "manual"}, memory=path)
    pairs = list(zip(drafter._learner.live.named_parameters(), again._learner.live.named_parameters(), strict=True))
    assert all(torch.equal(one, two) for (_, one), (_, two) in pairs)
    assert all(
        torch.equal(one, two)
        for (_, one), (_, two) in [
            *zip(again._learner.live.named_parameters(), again._learner.copy.named_parameters(), strict=True)
        ]
    )
    assert len(again._buffer) == len(drafter._buffer) > 0
    assert other.generate(PROMPTS[0], max_new_tokens=12, temperature=0).ids == plain(PROMPTS[0])
    memory = read_any_memory(path)
    kind = find_memory_kind(memory.kind)
    assert kind.describe(memory)["windows"] == len(drafter._buffer)
    assert "draft-model" in [method.name for method in methods_reading("online")]
    with pytest.raises(UnsupportedError, match="cannot be merged"):
        kind.merge([memory, memory], 1 << 30)


def test_a_memory_of_another_model_is_refused(tmp_path: Path) -> None:
    """Guards loading: weights of other shapes are named, and nothing is changed."""
    made, _ = speculator(True)
    made.save(tmp_path / "learned")
    made.close()
    narrow = tiny_model("llama", hidden_size=16)
    other = Speculator.from_transformers(tiny_model("llama"), draft_model=narrow, method="draft-model", online=True)
    with pytest.raises(ForeignMemoryError, match=r"lm_head\.weight is"):
        other.load(tmp_path / "learned")
    other.close()


def test_an_emptied_memory_leaves_the_weights(tmp_path: Path) -> None:
    """Guards `memory clear`: what is left can be loaded, and forgets the windows."""
    from speculant.memory.file import write_memory

    made, drafter = speculator({"when": "manual"})
    made.generate(PROMPTS[0], max_new_tokens=12, temperature=0)
    made.save(tmp_path / "learned")
    memory = read_any_memory(tmp_path / "learned")
    arrays, facts = find_memory_kind("online").empty(memory)
    write_memory(tmp_path / "empty", kind="online", tokenizer=memory.tokenizer, arrays=arrays, facts=facts)
    before = [weight.clone() for weight in drafter._learner.live.parameters()]
    made.load(tmp_path / "empty")
    assert len(drafter._buffer) == 0
    assert all(torch.equal(old, new) for old, new in zip(before, drafter._learner.live.parameters(), strict=True))


def test_the_buffer_may_have_a_unit() -> None:
    """Guards the documented form: sizes are bytes or texts, as everywhere."""
    assert settings_of({"every": 4, "buffer": "128MB"}).buffer == 128_000_000
    for wrong in ("128MX", "1B"):
        with pytest.raises(UsageError, match="buffer"):
            settings_of({"buffer": wrong})


def test_what_cannot_learn_is_refused() -> None:
    """Guards the way in: methods without one model of their own, settings that do not exist or make no sense."""
    with pytest.raises(UnsupportedError, match="one model"):
        Speculator.from_transformers(tiny_model("llama"), method="mix", online=True)
    with pytest.raises(UnsupportedError, match="keeps no memory of its own"):
        speculator(True, method="mix-model")
    models = [tiny_model("llama"), tiny_model("llama")]
    with pytest.raises(UnsupportedError, match="one draft model"):
        Speculator.from_transformers(tiny_model("llama"), draft_model=models, method="specinfer", online=True)
    same = tiny_model("llama")
    with pytest.raises(UnsupportedError, match="shares weights with the target"):
        Speculator.from_transformers(same, draft_model=same, method="draft-model", online=True)
    with pytest.raises(UsageError, match="no setting 'evry'"):
        speculator({"evry": 2})
    with pytest.raises(UsageError, match="'every'"):
        speculator({"every": 0})
    with pytest.raises(UsageError, match="'when'"):
        speculator({"when": "now"})
    with pytest.raises(UsageError, match="online is"):
        speculator(3)


def test_target_weights_get_no_gradients() -> None:
    """Guards the user's model: updates leave neither gradients nor changes in it."""
    made, drafter = speculator({"when": "manual", "steps": 2})
    before = [weight.clone() for weight in made.model.parameters()]
    for prompt in PROMPTS[:4]:
        made.generate(prompt, max_new_tokens=12, temperature=0)
    assert drafter.update() is not None
    assert all(weight.grad is None for weight in made.model.parameters())
    assert all(torch.equal(old, new) for old, new in zip(before, made.model.parameters(), strict=True))
