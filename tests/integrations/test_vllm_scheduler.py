"""The uniting scheduler without vLLM: what it makes of drafts, what it refuses, and its memory."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from speculant.core.errors import UnsupportedError

NAME = "speculant.integrations.vllm_scheduler"
TEXT = [*range(10, 40)]


@dataclass
class DraftTokenIds:
    """VLLM's class of drafts on their way to the scheduler."""

    req_ids: list[str]
    draft_token_ids: list[list[int]]


class Scheduler:
    """The parts of vLLM's scheduler that are used."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, *, log_stats: bool = False) -> None:
        self.requests: dict[str, Any] = {}
        self.kept: dict[str, list[int]] = {}
        self.ended = False

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Keep the drafts, as vLLM's does."""
        self.kept = dict(zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True))

    def shutdown(self) -> None:
        """End."""
        self.ended = True


@dataclass
class Request:
    """The parts of vLLM's request that are used."""

    all_token_ids: list[int] = field(default_factory=list)
    num_output_tokens: int = 1
    is_prefill_chunk: bool = False
    finished: bool = False

    @property
    def num_tokens(self) -> int:
        """Of prompt and output."""
        return len(self.all_token_ids)

    def is_finished(self) -> bool:
        """Return whether it has ended."""
        return self.finished


@pytest.fixture
def scheduler_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the class, on a base that stands in for vLLM's."""
    modules = {
        "vllm": {"__version__": "0.33.0"},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: False)},
        "vllm.v1": {},
        "vllm.v1.core": {},
        "vllm.v1.core.sched": {},
        "vllm.v1.core.sched.scheduler": {"Scheduler": Scheduler},
        "vllm.v1.outputs": {"DraftTokenIds": DraftTokenIds},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        for key, value in content.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("METHOD", "MEMORY", "BASE", "CONFIG"):
        monkeypatch.delenv(f"SPECULANT_{name}", raising=False)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield importlib.import_module(NAME).UnitingScheduler
    sys.modules.pop(NAME, None)


