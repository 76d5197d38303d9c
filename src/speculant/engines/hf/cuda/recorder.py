"""Records work on a device to be repeated without Python: as CUDA graphs, or a substitute for them in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

_WARM_UPS = 2


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
