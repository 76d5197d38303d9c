"""Several processes that train one head together, started by torchrun or `accelerate launch`.

Each process has its own batches, gradients are averaged, and the first one decides and writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import Tensor, distributed, nn


class Workers:
    """This process among the training's processes.

    Attributes:
        rank, count: its number, and the number of processes.
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

    def share_values(self, *values: float, device: torch.device) -> list[float]:
        """Return the first process's values."""
        if self.count == 1:
            return list(values)
        found: Tensor = torch.tensor(values, dtype=torch.float32, device=device)
        distributed.broadcast(found, 0)
        return list(map(float, found.tolist()))

    def leave(self) -> None:
        """Wait for all processes, then leave the group."""
        if self.count > 1:
            distributed.barrier()
            distributed.destroy_process_group()

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            distributed.barrier()


def find_launched_device() -> str | None:
    """Return the GPU of a launched process; None without a launcher or GPU."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and torch.cuda.is_available():
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    return None


def is_first_launched() -> bool:
    """Return whether this is the first launched process, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def join_workers(device: torch.device) -> Workers:
    """Join the launched processes and return this one's place; a single process without a launcher."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Workers()
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Workers(distributed.get_rank(), count)
