"""SGLang's own n-gram worker without its kernels: its file is real, what it would compute with is not."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

# What `ngram_worker.py` imports and a recorded step never runs: kernels, the scheduler, the model runner.
ABSENT = (
    "sglang.kernels.ops.speculative.cache_locs",
    "sglang.kernels.ops.speculative.reconstruct_tree",
    "sglang.srt.layers.logprob_processor",
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.tp_worker",
    "sglang.srt.model_executor.forward_batch_info",
    "sglang.srt.observability.req_time_stats",
    "sglang.srt.server_args",
    "sglang.srt.speculative.base_spec_worker",
    "sglang.srt.speculative.cpp_ngram.ngram_corpus",
    "sglang.srt.speculative.eagle_utils",
    "sglang.srt.speculative.ngram_info",
    "sglang.srt.speculative.spec_utils",
    "sglang.srt.utils",
    "sglang.srt.utils.async_probe",
)


class Absent(ModuleType):
    """A module of which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda *_args, **_kwargs: None})
        setattr(self, name, made)
        return made


def load_worker(monkeypatch: pytest.MonkeyPatch, *, width: int, tail: int, overlap: bool) -> Any:
    """Import SGLang's worker module with these settings of its server; return it."""
    for name in ABSENT:
        monkeypatch.setitem(sys.modules, name, Absent(name))
    for name in ("sglang.srt.speculative.ngram_worker", "speculant.integrations.sglang_worker"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.import_module("sglang.srt.speculative.ngram_worker")
    spec: Any = SimpleNamespace(
        speculative_num_draft_tokens=width,
        speculative_ngram_max_trie_depth=tail,
        speculative_ngram_min_bfs_breadth=1,
        speculative_ngram_max_bfs_breadth=10,
        speculative_ngram_match_type="BFS",
        speculative_ngram_capacity=100,
        speculative_ngram_external_sam_budget=0,
        speculative_ngram_external_corpus_max_tokens=100,
        speculative_ngram_external_corpus_path=None,
        speculative_eagle_topk=10,
        speculative_num_steps=1,
    )
    monkeypatch.setattr(found, "get_spec", lambda: spec)
    schedule = SimpleNamespace(disable_overlap_schedule=not overlap, page_size=1)
    monkeypatch.setattr(found, "get_schedule", lambda: schedule)
    monkeypatch.setattr(found, "get_device", lambda: SimpleNamespace(device="cpu"))
    return found
