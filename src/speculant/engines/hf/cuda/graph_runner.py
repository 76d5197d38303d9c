"""Passes of fixed shapes, recorded as CUDA graphs and replayed. Never run on a GPU so far; disabled by default.

Launching a model's kernels one by one from Python takes longer than a small pass itself. A CUDA graph launches all of
them at once, but always the same ones on the same memory. So everything that changes between rounds is put into buffers
at fixed addresses: a draft is padded to one of a few row counts, keys and values are in the buffers of
`static_cache.py`, rows are written at positions given by a tensor, and attention reads one of a few lengths, with a
mask (computed on the device from the draft's ancestors) that hides the unused part. One small copy moves a draft to the
device; the host waits for nothing until it reads the target's tokens.

Padding rows come last and attend to the committed text and themselves; their keys are overwritten by the next pass and
their logits dropped.

Recording and replaying are behind `GraphRecorder`, so everything else runs without an accelerator. The scheme follows
nano-vllm (GeeeekExplorer/nano-vllm, `ModelRunner.capture_cudagraph`), which records plain decoding for several batch
sizes, largest first, in one memory pool.
"""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm import tqdm
from transformers.cache_utils import DynamicCache

from speculant.core.tree import Bool, Int64
from speculant.engines.hf.acceleration import GraphSequence
from speculant.engines.hf.cache import usable_cache
from speculant.engines.hf.cuda.static_cache import (
    ANCESTORS,
    StaticBuffers,
    StaticCache,
    blank_input,
    draft_input,
    masks,
    to_device,
)
from speculant.engines.hf.draft_rows import DraftRows
from speculant.engines.hf.forward_pass import decode_mode
from speculant.engines.hf.probe.capabilities import HFCapabilities
from speculant.engines.hf.probe.class_checks import check_model

ROWS = (1, 3, 5, 9, 17, 33, 65)  # a root and 0, 2, 4, ... 64 nodes
MIN_LENGTH = 256
MIN_CAPACITY = 1024
_WARM_UPS = 2


class GraphError(Exception):
    """A model's passes cannot be recorded; the message is the reason, phrased as part of a sentence."""


class GraphRecorder(Protocol):
    """Records work on buffers at fixed addresses. Recordings of one recorder may share memory."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run the work at least once, and return a function that repeats it."""


class CudaRecorder:
    """Records CUDA graphs in one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(self._device):
            here, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(here)
            with torch.cuda.stream(side):  # allocations and choices at first use must not be recorded
                for _ in range(_WARM_UPS):
                    work()
            here.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads may continue to allocate meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
            self._pool = graph.pool()
        replay: Callable[[], None] = graph.replay
        return replay


class GraphRunner:
    """The recorded passes of a model, for one sequence at a time."""

    def __init__(
        self, model: Any, recorder: Callable[[], GraphRecorder] | None = None, *, capacity: int = MIN_CAPACITY
    ) -> None:
        """Record passes over short texts; those over longer texts are recorded when needed.

        Args:
            model: a causal LM that `check_model` accepts.
            recorder: creates recorders; None for CUDA graphs on the model's device.
            capacity: initial rows of the cache.

        Raises:
            GraphError: the model's passes cannot be recorded.
        """
        self._model = model
        self._make_recorder = recorder or (lambda: CudaRecorder(model.device))
        self._capacity = length_bucket(capacity)
        self._sequence: Callable[[], GraphSequence | None] = lambda: None
        self._thread, self._lock = 0, threading.Lock()
        self._fits, self._failed = True, False
        try:
            self._capabilities: HFCapabilities = self._check()
            with torch.no_grad():
                self._begin()
                self._record(length_bucket(ROWS[-1]), start=0)
        except Exception as error:
            raise GraphError(_first_line(error)) from error

    def forward(
        self, sequence: GraphSequence, tokens: Int64, rows: DraftRows, *, shift: int, seen: Bool | None
    ) -> Tensor | None:
        """Run a pass by replaying it; return Logits[R, V], or None if it needs a plain pass.

        Plain passes are needed for more than 65 rows, while another thread's cache is in the buffers, after the model
        got hooks or adapters, and once recording has failed, which is logged.

        Args:
            sequence: a sequence of this model with committed rows only.
            tokens: Int64[R].
            rows: the R rows.
            shift: cache slot minus position.
            seen: Bool[T], False at the prompt's padding; None without padding.
        """
        if self._failed or len(tokens) > ROWS[-1]:
            return None
        start = sequence.length
        length = length_bucket(start + ROWS[-1])
        with torch.no_grad():
            try:
                if not self._claim(sequence, length, seen):
                    return None
                if (ROWS[0], length) not in self._replays:
                    self._record(length, start)
            except Exception as error:
                self._give_up(error)
                return None
            width = next(count for count in ROWS if count >= len(tokens))
            given = draft_input(tokens, rows, width, start, shift)
            self._inputs[width].copy_(to_device(given, self._model.device))
            self._replays[width, length]()
            self._buffers.set_length(sequence.cache, start + len(tokens))
            return self._logits[: len(tokens)].clone()  # the next pass overwrites them

    def keep(self, cache: DynamicCache, start: int, rows: list[int]) -> bool:
        """Keep rows as `keep_rows` does; return False if the cache is not in the buffers."""
        if not self._buffers.holds(cache):
            return False
        self._buffers.keep(cache, start, rows)
        return True

    def _claim(self, sequence: GraphSequence, length: int, seen: Bool | None) -> bool:
        """Move a sequence's rows into buffers of a length; return whether its passes can be replayed."""
        with self._lock:
            if self._buffers.holds_other(sequence.cache) and self._thread != threading.get_ident():
                return False  # its rows may be in use there
            self._thread = threading.get_ident()
            new = self._sequence() is not sequence
            if new:
                self._fits = self._renew()
                self._sequence = weakref.ref(sequence)
            if not self._fits:
                return False
            larger = length > self._buffers.capacity
            if larger:
                self._capacity = length_bucket(2 * length)
                self._allocate(sequence.cache)
            self._buffers.move_in(sequence.cache)
            if new or larger:
                self._seen.fill_(True)
                if seen is not None:
                    self._seen[: len(seen)] = torch.from_numpy(seen)
            return True

    def _renew(self) -> bool:
        """Start over if the model has changed; return whether it can still be recorded."""
        try:
            self._capabilities = self._check()
        except GraphError as error:
            logging.getLogger(__name__).warning("this request runs plain passes: %s.", error)
            return False
        if self._print != _fingerprint(self._model):
            self._begin()
        return True

    def _check(self) -> HFCapabilities:
        """Return the model's capabilities.

        Raises:
            GraphError: it has parts whose changes a recording would not notice, or cannot verify trees.
        """
        if hasattr(self._model, "_orig_mod"):
            raise GraphError("it is compiled already")
        if self._model.training:
            raise GraphError("it is in training mode")
        for module in self._model.modules():
            if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
                raise GraphError("its modules have hooks, which a recording would leave out")
            if hasattr(module, "base_layer"):
                raise GraphError("it has an adapter, whose settings a recording would not follow")
        capabilities = check_model(self._model)
        if not capabilities.trees:
            raise GraphError("it verifies chains only")
        return capabilities

    def _begin(self) -> None:
        """Determine the shapes by a pass over one token, and allocate."""
        model, cache = self._model, usable_cache(None)
        self._print: tuple[Any, ...] = ()
        token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
        logits = model(input_ids=token, past_key_values=cache, use_cache=True, return_dict=True).logits
        with torch.inference_mode(False):
            self._logits = torch.zeros((ROWS[-1], logits.shape[-1]), dtype=logits.dtype, device=logits.device)
            self._inputs = {width: torch.from_numpy(blank_input(width)).to(model.device) for width in ROWS}
        self._allocate(cache)
        self._print = _fingerprint(model)

    def _allocate(self, like: DynamicCache) -> None:
        """Allocate the buffers that depend on the capacity; recordings on the previous ones are dropped and freed."""
        self._replays: dict[tuple[int, int], Callable[[], None]] = {}
        self._recorder = self._make_recorder()
        self._buffers = StaticBuffers(like, self._capacity)
        with torch.inference_mode(False):
            self._seen = torch.ones(self._capacity, dtype=torch.bool, device=self._model.device)
            self._columns = torch.arange(self._capacity, device=self._model.device)

    def _record(self, length: int, start: int) -> None:
        """Record the passes over a length, largest first; rows from `start` on are overwritten meanwhile."""
        recorded = {}
        for width in tqdm(ROWS[::-1], f"preparing passes over {length} tokens", leave=False, disable=None):
            blank = blank_input(width, start, shift=start)
            self._inputs[width].copy_(to_device(blank, self._model.device))
            recorded[width, length] = self._recorder.record(self._work(width, length))
        self._replays |= recorded

    def _work(self, width: int, length: int) -> Callable[[], None]:
        """Return the pass over R rows and L columns of the cache, as a function without arguments and result."""
        model, inputs, logits = self._model, self._inputs[width], self._logits[:width]
        ids, positions, slots = torch.unbind(inputs[:ANCESTORS])
        seen, columns = self._seen[:length], self._columns[:length]
        buffers, capabilities = self._buffers, self._capabilities

        def work() -> None:
            with decode_mode(model):
                output = model(
                    input_ids=ids[None],
                    attention_mask=masks(inputs, seen, columns, capabilities, model.dtype),
                    position_ids=positions[None],
                    past_key_values=StaticCache(buffers, slots, length),
                    use_cache=True,
                    return_dict=True,
                )
            logits.copy_(output.logits[0])

        return work

    def _give_up(self, error: Exception) -> None:
        """Run plain passes from now on. A cache that is in the buffers stays there, and plain passes append to it."""
        self._failed = True
        self._replays, self._recorder = {}, self._make_recorder()
        logging.getLogger(__name__).warning("plain passes from now on: %s.", _first_line(error))


def length_bucket(rows: int) -> int:
    """Return the smallest length for `rows` rows: a power of two or three quarters of one, at least 256."""
    power = max(MIN_LENGTH, 1 << (rows - 1).bit_length())
    return 3 * power // 4 if power > MIN_LENGTH and 4 * rows <= 3 * power else power


def _fingerprint(model: Any) -> tuple[Any, ...]:
    """Return what a recording depends on: the addresses of the weights, and the attention that reads the cache."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    attention = getattr(model.config, "_attn_implementation", None)
    return attention, *((each.data_ptr(), each.shape, each.stride(), each.dtype) for each in tensors)


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, without its full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
