"""llama.cpp runs the model that was given, and is timed as the others are."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from models import SHAPE, VOCABULARY, deep_model
from speculant.api.speculator import Speculator
from speculant.bench.suite.tasks import TaskRequest, TaskSampling
from speculant.bench.systems.llamacpp import LlamaCpp, check_llamacpp
from speculant.bench.systems.selection import parse_methods
from speculant.bench.systems.system import SpeculantSystem
from speculant.cli.main import main
from speculant.core.errors import ModelError, UnsupportedError
from speculant.engines.llamacpp.converting import convert
from speculant.engines.llamacpp.library import load_library
from speculant.engines.llamacpp.opening import open_sequence

PROMPT = np.array([3, 4, 5, 6, 3, 4], np.int32)
GREEDY = TaskSampling()
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KINDS = {
    "llama": lambda: deep_model("llama"),
    "qwen2": lambda: shaken(Qwen2ForCausalLM(Qwen2Config(**SHAPE))),
    "qwen3": lambda: shaken(deep_model("qwen3")),
    "tied": lambda: deep_model("llama", tie_word_embeddings=True),
    "biased": lambda: shaken(LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True, head_dim=16))),
    "scaled": lambda: deep_model("llama", rope_parameters=SCALED),
}


def shaken(model: Any) -> Any:
    """Return the model with vectors that are not all ones or zeros, and matrices that spread its logits."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif parameter.std() < 0.03:
                parameter.mul_(4)
    return model.eval()


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a random model, where llama.cpp is installed."""
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    return deep_model("llama")


@pytest.mark.peers
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind: str) -> None:
    """Every kind of weight arrives, in the order that rotation wants: after 100 tokens logits still agree."""
    pytest.importorskip("llama_cpp")
    model = KINDS[kind]()
    ids = torch.randint(3, VOCABULARY, (1, 100), generator=torch.Generator().manual_seed(2))
    cache = open_sequence(convert(model).context, ids[0].tolist())
    first = cache._prompt
    cache._prompt = first[:1]
    cache.prefill()
    rows = np.array(first[1:], np.int32), np.arange(-1, 98, dtype=np.int32)
    found = cache.forward(*rows).logits.numpy()
    with torch.no_grad():
        expected = model(ids).logits[0, 1:].numpy()
    assert np.abs(expected).max() > 0.3
    assert np.abs(found - expected).max() < 1e-3


@pytest.mark.peers
def test_free_texts_are_those_of_plain_decoding(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy texts are the same; they end with the end of text, which counts."""
    request = TaskRequest(PROMPT, 24)
    plain = SpeculantSystem("none", lambda: Speculator.from_transformers(model, method="none")).run(request, GREEDY)
    outcome = LlamaCpp(model).run(request, GREEDY)
    assert outcome.ids == plain.ids
    assert (outcome.rounds, outcome.prefill_tokens, outcome.drafted) == (len(plain.ids) - 1, 1, 0)
    assert 0 < outcome.prefill_seconds < outcome.seconds
    monkeypatch.setattr(model.generation_config, "eos_token_id", [plain.ids[9]])
    assert LlamaCpp(model).run(request, GREEDY).ids == plain.ids[: plain.ids.index(plain.ids[9]) + 1]


@pytest.mark.peers
def test_forced(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording is said to its end, past what would end the text, and each of its tokens is fed to a pass."""
    output = np.array([7, 8, 9, 2] * 4, np.int32)
    player, fed = LlamaCpp(model), list[list[int]]()
    context = player._model.context
    decode = context.decode
    monkeypatch.setattr(context, "decode", lambda rows, keep: (fed.append(rows.tokens.tolist()), decode(rows, keep))[1])
    outcome = player.run(TaskRequest(PROMPT, len(output), output), GREEDY)
    assert outcome.ids == output.tolist()
    assert fed == [PROMPT.tolist(), *([token] for token in output[:-1].tolist())]


@pytest.mark.peers
def test_nothing_is_left_on_the_disk(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The converted file is gone once it is loaded, and also where it cannot be."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    LlamaCpp(model)
    monkeypatch.setattr(load_library().api, "llama_model_load_from_file", lambda *_: None)
    with pytest.raises(ModelError, match="cannot be loaded"):
        LlamaCpp(model)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.peers
def test_a_run_with_llama_cpp(model: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The command plays it beside the others, and every report says what it is; llama.cpp itself is quiet."""
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"prompt_ids": [1, 5], "output_ids": [4, 5, 6, 4, 5]}\n')
    argv = ["bench", "--forced", str(trace), "--methods", "none,llamacpp", "--out", str(tmp_path / "out")]
    assert main([*argv, "--device", "cpu"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "llamacpp is llama.cpp (llama-cpp-python" in out
    for name in ("result.json", "table.md", "report.html"):
        assert "on the same weights in float32" in (tmp_path / "out" / name).read_text()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named before a model is loaded."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UnsupportedError, match=r"not installed: pip install 'speculant\[llamacpp\]'"):
        parse_methods("none,llamacpp", forced=True, draft_model=False)


def test_sampling_is_refused() -> None:
    """Its tokens would be drawn by another random stream."""
    with pytest.raises(UnsupportedError, match="Leave --temperature out"):
        check_llamacpp(sampled=True)
