"""The plugin against SGLang's own classes: registration, checks, and its worker on recorded texts. No model runs."""

from __future__ import annotations

import importlib
import pkgutil
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sglang")

from sglang_parts import load_worker

pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("default")]  # SGLang's own warnings are not ours

VOCABULARY, WIDTH, TAIL = 300, 8, 18
SERVER: dict[str, Any] = {
    "device": "cuda",
    "page_size": 1,
    "attention_backend": "triton",
    "enable_dp_attention": False,
    "tp_size": 1,
    "dp_size": 1,
    "disable_overlap_schedule": False,
    "max_running_requests": None,
    "speculative_num_draft_tokens": None,
    "speculative_num_steps": None,
    "speculative_ngram_max_bfs_breadth": 10,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
}


@pytest.fixture(scope="module")
def algorithm() -> Any:
    """Register once, and return what SGLang finds under the name."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from speculant.integrations.sglang import register

    register()
    return SpeculativeAlgorithm.from_string("speculant")


def test_the_entry_point_is_the_plugin() -> None:
    """Guards the way in: the group and the function that SGLang looks up."""
    import tomllib
    from sglang.srt.plugins import GENERAL_PLUGINS_GROUP

    from speculant.integrations.sglang import register

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert pkgutil.resolve_name(project["entry-points"][GENERAL_PLUGINS_GROUP]["speculant"]) is register


def test_the_algorithm_answers_all_that_sglang_asks(algorithm: Any) -> None:
    """Guards against methods that SGLang's guard does not check and its scheduler calls all the same."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    asked = [name for name, each in vars(SpeculativeAlgorithm).items() if callable(each) and not name.startswith("_")]
    asked = [name for name in asked if name not in ("from_string", "register")]
    assert len(asked) > 20
    assert [name for name in asked if not hasattr(algorithm, name)] == []
    ngram = SpeculativeAlgorithm.NGRAM
    for name in (name for name in asked if name.startswith(("is_", "supports_", "has_", "need_", "carries_"))):
        assert getattr(algorithm, name)() == getattr(ngram, name)() or name == "supports_mixed_chunk", name
    assert algorithm.supports_overlap


