"""A transformers model in llama.cpp, through a GGUF file that is then removed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from speculant.core.errors import UnsupportedError
from speculant.engines.llamacpp.gguf_file import check_architecture, write_gguf
from speculant.engines.llamacpp.library import load_library
from speculant.engines.llamacpp.options import LlamaCppOptions
from speculant.engines.llamacpp.request_model import LlamaCppModel, load_gguf


def convert(model: Any) -> LlamaCppModel:
    """Return a causal LM as llama.cpp's; the model itself if it is.

    Raises:
        UnsupportedError: llama.cpp is not installed, or cannot run the model where it is.
        FileError: there is not enough disk space for the converted model.
        OutOfMemoryError: there is not enough memory to load it.
    """
    if isinstance(model, LlamaCppModel):
        return model
    library = load_library()
    check_architecture(model)
    on_gpu = model.device.type != "cpu"
    if on_gpu and not library.api.llama_supports_gpu_offload():
        raise UnsupportedError(
            f"the model is on {model.device}, but the llama.cpp that is installed runs on CPUs only. Add "
            "--device cpu, or build it for the accelerator (CMAKE_ARGS=-DGGML_CUDA=on pip install "
            "--force-reinstall --no-cache-dir llama-cpp-python)."
        )
    exact = model.dtype == torch.float32
    positions = int(model.config.max_position_embeddings)
    options = LlamaCppOptions(
        threads=torch.get_num_threads(),
        gpu_layers=None if on_gpu else 0,
        context=min(positions, 1 << 14),
        flash_attention=not exact,
        cache_type="f32" if exact else "f16",
        mmap=False,  # so that the file is not needed after loading
    )
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        file = Path(folder) / "model.gguf"
        write_gguf(model, file)
        converted, _ = load_gguf(file, options)
    return converted
