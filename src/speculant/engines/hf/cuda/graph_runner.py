"""Passes of fixed shapes, recorded once and then replayed: CUDA graphs.

Launching a model's kernels one by one from Python takes longer than a small pass itself. A CUDA graph launches all of
them at once, but always the same ones on the same memory. So everything that differs from round to round is put into
buffers that stay where they are: a draft is padded to one of a few row counts, the cache lies in the buffers of
`captured_rows.py`, rows are written at positions that a tensor holds, and attention reads one of a few lengths, with a
mask (made on the device from the draft's ancestors) that hides what is not there. One small copy takes a draft to the
device; the host waits for nothing until it reads what the target says.

Padding rows hang below the root as leaves do, behind all others; their keys are overwritten by the next pass and their
logits dropped.

Recording and replaying lie behind `Recorder`, so all else can be run without an accelerator. The scheme is that of
nano-vllm (GeeeekExplorer/nano-vllm, `ModelRunner.capture_cudagraph`), which records plain decoding for several batch
sizes, largest first, in one memory pool.
"""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from tqdm import tqdm
from transformers.cache_utils import DynamicCache

from speculant.core.tree import Bool, DraftTree
from speculant.engines.hf.cache import usable_cache
from speculant.engines.hf.capabilities import Abilities, check_model, decode_mode
from speculant.engines.hf.cuda.static_cache import ANCESTORS, LentRows, Writing, draft_input, masks, to_device

if TYPE_CHECKING:
    from speculant.engines.hf.target import TransformersTarget

logger = logging.getLogger(__name__)

ROWS = (1, 3, 5, 9, 17, 33, 65)  # a root and 0, 2, 4, ... 64 nodes
LEAST_LENGTH = 256
LEAST_CAPACITY = 1024
_WARM_UPS = 2


class CaptureError(Exception):
    """A model's passes cannot be recorded; the message says why, as part of a sentence."""


class Recorder(Protocol):
    """Records work on buffers that stay where they are. What one recorder records may share memory."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do the work at least once, and return what does it again."""