def test_server_arguments_are_resolved_as_for_ngram(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the defaults; what is given stays, and what would be lossy ends the start."""
    from speculant.core.errors import UnsupportedError

    server = SimpleNamespace(**SERVER)
    algorithm.handle_server_args(server)
    assert (server.speculative_num_draft_tokens, server.speculative_eagle_topk, server.speculative_num_steps) == (
        12,
        10,
        1,
    )
    assert (server.max_running_requests, server.enable_mixed_chunk) == (48, False)
    assert not server.disable_overlap_schedule
    given = SimpleNamespace(**SERVER | {"speculative_num_draft_tokens": 32, "max_running_requests": 7, "device": "cpu"})
    algorithm.handle_server_args(given)
    assert (given.speculative_num_draft_tokens, given.max_running_requests) == (32, 7)
    assert given.disable_overlap_schedule
    with pytest.raises(UnsupportedError, match="threshold"):
        algorithm.handle_server_args(SimpleNamespace(**SERVER | {"speculative_accept_threshold_acc": 0.9}))
    monkeypatch.setenv("SPECULANT_SHARE", "redis://localhost")
    algorithm.handle_server_args(SimpleNamespace(**SERVER))
    with pytest.raises(UnsupportedError, match="different trees"):
        algorithm.handle_server_args(SimpleNamespace(**SERVER | {"tp_size": 2}))


def test_requests_that_drafts_would_change_are_refused(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the output: SGLang's own parameters, as its front end normalises them, are judged before the queue."""
    from sglang.srt import runtime_context
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.sampling.sampling_params import SamplingParams

    from speculant.integrations import sglang as plugin

    assert plugin._REQUESTS in HookRegistry._hooks

    def ask(device: str = "cuda", name: str = "SPECULANT", **options: Any) -> None:
        monkeypatch.setattr(runtime_context, "get_spec", lambda: SimpleNamespace(speculative_algorithm=name))
        monkeypatch.setattr(runtime_context, "get_device", lambda: SimpleNamespace(device=device))
        processor = options.pop("processor", None)
        request = SimpleNamespace(sampling_params=SamplingParams(**options), custom_logit_processor=processor)
        plugin.refuse_inexact(request, None, None)

    ask(temperature=0.7, top_p=0.9, top_k=40, logit_bias={"1": 2.0})
    ask(device="cpu", temperature=0.0)
    ask(name="NGRAM", min_p=0.5)
    for refused in ({"min_p": 0.1}, {"repetition_penalty": 1.2}, {"processor": "x"}, {"min_new_tokens": 3}):
        with pytest.raises(ValueError, match="not be applied exactly"):
            ask(**refused)
    with pytest.raises(ValueError, match="greedily"):
        ask(device="cpu", temperature=0.7)


class Played:
    """SGLang's worker on recorded texts, one batch after the other, as its scheduler drives it."""

    def __init__(self, module: Any, *, overlap: bool) -> None:
        worker_module = importlib.import_module("speculant.integrations.sglang_worker")
        model = SimpleNamespace(vocab_size=VOCABULARY, hf_eos_token_id=None)
        runner = SimpleNamespace(max_running_requests=4)
        target = SimpleNamespace(model_runner=runner, model_config=model, tokenizer=None)
        self.module, self.overlap, self.steps = module, overlap, 0
        worker_module.get_parallel = lambda: SimpleNamespace(tp_rank=0)
        self.worker = worker_module.SpeculantWorker(SimpleNamespace(), 0, 0, target)
        self.drafted: list[tuple[list[int], list[int]]] = []

    def run(self, texts: dict[str, np.ndarray], *, prompt: int) -> None:
        """Decode texts together; under overlap results reach the requests a step later."""
        import torch

        requests = {
            name: SimpleNamespace(rid=name, origin_input_ids_unpadded=array("q", text[:prompt]), output_ids=array("q"))
            for name, text in texts.items()
        }
        late = {name: [int(text[prompt])] for name, text in texts.items()}
        while requests:
            if not self.overlap:
                for name, request in requests.items():
                    request.output_ids.extend(late[name])
            flat = np.zeros((len(requests), WIDTH), np.int64)
            for row, name in enumerate(requests):
                flat[row, : len(late[name])] = late[name]
            lengths = torch.tensor([len(late[name]) for name in requests], dtype=torch.int32)
            spec = SimpleNamespace(accept_tokens=torch.from_numpy(flat.reshape(-1)), accept_lens=lengths)
            batch = SimpleNamespace(reqs=list(requests.values()), spec_info=spec, grammar_needs_sync=lambda: False)
            tokens, mask = self.worker._prepare_draft_tokens(batch)
            self.drafted.append((tokens.tolist(), mask.tolist()))
            links = self.module._derive_tree_links(mask, len(requests), WIDTH)
            self.worker._update_ngram_corpus(batch)
            if self.overlap:
                for name, request in requests.items():
                    request.output_ids.extend(late[name])
            for row, (name, request) in enumerate(list(requests.items())):
                text, done = texts[name], prompt + len(request.output_ids)
                drafts = tokens.reshape(-1, WIDTH)[row]
                assert drafts[0] == text[done - 1]
                late[name] = walked(drafts, links[0][row], links[1][row], text[done:].tolist())
                if done + len(late[name]) >= len(text):
                    del requests[name]
                    self.worker.ngram_corpus.erase_match_state([name])
            self.steps += 1


def walked(tokens: np.ndarray, children: Any, siblings: Any, truth: list[int]) -> list[int]:
    """Return what a greedy target commits of a tree given by SGLang's links: accepted tokens and its own."""
    node, found = 0, list[int]()
    while len(found) < len(truth) - 1:
        child = int(children[node])
        while child >= 0 and tokens[child] != truth[len(found)]:
            child = int(siblings[child])
        if child < 0:
            break
        found.append(truth[len(found)])
        node = child
    return truth[: len(found) + 1]


def text(seed: int) -> np.ndarray:
    """Return 150 random tokens."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, 150).astype(np.int32)


@pytest.mark.parametrize("overlap", [False, True])
def test_the_worker_drafts_from_our_memory(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the seam: SGLang's own preparation of drafts and its links with our corpus, also overlapped."""
    monkeypatch.setenv("SPECULANT_MEMORY_LIMIT", "8MB")
    played = Played(load_worker(monkeypatch, width=WIDTH, tail=TAIL, overlap=overlap), overlap=overlap)
    played.run({"a": text(1), "b": text(2)}, prompt=50)
    first = played.steps
    played.run({"c": text(2), "d": text(1), "e": text(3)}, prompt=50)
    assert first > 80
    alone = played.steps
    played.run({"f": text(1), "g": text(2)}, prompt=50)
    assert played.steps - alone < 30
    assert played.worker.ngram_corpus.rows.faults == 0


def test_ranks_draft_the_same_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards tensor parallelism through SGLang's own code: two workers return equal arrays at every step."""
    monkeypatch.setenv("SPECULANT_MEMORY_LIMIT", "8MB")
    module = load_worker(monkeypatch, width=WIDTH, tail=TAIL, overlap=True)
    ranks = Played(module, overlap=True), Played(module, overlap=True)
    for rank in ranks:
        rank.run({"a": text(1), "b": text(2)}, prompt=50)
        rank.run({"c": text(2)}, prompt=60)
    assert ranks[0].drafted == ranks[1].drafted


def test_the_memory_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the memory file: saved at the end, and drafted from by the next server."""
    monkeypatch.setenv("SPECULANT_MEMORY", str(tmp_path / "memory"))
    module = load_worker(monkeypatch, width=WIDTH, tail=TAIL, overlap=False)
    first = Played(module, overlap=False)
    first.run({"a": text(1)}, prompt=50)
    first.worker.close()
    second = Played(module, overlap=False)
    second.run({"a": text(1)}, prompt=50)
    second.worker.close()
    assert second.steps < first.steps / 3
