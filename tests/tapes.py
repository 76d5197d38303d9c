"""A recorder that notices on any device what CUDA would when passes are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from speculant import Speculator
from speculant.engines.hf.cpu.accelerate import CpuAcceleration
from speculant.engines.hf.cuda.graph_runner import MIN_LENGTH, GraphRunner

WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero")


class Tape(TorchDispatchMode):
    """Notes the operations of some work with the very tensors they ran on, and runs those again, as a CUDA graph does.

    Whatever Python decided, and every number that was not in a tensor, stays as it was. What would wait for the device
    is refused, as in a recording by CUDA.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in WAITS:
            raise RuntimeError(f"{func._schema.name} waits for the device.")
        found = func(*args, **(kwargs or {}))
        outputs = [each for each in (found if isinstance(found, tuple | list) else [found]) if isinstance(each, Tensor)]
        fresh = not any(returned.alias_info for returned in func._schema.returns)
        self.steps.append((func, args, kwargs or {}, outputs if fresh else []))
        return found

    def replay(self) -> None:
        """Run what was noted."""
        for func, args, kwargs, outputs in self.steps:
            again = func(*args, **kwargs)
            for old, new in zip(outputs, again if isinstance(again, tuple | list) else [again], strict=False):
                old.copy_(new)


class Tapes:
    """Records tapes; counts and may fail."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0
        self.fail_recording = self.fail_replay = False

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.fail_recording:
            raise RuntimeError("the device is full.\nand more of it")
        tape = Tape()
        with torch.inference_mode(False), torch.no_grad():
            work()
            with tape:
                work()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            if self.fail_replay:
                self.fail_replay = False
                raise ValueError("interrupted")
            tape.replay()

        return replay


def recorded(model: Any, tapes: Tapes | None = None, *, capacity: int = MIN_LENGTH, **options: Any) -> Speculator:
    """Return a speculator whose passes are replayed."""
    tapes = tapes or Tapes()
    fast = CpuAcceleration(graphs=GraphRunner(model, lambda: tapes, capacity=capacity))
    return Speculator.from_transformers(model, fast=fast, **options)


def graphs_of(speculator: Speculator) -> GraphRunner:
    """Return what replays a speculator's passes."""
    graphs = speculator.fast.graphs
    assert graphs is not None
    return graphs
