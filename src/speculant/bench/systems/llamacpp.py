"""llama.cpp on the same weights as a system of a benchmark: plain greedy decoding without drafts.

The model in memory is written to a GGUF file, which llama.cpp reads and which is then removed; llama.cpp has a second
copy of the weights. Its passes are called one by one, as in its own loop, with as many threads as torch has. A float32
model gets a float32 cache and no flash attention, which would round to float16, so its logits agree with transformers'
to a few millionths; others get llama.cpp's defaults.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from speculant.bench.suite.tasks import TaskRequest, TaskSampling
from speculant.bench.systems.hf import eos_ids
from speculant.bench.systems.system import RequestOutcome
from speculant.core.errors import UnsupportedError
from speculant.drafters.top_tokens import best_token
from speculant.engines.llamacpp.converting import convert
from speculant.engines.llamacpp.library import load_library
from speculant.engines.llamacpp.opening import open_sequence

LLAMACPP = "llamacpp"
ROOT = np.array([-1], np.int32)


class LlamaCpp:
    """llama.cpp's plain decoding."""

    name = LLAMACPP
    has_memory = False

    def __init__(self, model: Any) -> None:
        """Convert and load the model.

        Args:
            model: the target.

        Raises:
            UnsupportedError, FileError, OutOfMemoryError: see `convert`.
        """
        self._dtype = str(model.dtype).removeprefix("torch.")
        self._model, self._ending = convert(model), eos_ids(model)

    @property
    def notes(self) -> tuple[str, ...]:
        context = self._model.context
        note = (
            f"{self.name} is llama.cpp (llama-cpp-python {load_library().version}) on the same weights in "
            f"{self._dtype}, converted to GGUF, {context.cache_type} cache, {context.model.threads} threads: plain "
            "decoding, one token per pass."
        )
        return (note,)

    def token_identical(self, sampling: TaskSampling) -> bool:
        return sampling.temperature == 0

    def warm_up(self) -> None:
        """Do nothing: there is nothing to compile."""

    def reset(self) -> None:
        """Do nothing: there is no memory."""

    def save(self, path: Path) -> None:
        """Do nothing: there is no memory."""

    def load(self, path: Path) -> None:
        """Do nothing: there is no memory."""

    def run(self, request: TaskRequest, sampling: TaskSampling) -> RequestOutcome:
        if sampling.temperature:
            raise sampling_unsupported()
        cache = open_sequence(self._model.context, request.prompt.tolist())
        forced = None if request.forced is None else request.forced.tolist()
        ids: list[int] = []
        start = time.perf_counter()
        first = cache.prefill()
        assert first is not None
        logits = first.logits
        prefill = time.perf_counter() - start
        try:
            while True:
                chosen = int(best_token(logits[:1]))
                token = chosen if forced is None else forced[len(ids)]
                ids.append(token)
                if len(ids) == request.max_new_tokens or (forced is None and token in self._ending):
                    break
                logits = cache.forward(np.array([token], np.int32), ROOT).logits
                cache.keep([0])
            seconds = time.perf_counter() - start
        finally:
            cache.release()
        return RequestOutcome(
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


def check_llamacpp(*, sampled: bool) -> None:
    """Check that llama.cpp can be measured, before anything is loaded.

    Args:
        sampled: whether tokens are sampled at a temperature.

    Raises:
        UnsupportedError: it cannot.
    """
    if sampled:
        raise sampling_unsupported()
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise UnsupportedError("llama.cpp is not installed: pip install 'speculant[llamacpp]'.") from error
    load_library()


def sampling_unsupported() -> UnsupportedError:
    """Return the error for temperatures above 0."""
    return UnsupportedError(
        f"{LLAMACPP} decodes greedily here. Leave --temperature out, or {LLAMACPP} out of --methods."
    )
