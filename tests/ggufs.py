"""GGUF files for tests, made of models of transformers; where llama.cpp is not installed, tests that need them skip."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from models import VOCABULARY, tiny_model
from speculant.api.loading import load_model


def needs_llamacpp() -> None:
    """Skip the test where llama.cpp is not installed."""
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")


@functools.cache
def bundled_gguf(kind: str = "f32") -> Path:
    """Return the bundled model as a GGUF file with its tokenizer, in one of `quantize.FORMATS`."""
    needs_llamacpp()
    from speculant.engines.llamacpp.gguf_file import write_gguf
    from speculant.engines.llamacpp.quantize import quantize

    path = _folder() / f"stories-{kind}.gguf"
    if kind == "f32":
        model, tokenizer = load_model(None)
        write_gguf(model, path, tokenizer=tokenizer)
    else:
        quantize(bundled_gguf(), path, kind, threads=1)
    return path


@functools.cache
def tiny_gguf() -> Path:
    """Return `tiny_model("llama")` as a GGUF file, without a tokenizer."""
    needs_llamacpp()
    from speculant.engines.llamacpp.gguf_file import write_gguf

    path = _folder() / "tiny.gguf"
    write_gguf(tiny_model("llama"), path)
    return path


@functools.cache
def mamba_gguf() -> tuple[Path, Any]:
    """Return a random Mamba model as a GGUF file without a tokenizer, and the model of transformers that it is."""
    needs_llamacpp()
    import gguf
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(9)
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=16, eos_token_id=None)
    model = MambaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    path = _folder() / "mamba.gguf"
    writer: Any = gguf.GGUFWriter(str(path), "mamba")
    writer.add_context_length(256)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(2)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_inner_size(config.intermediate_size)
    writer.add_ssm_state_size(config.state_size)
    writer.add_ssm_time_step_rank(config.time_step_rank)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    names = {"in_proj": "ssm_in", "conv1d": "ssm_conv1d", "x_proj": "ssm_x", "dt_proj": "ssm_dt", "out_proj": "ssm_out"}
    for name, parameter in model.named_parameters():
        parts, values = name.split("."), parameter.detach().float()
        if name == "backbone.embeddings.weight":
            target = "token_embd.weight"
        elif name == "backbone.norm_f.weight":
            target = "output_norm.weight"
        elif parts[3] == "norm":
            target = f"blk.{parts[2]}.attn_norm.weight"
        elif parts[4] in ("A_log", "D"):
            target = f"blk.{parts[2]}.ssm_{parts[4][0].lower()}"
            values = -values.exp() if parts[4] == "A_log" else values
        else:
            target = f"blk.{parts[2]}.{names[parts[4]]}.{parts[5]}"
            values = values.squeeze(1) if parts[4] == "conv1d" and values.ndim == 3 else values
        writer.add_tensor(target, values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, model


def open_engine(path: Path, **options: Any) -> Any:
    """Return the engine of a file; it has one thread."""
    from speculant.engines.llamacpp.engine import LlamaEngine
    from speculant.engines.llamacpp.options import LlamaCppOptions
    from speculant.engines.llamacpp.request_model import load_gguf

    model, _ = load_gguf(path, LlamaCppOptions(**{"threads": 1} | options))
    return LlamaEngine(model, model.context)


@functools.cache
def _folder() -> Path:
    held = tempfile.TemporaryDirectory(prefix="speculant-tests-")
    _HELD.append(held)
    return Path(held.name)


_HELD: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends
