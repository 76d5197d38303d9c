"""llama.cpp on the same weights as a system of a benchmark: plain greedy decoding without drafts.

The model in memory is written as a GGUF file, which llama.cpp reads through llama-cpp-python and which is then
removed; llama.cpp holds a second copy of the weights. Its passes are called one by one, as its own loop would,
with as many threads as torch has. A float32 model gets a float32 cache and no flash attention, which would round to
float16, so its logits agree with transformers' to a few millionths; others get llama.cpp's defaults.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from speculant.bench.suite.tasks import Request, Sampling
from speculant.bench.systems.gguf_file import check_architecture, write_gguf
from speculant.bench.systems.hf import eos_ids
from speculant.bench.systems.system import Outcome
from speculant.core.errors import OutOfMemoryError, UnsupportedError

LLAMACPP = "llamacpp"
MIN_POSITIONS = 512  # of a context
BATCH = 2048  # most tokens of one call
_FLASH_OFF = 0

Logits = npt.NDArray[np.float32]


class Engine:
    """A model in llama.cpp, with the cache of one sequence."""

    def __init__(self, model: Any, *, threads: int | None = None) -> None:
        """Convert a model and load it.

        Args:
            model: a causal LM of transformers, of an architecture that `gguf_file` knows.
            threads: for its passes; None for as many as torch has.

        Raises:
            UnsupportedError: llama.cpp is not installed, or cannot run the model where it is.
            FileError: there is no room for the converted model.
            OutOfMemoryError: there is no room to load it.
        """
        self._llama = llama = import_llamacpp()
        check_architecture(model)
        on_gpu = model.device.type != "cpu"
        if on_gpu and not llama.llama_supports_gpu_offload():
            raise UnsupportedError(
                f"the model is on {model.device}, but the llama.cpp that is installed runs on CPUs only. Add "
                "--device cpu, or build it for the accelerator (CMAKE_ARGS=-DGGML_CUDA=on pip install "
                "--force-reinstall --no-cache-dir llama-cpp-python)."
            )
        self.exact = model.dtype == torch.float32
        self.threads = threads or torch.get_num_threads()
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self._positions = int(model.config.max_position_embeddings)
        self._reserved = 0
        self._context: Any = None
        self._resources, self._context_resources = contextlib.ExitStack(), contextlib.ExitStack()
        weakref.finalize(self, self._resources.close)
        llama.llama_backend_init()
        options = llama.llama_model_default_params()
        options.use_mmap = False  # so that nothing needs the file once it is read
        options.n_gpu_layers = 999 if on_gpu else 0
        with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
            file = Path(folder) / "model.gguf"
            write_gguf(model, file)
            self._model = llama.llama_model_load_from_file(str(file).encode(), options)
        if not self._model:
            raise OutOfMemoryError("llama.cpp cannot load the model; most often memory is short of a second copy.")
        self._resources.callback(llama.llama_model_free, self._model)
        self._batch = llama.llama_batch_init(BATCH, 0, 1)
        self._resources.callback(llama.llama_batch_free, self._batch)
        self._resources.push(self._context_resources)

    @property
    def version(self) -> str:
        """The version of llama-cpp-python."""
        return str(self._llama.__version__)

    def reserve(self, tokens: int) -> None:
        """Clear the sequence and make room for one of so many tokens, at most as many as the model has positions.

        Raises:
            OutOfMemoryError: memory is short.
        """
        llama = self._llama
        if tokens > self._reserved:
            self._context_resources.close()
            size = max(MIN_POSITIONS, 1 << (tokens - 1).bit_length())
            self._reserved = min(size, max(self._positions, tokens))
            options = llama.llama_context_default_params()
            options.n_ctx, options.n_batch = self._reserved, BATCH
            options.n_threads = options.n_threads_batch = self.threads
            if self.exact:
                options.flash_attn_type = _FLASH_OFF
                options.type_k = options.type_v = llama.GGML_TYPE_F32
            self._context = llama.llama_init_from_model(self._model, options)
            if not self._context:
                self._reserved = 0
                raise OutOfMemoryError(f"llama.cpp has no memory for a text of {tokens} tokens. Use a smaller dtype.")
            self._context_resources.callback(llama.llama_free, self._context)
        llama.llama_memory_clear(llama.llama_get_memory(self._context), False)

    def decode(self, tokens: Sequence[int], start: int, *, every: bool = False) -> Logits:
        """Run tokens at the positions from `start`; return the logits [1, V] of the last, or [n, V] of every one.

        The array is llama.cpp's own and valid until the next call.

        Raises:
            OutOfMemoryError: llama.cpp could not run them; `reserve` more.
        """
        for begin in range(0, len(tokens), BATCH):
            piece = tokens[begin : begin + BATCH]
            self._fill(piece, start + begin, every=every, last=begin + len(piece) == len(tokens))
            failed = self._llama.llama_decode(self._context, self._batch)
            if failed:
                raise OutOfMemoryError(f"llama.cpp could not run {len(piece)} tokens after {start} (code {failed}).")
        rows = len(tokens) if every else 1
        found: Logits = np.ctypeslib.as_array(self._llama.llama_get_logits(self._context), (rows, self.vocabulary))
        return found

    def keep(self, length: int) -> None:
        """Remove everything after the first `length` tokens from the cache."""
        self._llama.llama_memory_seq_rm(self._llama.llama_get_memory(self._context), 0, length, -1)

    def _fill(self, tokens: Sequence[int], start: int, *, every: bool, last: bool) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, start + i, every
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if last:
            batch.logits[len(tokens) - 1] = True


class LlamaCpp:
    """llama.cpp's plain decoding."""

    name = LLAMACPP
    has_memory = False

    def __init__(self, model: Any) -> None:
        """Convert and load the model.

        Args:
            model: the target.

        Raises:
            UnsupportedError, FileError, OutOfMemoryError: see `Engine`.
        """
        self._engine, self._ending = Engine(model), eos_ids(model)
        self._cache = "float32 cache" if self._engine.exact else "its default cache"
        self._dtype = str(model.dtype).removeprefix("torch.")

    @property
    def notes(self) -> tuple[str, ...]:
        engine = self._engine
        note = (
            f"{self.name} is llama.cpp (llama-cpp-python {engine.version}) on the same weights in {self._dtype}, "
            f"converted to GGUF, {self._cache}, {engine.threads} threads: plain decoding, one token per pass."
        )
        return (note,)

    def token_identical(self, sampling: Sampling) -> bool:
        return sampling.temperature == 0

    def warm_up(self) -> None:
        """Nothing is compiled."""

    def reset(self) -> None:
        """Nothing is learned."""

    def save(self, path: Path) -> None:
        """Nothing is learned."""

    def load(self, path: Path) -> None:
        """Nothing is learned."""

    def run(self, request: Request, sampling: Sampling) -> Outcome:
        if sampling.temperature:
            raise sampling_unsupported()
        engine, prompt = self._engine, request.prompt.tolist()
        forced = None if request.forced is None else request.forced.tolist()
        engine.reserve(len(prompt) + request.max_new_tokens)
        ids: list[int] = []
        tokens, position = prompt, 0
        prefill = 0.0
        start = time.perf_counter()
        while True:
            chosen = int(engine.decode(tokens, position)[0].argmax())
            position += len(tokens)
            prefill = prefill or time.perf_counter() - start
            token = chosen if forced is None else forced[len(ids)]
            ids.append(token)
            if len(ids) == request.max_new_tokens or (forced is None and token in self._ending):
                break
            tokens = [token]
        seconds = time.perf_counter() - start
        return Outcome(
            ids=ids,
            seconds=seconds,
            prefill_seconds=prefill,
            prefill_tokens=1,
            rounds=len(ids) - 1,
            drafted=0,
            offered_by_depth=[],
            accepted_by_depth=[],
            draft_seconds=0.0,
            target_seconds=seconds - prefill,
        )


