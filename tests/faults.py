"""Devices on which something goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


class Full:
    """A module's forward on a device without room, while `full` says so of the rows."""

    def __init__(self, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full: Callable[[int], bool] = lambda _: False
        own = module.forward

        def forward(states: torch.Tensor) -> torch.Tensor:
            if self.full(states.shape[1]):
                raise torch.OutOfMemoryError("no room")
            return own(states)

        monkeypatch.setattr(module, "forward", forward)