def config(speculative: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Return what is read of a VllmConfig."""
    parallel = {"rank": 0, "world_size": 1, "pipeline_parallel_size": 1, "data_parallel_rank": 0}
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            **{"method": "eagle", "rejection_sample_method": "standard", "draft_sample_method": "greedy"}
            | (speculative or {})
        ),
        model_config=SimpleNamespace(
            get_vocab_size=lambda: 500,
            max_model_len=128,
            skip_tokenizer_init=True,
            tokenizer="nowhere",
            hf_text_config=SimpleNamespace(eos_token_id=2),
        ),
        parallel_config=SimpleNamespace(**parallel | changes.get("parallel", {})),
        scheduler_config=SimpleNamespace(async_scheduling=changes.get("asynchronous", False)),
        use_v2_model_runner=changes.get("second_runner", False),
    )


def step(scheduler: Any, heads: dict[str, Sequence[int]]) -> dict[str, list[int]]:
    """Hand the head's drafts to the scheduler as vLLM's engine does; return what it keeps."""
    scheduler.update_draft_token_ids(DraftTokenIds(list(heads), [list(head) for head in heads.values()]))
    return dict(scheduler.kept)


def teach(scheduler: Any) -> None:
    """Run two requests that write the text twice, beside a wrong head."""
    for name in ("first", "second"):
        scheduler.requests[name] = request = Request()
        for end in range(5, 2 * len(TEXT), 3):
            request.all_token_ids = (TEXT * 2)[:end]
            step(scheduler, {name: [1, 2, 3]})
        request.all_token_ids, request.finished = TEXT * 2, True
        del scheduler.requests[name]
        assert step(scheduler, {name: [1, 2, 3]}) == {name: [1, 2, 3]}  # vLLM ignores ended requests itself


def test_the_contract(scheduler_class: Any) -> None:
    """Drafts of the rows come in order, those of requests that read a prompt or are unknown as they were."""
    scheduler = scheduler_class(config(), "kv", log_stats=True)
    teach(scheduler)
    scheduler.requests = {
        "reading": Request(TEXT[:4], num_output_tokens=0, is_prefill_chunk=True),
        "known": Request([7, *TEXT[:10]]),
        "new": Request([400, 401, 402]),
        "done": Request([7, *TEXT[:10]], finished=True),
        "full": Request([*range(100, 226)]),
    }
    heads = {name: [1, 2, 3] for name in ("gone", *scheduler.requests)}
    found = step(scheduler, heads)
    assert list(found) == list(heads)
    assert found["known"] == TEXT[10:13]
    assert found["gone"] == found["reading"] == found["new"] == found["done"] == [1, 2, 3]
    assert len(found["full"]) == 1  # 126 of 128 tokens: the pass commits one more than it accepts
    assert all(type(token) is int for row in found.values() for token in row)
    scheduler.shutdown()
    assert scheduler.ended


def test_ends_are_learned(scheduler_class: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request's last tokens, which no draft follows, reach the memory, and the memory its file."""
    monkeypatch.setenv("SPECULANT_MEMORY", str(tmp_path / "m.speculant"))
    scheduler = scheduler_class(config(), "kv")
    scheduler.requests["a"] = request = Request(TEXT[:20])
    step(scheduler, {"a": [1, 2]})
    request.all_token_ids = TEXT
    del scheduler.requests["a"]
    step(scheduler, {})
    scheduler.shutdown()
    again = scheduler_class(config(parallel={"data_parallel_rank": 0}), "kv")
    again.requests["b"] = Request([7, *TEXT[20:26]])
    assert step(again, {"b": [1, 2, 3]})["b"] == TEXT[26:29]


def test_replicas_have_files_of_their_own(
    scheduler_class: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each data-parallel replica has a scheduler, and all of them learn."""
    monkeypatch.setenv("SPECULANT_MEMORY", str(tmp_path / "m.speculant"))
    for replica in (0, 1):
        scheduler = scheduler_class(config(parallel={"data_parallel_rank": replica}), "kv")
        teach(scheduler)
        scheduler.shutdown()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m-1.speculant", "m.speculant"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"asynchronous": True}, "--no-async-scheduling"),
        ({"second_runner": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"speculative": {"draft_sample_method": "probabilistic"}}, "'greedy'"),
        ({"speculative": {"rejection_sample_method": "synthetic"}}, "not lossless"),
        ({"speculative": {"method": "ngram"}}, "custom_class"),
        ({"speculative": {"num_speculative_tokens_per_batch_size": [(1, 8, 3)]}}, "DRAFTED_PER_STEP"),
        ({"parallel": {"pipeline_parallel_size": 2}}, "pipeline stages"),
    ],
)
def test_refusals(scheduler_class: Any, changes: dict[str, Any], says: str) -> None:
    """Where drafts do not pass through the scheduler, or would not be exact, vLLM ends at the start."""
    with pytest.raises(UnsupportedError, match=says):
        scheduler_class(config(**changes), "kv")


def test_exactness_has_no_override(scheduler_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Untested may be tried; lossy may not, nor what would have no effect."""
    monkeypatch.setenv("SPECULANT_ALLOW_UNTESTED", "1")
    scheduler_class(config(parallel={"pipeline_parallel_size": 2}), "kv")
    for changes in (
        {"asynchronous": True},
        {"second_runner": True},
        {"speculative": {"draft_sample_method": "probabilistic"}},
        {"speculative": {"rejection_sample_method": "fly"}},
    ):
        with pytest.raises(UnsupportedError):
            scheduler_class(config(**changes), "kv")


def test_ranks_on_cpus(scheduler_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of several ranks cannot be repaired from the scheduler's process."""
    platform = SimpleNamespace(is_cpu=lambda: True)
    monkeypatch.setattr(sys.modules[NAME], "current_platform", platform)
    with pytest.raises(UnsupportedError, match="Use one rank"):
        scheduler_class(config(parallel={"world_size": 2}), "kv")


def test_versions(scheduler_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions whose scheduler was not read are refused."""
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.31.0")
    with pytest.raises(UnsupportedError, match=r"0\.32 up to.*0\.34"):
        scheduler_class(config(), "kv")