class CudaGraphs:
    """Records CUDA graphs in one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(self._device):
            here, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(here)
            with torch.cuda.stream(side):  # what libraries allocate or choose at first use must not be recorded
                for _ in range(_WARM_UPS):
                    work()
            here.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on allocating meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
            self._pool = graph.pool()
        replay: Callable[[], None] = graph.replay
        return replay


class CapturedPasses:
    """The recorded passes of a model, for one sequence at a time."""

    def __init__(
        self, model: Any, recorder: Callable[[], Recorder] | None = None, *, capacity: int = LEAST_CAPACITY
    ) -> None:
        """Record passes over short texts; those over longer ones are recorded when a text gets there.

        Args:
            model: a causal LM that `check_model` accepts.
            recorder: makes recorders; None for CUDA graphs on the model's device.
            capacity: rows of the cache to begin with.

        Raises:
            CaptureError: the model's passes cannot be recorded.
        """
        self._model = model
        self._make_recorder = recorder or (lambda: CudaGraphs(model.device))
        self._capacity = length_bucket(capacity)
        self._target: Callable[[], TransformersTarget | None] = lambda: None
        self._thread, self._lock = 0, threading.Lock()
        self._fits, self._failed = True, False
        try:
            self._abilities: Abilities = self._check()
            with torch.no_grad():
                self._begin()
                self._record(length_bucket(ROWS[-1]), start=0)
        except Exception as error:
            raise CaptureError(_said(error)) from error

    def verify(
        self, target: TransformersTarget, root: int, tree: DraftTree, *, shift: int, seen: Bool | None
    ) -> Tensor | None:
        """Do what the target's `verify` does, or return None where only a plain pass can.

        That is: for more than 64 nodes, for gradients, while another thread's cache lies in the buffers, after the
        model got hooks or adapters, and once recording has failed, which is logged as a warning.

        Args:
            target: the sequence, of this model.
            root: the last committed token.
            tree: N nodes.
            shift: cache slot minus position.
            seen: Bool[T], False at the prompt's padding, or None.

        Returns:
            Logits[N + 1, V].
        """
        if self._failed or len(tree) + 1 > ROWS[-1] or torch.is_grad_enabled():
            return None
        start = target.cached
        length = length_bucket(start + ROWS[-1])
        try:
            if not self._claim(target, length, seen):
                return None
            if (ROWS[0], length) not in self._replays:
                self._record(length, start)
        except Exception as error:
            self._give_up(error)
            return None
        rows = next(count for count in ROWS if count > len(tree))
        self._inputs[rows].copy_(to_device(draft_input(root, tree, rows, start, shift), self._model.device))
        self._replays[rows, length]()
        self._lent.show(target.cache, start + len(tree) + 1)
        return self._logits[: len(tree) + 1].clone()  # the next pass writes there

    def keep(self, cache: DynamicCache, start: int, rows: list[int]) -> bool:
        """Do what `keep_rows` does; False where the cache does not lie here."""
        if not self._lent.holds(cache):
            return False
        self._lent.keep(cache, start, rows)
        return True

    def _claim(self, target: TransformersTarget, length: int, seen: Bool | None) -> bool:
        """Bring a target's rows into the buffers, and these to a length; say whether its passes can be replayed."""
        with self._lock:
            if self._lent.lent_beside(target.cache) and self._thread != threading.get_ident():
                return False  # its rows may be in use there just now
            self._thread = threading.get_ident()
            new = self._target() is not target
            if new:
                self._fits = self._renew()
                self._target = weakref.ref(target)
            if not self._fits:
                return False
            larger = length > self._lent.capacity
            if larger:
                self._capacity = length_bucket(2 * length)
                self._allocate(target.cache)
            self._lent.lend(target.cache)
            if new or larger:
                self._seen.fill_(True)
                if seen is not None:
                    self._seen[: len(seen)] = torch.from_numpy(seen)
            return True

    def _renew(self) -> bool:
        """Begin anew if the model has changed; say whether it can still be recorded."""
        try:
            self._abilities = self._check()
        except CaptureError as error:
            logger.warning("this request runs plain passes: %s.", error)
            return False
        if self._print != _fingerprint(self._model):
            self._begin()
        return True

    def _check(self) -> Abilities:
        """Return what the model can do.

        Raises:
            CaptureError: it has what a recording would not notice, or cannot verify trees.
        """
        if hasattr(self._model, "_orig_mod"):
            raise CaptureError("it is compiled already")
        if self._model.training:
            raise CaptureError("it is in training mode")
        for module in self._model.modules():
            if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
                raise CaptureError("its modules have hooks, which a recording would leave out")
            if hasattr(module, "base_layer"):
                raise CaptureError("it has an adapter, whose settings a recording would not follow")
        abilities = check_model(self._model)
        if not abilities.trees:
            raise CaptureError("it verifies chains only")
        return abilities

    def _begin(self) -> None:
        """Find out the shapes by a pass over one token, and allocate."""
        model, cache = self._model, usable_cache(None)
        self._print: tuple[Any, ...] = ()
        token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
        logits = model(input_ids=token, past_key_values=cache, use_cache=True, return_dict=True).logits
        with torch.inference_mode(False):
            self._logits = torch.zeros((ROWS[-1], logits.shape[-1]), dtype=logits.dtype, device=logits.device)
            blank = {rows: draft_input(0, DraftTree.empty(), rows, 0, 0) for rows in ROWS}
            self._inputs = {rows: torch.from_numpy(each).to(model.device) for rows, each in blank.items()}
        self._allocate(cache)
        self._print = _fingerprint(model)

    def _allocate(self, like: DynamicCache) -> None:
        """Make the buffers that depend on the capacity; what was recorded on others is dropped, and its memory."""
        self._replays: dict[tuple[int, int], Callable[[], None]] = {}
        self._recorder = self._make_recorder()
        self._lent = LentRows(like, self._capacity)
        with torch.inference_mode(False):
            self._seen = torch.ones(self._capacity, dtype=torch.bool, device=self._model.device)
            self._columns = torch.arange(self._capacity, device=self._model.device)

    def _record(self, length: int, start: int) -> None:
        """Record the passes over a length, largest first; rows from `start` on are written meanwhile."""
        recorded = {}
        for rows in tqdm(ROWS[::-1], f"preparing passes over {length} tokens", leave=False, disable=None):
            blank = draft_input(0, DraftTree.empty(), rows, start, start)
            self._inputs[rows].copy_(to_device(blank, self._model.device))
            recorded[rows, length] = self._recorder.record(self._work(rows, length))
        self._replays |= recorded

    def _work(self, rows: int, length: int) -> Callable[[], None]:
        """Return the pass over R rows and L columns of the cache, which takes nothing and returns nothing."""
        model, inputs, logits = self._model, self._inputs[rows], self._logits[:rows]
        ids, positions, slots = torch.unbind(inputs[:ANCESTORS])
        seen, columns = self._seen[:length], self._columns[:length]
        lent, abilities = self._lent, self._abilities

        def work() -> None:
            with decode_mode(model):
                output = model(
                    input_ids=ids[None],
                    attention_mask=masks(inputs, seen, columns, abilities, model.dtype),
                    position_ids=positions[None],
                    past_key_values=Writing(lent, slots, length),
                    use_cache=True,
                    return_dict=True,
                )
            logits.copy_(output.logits[0])

        return work

    def _give_up(self, error: Exception) -> None:
        """Run plain passes from now on. A cache that lies here stays, and the plain ones append to it."""
        self._failed = True
        self._replays, self._recorder = {}, self._make_recorder()
        logger.warning("plain passes from now on: %s.", _said(error))


def length_bucket(rows: int) -> int:
    """Return the least length that holds as many rows: a power of two or three quarters of one, 256 or more."""
    power = max(LEAST_LENGTH, 1 << (rows - 1).bit_length())
    return 3 * power // 4 if power > LEAST_LENGTH and 4 * rows <= 3 * power else power


def _fingerprint(model: Any) -> tuple[Any, ...]:
    """Return what a recording depends on: where the weights lie, and which attention reads the cache."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    attention = getattr(model.config, "_attn_implementation", None)
    return attention, *((each.data_ptr(), each.shape, each.stride(), each.dtype) for each in tensors)


def _said(error: Exception) -> str:
    """Return the first line of an error's message, without its full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
