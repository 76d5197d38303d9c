"""A GGUF model in llama.cpp: its weights, vocabulary and header.

Recurrent and hybrid models (Mamba, RWKV and mixtures with attention) keep one state per sequence instead of a row per
token, and llama.cpp cannot share rows between their sequences: they verify chains, see `replay_cache`. Encoders and
diffusion models, which do not decode token by token, are refused.
"""

from __future__ import annotations

import ctypes
import weakref
from pathlib import Path

import torch

from speculant.core.errors import ModelError, OutOfMemoryError, SpeculantError, UnsupportedError
from speculant.engines.llamacpp.file import check_file
from speculant.engines.llamacpp.library import Library, load_library
from speculant.engines.llamacpp.options import LlamaCppOptions

_TEXT_BYTES = 1 << 16  # initial buffer size for header values
_COMPRESSED = ("deepseek4",)  # with a cache of blocks of several tokens, neither states nor rows


class LlamaModel:
    """A loaded model.

    Attributes:
        library: llama.cpp.
        path: path of the file.
        pointer: llama.cpp's model.
        vocab: llama.cpp's vocabulary of it.
        offloaded: whether layers run on an accelerator.
        threads: number of threads for passes on the CPU.
        refusal: why drafts cannot be verified on it; "" if they can.
        states: whether layers keep a recurrent state instead of a row for each token.
        window: number of rows that layers with a sliding window attend to; 0 without such layers.
    """

    def __init__(self, path: str | Path, options: LlamaCppOptions) -> None:
        """Load a file.

        Args:
            path: path of a GGUF file; for a split model, of the first file.
            options: loading options.

        Raises:
            ModelNotFoundError: there is no such file.
            ModelError: it is not a GGUF file, or truncated or damaged.
            UnsupportedError: the model does not decode token by token, or llama.cpp cannot run here or with these
                options.
            OutOfMemoryError: it does not fit.
        """
        self.path = Path(path)
        check_file(self.path)
        self.library: Library = load_library()
        api = self.library.api
        gpu = bool(api.llama_supports_gpu_offload())
        if options.gpu_layers and not gpu:
            raise UnsupportedError(
                "gpu_layers: the installed llama.cpp runs on CPUs only. Leave it out, or build llama.cpp for the "
                "accelerator (CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-cache-dir "
                "llama-cpp-python)."
            )
        self.offloaded = gpu and options.gpu_layers != 0
        self.threads = options.threads or torch.get_num_threads()
        params = api.llama_model_default_params()
        params.n_gpu_layers = (-1 if options.gpu_layers is None else options.gpu_layers) if gpu else 0
        params.load_mode = api.LLAMA_LOAD_MODE_MMAP if options.mmap else api.LLAMA_LOAD_MODE_NONE
        self.library.log.clear()
        self.pointer = api.llama_model_load_from_file(str(self.path).encode(), params)
        if not self.pointer:
            raise self._why_not_loaded()
        self._finalizer = weakref.finalize(self, api.llama_model_free, self.pointer)
        self.vocab = api.llama_model_get_vocab(self.pointer)
        self.refusal = self._check_kind()
        self.states = bool(api.llama_model_is_recurrent(self.pointer) or api.llama_model_is_hybrid(self.pointer))
        self.window = int(api.llama_model_n_swa(self.pointer))

    @property
    def vocabulary(self) -> int:
        """The vocabulary size V."""
        return int(self.library.api.llama_vocab_n_tokens(self.vocab))

    @property
    def positions(self) -> int:
        """The number of positions that the model was trained with."""
        return int(self.library.api.llama_model_n_ctx_train(self.pointer))

    @property
    def layers(self) -> int:
        """The number of layers."""
        return int(self.library.api.llama_model_n_layer(self.pointer))

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return int(self.library.api.llama_model_n_params(self.pointer))

    @property
    def weights(self) -> str:
        """The type of its weights, such as "bf16" or "q4_k - medium"."""
        buffer = ctypes.create_string_buffer(256)
        self.library.api.llama_model_desc(self.pointer, buffer, len(buffer))
        described = buffer.value.decode("utf-8", "replace").split(maxsplit=2)
        return described[-1].lower().removeprefix("(guessed) ").removeprefix("all ")

    def header(self, key: str) -> str | None:
        """Return a header value as text; None if there is none."""
        api, size = self.library.api, _TEXT_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            found = int(api.llama_model_meta_val_str(self.pointer, key.encode(), buffer, size))
            if found < size:
                return None if found < 0 else buffer.value.decode("utf-8", "replace")
            size = found + 1

    def _why_not_loaded(self) -> SpeculantError:
        log = self.library.log
        if log.mentions("failed to allocate", "unable to allocate", "out of memory", "bad_alloc"):
            return OutOfMemoryError(
                f"there is no room for {self.path}: {log.reason()}. Use a smaller quantisation, or fewer gpu_layers."
            )
        reason = log.reason() or "llama.cpp gives no reason"
        return ModelError(f"{self.path} cannot be loaded: {reason}. The file may be truncated; fetch it again.")

    def _check_kind(self) -> str:
        """Return why drafts cannot be verified on this architecture; "" if they can.

        Raises:
            UnsupportedError: it cannot be decoded at all.
        """
        api, pointer = self.library.api, self.pointer
        kind = self.header("general.architecture") or "unknown"
        if kind in _COMPRESSED:
            return f"the cache of '{kind}' is compressed, and llama.cpp cannot remove rejected drafts from its blocks"
        why = ""
        if api.llama_model_is_diffusion(pointer):
            why = "it is a diffusion model, which does not decode token by token"
        elif api.llama_model_has_encoder(pointer) or not api.llama_model_has_decoder(pointer):
            why = "it has an encoder, and only decoders continue a text"
        if why:
            raise UnsupportedError(f"a model of the architecture '{kind}' cannot be decoded here: {why}.")
        return ""
