"""Whose passes run a GGUF file, and that Speculant's own give the text of plain decoding."""

from __future__ import annotations

import logging
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from gguf_families import family_file, family_model, write_family
from ggufs import bundled_gguf
from speculant import PrefixCache
from speculant.api import gguf_engine
from speculant.api.gguf_engine import choose_engine
from speculant.api.speculator import Speculator
from speculant.core.errors import ModelNotFoundError, UnsupportedError, UsageError
from speculant.engines.hf.quantized.gguf.architectures import ARCHITECTURES
from speculant.engines.hf.quantized.gguf.plan import GgufPlan
from speculant.engines.llamacpp.request_model import LlamaCppModel

PROMPTS = ["Once upon a time there was a little dog named", "Tom and Lily went to the park. Tom and Lily"]
TOKENS = 24


@pytest.fixture(autouse=True)
def _a_fast_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every machine the processor and the compiler that `auto` asks for, and llama.cpp."""
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(gguf_engine, "_kernel_error", lambda: "")
    monkeypatch.setattr(gguf_engine, "_offloads", lambda: False)
    monkeypatch.setattr(gguf_engine, "find_spec", lambda name: ModuleSpec(name, None))


def test_auto(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Speculant's own passes, but llama.cpp for what they do not know, or where they are no faster: with the reason."""
    assert choose_engine(family_file("qwen2")).planned is not None
    assert "llamacpp for llama.cpp's" in choose_engine(family_file("qwen2")).reason
    unknown = tmp_path / "unknown.gguf"
    write_family(family_model("qwen2"), ARCHITECTURES["qwen2"], unknown, describe=_add_unknown_setting)
    for path, change, said in (
        (unknown, None, "has the setting 'qwen2.attention.clamp_kqv'"),
        (family_file("qwen2"), ("torch.backends.cpu.get_cpu_capability", lambda: "DEFAULT"), "has no AVX2"),
        (family_file("qwen2"), (gguf_engine, "_kernel_error", lambda: "no g++"), "cannot be compiled here (no g++)"),
        (family_file("qwen2"), (gguf_engine, "_offloads", lambda: True), "built for an accelerator"),
        (family_file("qwen2"), (GgufPlan, "check_memory", _no_memory), "takes much memory"),
    ):
        with monkeypatch.context() as patch:
            if change is not None:
                patch.setattr(*change)
            found = choose_engine(path)
        assert found.planned is None
        assert found.reason.startswith("decoding with llama.cpp: ")
        assert said in found.reason
        assert "Use " not in found.reason


def test_halves_are_read_by_llama_cpp() -> None:
    """16-bit floats would be expanded, unless bfloat16 is asked for."""
    pytest.importorskip("llama_cpp")
    found = choose_engine(bundled_gguf("bf16"))
    assert found.planned is None
    assert "16-bit floats" in found.reason
    assert choose_engine(bundled_gguf("bf16"), dtype="bfloat16").planned is not None


def test_without_llama_cpp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What Speculant runs, runs; what it does not names both reasons."""
    monkeypatch.setattr(gguf_engine, "find_spec", lambda _: None)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "DEFAULT")
    assert choose_engine(family_file("qwen2")).planned is not None
    write_family(family_model("qwen2"), ARCHITECTURES["qwen2"], tmp_path / "m.gguf", describe=_add_unknown_setting)
    with pytest.raises(UnsupportedError, match=r"clamp_kqv.* is not installed: pip install"):
        choose_engine(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"engine": "other"}, UsageError, "engine must be one of auto, speculant, llamacpp"),
        ({"engine": "llamacpp", "dtype": "float32"}, UsageError, "dtype is for Speculant's own passes"),
        ({"engine": "speculant", "llamacpp": {"gpu_layers": 3}}, UsageError, "gpu_layers is an option of llama.cpp"),
        ({"llamacpp": {"context": 8}, "own": {"activations": "int8"}}, UsageError, "context is an option of llama.cpp"),
        ({"engine": "llamacpp", "needed": "heads do"}, UnsupportedError, "heads do, which llama.cpp does not offer"),
        ({"dtype": "float16"}, UsageError, "float32 or bfloat16, not in 'float16'"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], error: type[Exception], said: str) -> None:
    """Options of both engines, or of the other one."""
    with pytest.raises(error, match=said):
        choose_engine(family_file("qwen2"), **options)


def test_an_option_of_llama_cpp_chooses_it() -> None:
    """`gpu_layers` and its like."""
    found = choose_engine(family_file("qwen2"), llamacpp={"gpu_layers": 3, "context": None})
    assert found.planned is None
    assert "gpu_layers is an option of it" in found.reason
    with pytest.raises(ModelNotFoundError):
        choose_engine("missing.gguf")


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["q8_0", "q4_k"])
def test_texts_are_those_of_plain_decoding(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """With drafts, greedy and sampled, alone, in batches and with cached prefixes: the text without drafts."""
    with caplog.at_level(logging.INFO, "speculant.gguf"):
        mix = Speculator.from_gguf(bundled_gguf(kind), engine="speculant", nodes=8, threads=1)
    assert "decoding with Speculant's own passes" in caplog.text
    plain = Speculator.from_transformers(mix.model, mix.tokenizer, method="none")
    for options in ({"temperature": 0}, {"temperature": 0.8, "seed": 4}):
        for prompt in PROMPTS * 2:
            found = mix.generate(prompt, max_new_tokens=TOKENS, **options)
            assert found.ids == plain.generate(prompt, max_new_tokens=TOKENS, **options).ids
        assert found.stats.accepted > TOKENS // 4
    expected = [plain.generate(prompt, max_new_tokens=TOKENS, temperature=0).ids for prompt in PROMPTS]
    with mix.batch(2, prefix_cache=PrefixCache("1GB")) as batch:
        for _ in range(2):
            results = batch.run([batch.add(prompt, max_new_tokens=TOKENS, temperature=0) for prompt in PROMPTS])
            assert [result.ids for result in results] == expected


@pytest.mark.peers
def test_heads_and_layers(tmp_path: Path) -> None:
    """What llama.cpp does not offer runs on a quantised file: a trained head, and a part of the layers."""
    for options in ({"method": "layer-skip"}, {"method": "eagle", "head": "bundled"}):
        speculator = Speculator.from_gguf(bundled_gguf("q8_0"), threads=1, **options)  # type: ignore[arg-type]
        plain = Speculator.from_transformers(speculator.model, speculator.tokenizer, method="none")
        found = speculator.generate(PROMPTS[0], max_new_tokens=TOKENS, temperature=0)
        assert found.ids == plain.generate(PROMPTS[0], max_new_tokens=TOKENS, temperature=0).ids
        assert not isinstance(speculator.model, LlamaCppModel)
        assert found.stats.accepted > 0


def _no_memory(_: Any) -> None:
    from speculant.core.errors import OutOfMemoryError

    raise OutOfMemoryError("it takes much memory. Use less.")


def _add_unknown_setting(writer: Any) -> None:
    writer.add_tokenizer_model("none")
    writer.add_clamp_kqv(8.0)
