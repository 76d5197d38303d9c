"""Several processes that train one head, as torchrun and `accelerate launch` start them.

Each has its own batches, the gradients are averaged, and the first one decides and writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import Tensor, distributed, nn


class Workers:
    """This process among those of the training.

    Attributes:
        rank, count: its number and how many there are.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count

    @property
    def first(self) -> bool:
        """Whether this process decides and writes."""
        return self.rank == 0

    def average(self, weights: Iterable[nn.Parameter]) -> None:
        """Average the gradients over all processes."""
        if self.count == 1:
            return
        for weight in weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            distributed.all_reduce(weight.grad)
            weight.grad /= self.count

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of a tensor over all processes."""
        if self.count == 1:
            return values
        found = values.clone()
        distributed.all_reduce(found)
        return found / self.count

    def agreed(self, *values: float, device: torch.device) -> list[float]:
        """Return the first process's numbers."""
        if self.count == 1:
            return list(values)
        found: Tensor = torch.tensor(values, dtype=torch.float32, device=device)
        distributed.broadcast(found, 0)
        return list(map(float, found.tolist()))

    def leave(self) -> None:
        """Wait until all processes are here, then part with them."""
        if self.count > 1:
            distributed.barrier()
            distributed.destroy_process_group()

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.count > 1:
            distributed.barrier()


def find_launched_device() -> str | None:
    """Return the GPU of a process that a launcher started; None if there is no launcher or no GPU."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and torch.cuda.is_available():
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    return None


def is_first_launched() -> bool:
    """Whether this is the first of the processes that a launcher started, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def join_workers(device: torch.device) -> Workers:
    """Return this process's place among those that a launcher started; alone if there is no launcher."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Workers()
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Workers(distributed.get_rank(), count)