def import_llamacpp() -> Any:
    """Return the package, with its log messages off.

    Raises:
        UnsupportedError: it is not installed, or does not run here.
    """
    try:
        import gguf  # noqa: F401
        import llama_cpp
    except ImportError as error:
        raise UnsupportedError(
            "llama.cpp is not installed: pip install 'speculant[llamacpp]'. It is built from source, which takes a "
            "C++ compiler and some minutes."
        ) from error
    except (OSError, RuntimeError) as error:  # its library was built for another machine
        raise UnsupportedError(
            f"llama.cpp is installed and does not run here: {error}. Build it anew: pip install --force-reinstall "
            "--no-cache-dir 'speculant[llamacpp]'."
        ) from error
    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
    return llama_cpp


def check_llamacpp(*, sampled: bool) -> None:
    """Check before anything is loaded that llama.cpp can be measured.

    Args:
        sampled: whether tokens are sampled at a temperature.

    Raises:
        UnsupportedError: it cannot.
    """
    if sampled:
        raise sampling_unsupported()
    import_llamacpp()


def sampling_unsupported() -> UnsupportedError:
    """Return the error for temperatures above 0."""
    return UnsupportedError(
        f"{LLAMACPP} decodes greedily here. Leave --temperature out, or {LLAMACPP} out of --methods."
    )
