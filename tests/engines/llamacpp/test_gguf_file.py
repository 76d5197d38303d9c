"""GGUF files hold the model that was given, or are refused."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch

from models import deep_model
from speculant.core.errors import FileError, UnsupportedError
from speculant.engines.llamacpp.gguf_file import check_architecture, interleave, write_gguf


def test_pairs_stand_together() -> None:
    """What transformers rotates, i and i + D / 2 of a head, become neighbours; heads keep their order."""
    assert interleave(torch.arange(16)[:, None], 2).flatten().tolist() == [
        *(0, 4, 1, 5, 2, 6, 3, 7),
        *(8, 12, 9, 13, 10, 14, 11, 15),
    ]


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("gpt2", {}, "a gpt2 model; only llama, mistral, qwen2, qwen3"),
        ("mistral", {}, "sliding window"),
        ("llama", {"hidden_act": "gelu"}, "activation is gelu"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "type 'dynamic'"),
        ("qwen3", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "scaled rotary"),
    ],
)
def test_what_llama_cpp_would_run_differently_is_refused(name: str, changes: dict[str, Any], why: str) -> None:
    """Another model than the one that was named must never be timed."""
    with pytest.raises(
        UnsupportedError, match=rf"cannot be written for llama.cpp: .*{why}.*Use it in transformers' format"
    ):
        check_architecture(deep_model(name, **changes))


@pytest.mark.peers
@pytest.mark.parametrize(("dtype", "kind"), [("float32", "F32"), ("bfloat16", "BF16"), ("float16", "F16")])
def test_weights_keep_their_type(dtype: str, kind: str, tmp_path: Path) -> None:
    """Matrices are what they were bit by bit, vectors float32; a head that is the embedding is not written twice."""
    gguf = pytest.importorskip("gguf")
    model = deep_model("llama", tie_word_embeddings=True)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model.to(getattr(torch, dtype)).model.rotary_emb.inv_freq = frequencies  # which loading leaves as they are, too
    write_gguf(model, tmp_path / "m.gguf")
    tensors = {each.name: each for each in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    layers = model.config.num_hidden_layers
    assert len(tensors) == 2 + 9 * layers
    assert tensors["token_embd.weight"].tensor_type.name == kind
    assert tensors["output_norm.weight"].tensor_type.name == "F32"
    held = model.model.layers[2].mlp.down_proj.weight.detach()
    assert bytes(tensors["blk.2.ffn_down.weight"].data) == bytes(held.view(torch.uint8).numpy())


@pytest.mark.peers
def test_unknown_weights_are_refused(tmp_path: Path) -> None:
    """An adapter or a quantised matrix would be left out in silence; no file is begun."""
    pytest.importorskip("gguf")
    model = deep_model("llama")
    model.model.layers[0].self_attn.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(UnsupportedError, match=r"'model.layers.0.self_attn.adapter.weight'.*not a plain weight"):
        write_gguf(model, tmp_path / "m.gguf")
    model = deep_model("llama")
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedError, match=r"'lm_head.weight' \(torch.int8"):
        write_gguf(model, tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.peers
@pytest.mark.parametrize("fault", ["no room", "full", "interrupted"])
def test_nothing_is_left_of_a_file_that_fails(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without room is named before or when it fills up, with the way out; Ctrl-C leaves nothing either."""
    gguf = pytest.importorskip("gguf")
    usage = namedtuple("usage", "total used free")
    if fault == "no room":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 0))
    plain, written = gguf.GGUFWriter.write_tensor_data, list[int]()

    def write(self: Any, tensor: Any) -> None:
        written.append(1)
        if len(written) == 3:
            raise KeyboardInterrupt if fault == "interrupted" else OSError("8 requested and 0 written")
        plain(self, tensor)

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", write)
    error, said = (KeyboardInterrupt, None) if fault == "interrupted" else (FileError, "Set TMPDIR")
    with pytest.raises(error, match=said):
        write_gguf(deep_model("llama"), tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The extra is named."""
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'speculant\[llamacpp\]'"):
        write_gguf(deep_model("llama"), tmp_path / "m.gguf")
