"""Measured cost of a target pass as a function of its draft nodes, interpolated linearly.

The file is JSON: {"nodes": [0, 1, 8, ...], "seconds": [...]}, with nodes rising from 0, which is plain decoding; other
keys are ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from speculant.core.errors import FileError, UsageError

FORM = 'a measured curve is {"nodes": [0, ...], "seconds": [...]} with rising nodes and a time above 0 for each'


@dataclass(frozen=True, slots=True, eq=False)
class StepCost:
    """The `seconds` Float64[P] of passes over the root and `nodes` Float64[P] draft nodes."""

    nodes: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.float64]

    def of(self, nodes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the seconds of passes over the given numbers of nodes."""
        return np.asarray(np.interp(nodes, self.nodes, self.seconds), np.float64)

    def check(self, nodes: int) -> None:
        """Check that drafts of up to `nodes` nodes were measured, since beyond them the curve is a guess.

        Raises:
            UsageError: the curve ends before.
        """
        if nodes > self.nodes[-1]:
            raise UsageError(
                f"the step-cost curve ends at {self.nodes[-1]:g} nodes, but drafts have up to {nodes}. Measure it "
                "further, or lower --nodes."
            )


def read_step_cost(path: Path) -> StepCost:
    """Read a curve.

    Raises:
        FileError: the file cannot be read or contains no valid curve.
    """
    try:
        found = json.loads(path.read_bytes())
        nodes, seconds = (np.array(found[name], np.float64) for name in ("nodes", "seconds"))
        fits = nodes.ndim == 1 and nodes.shape == seconds.shape and len(nodes) > 0
        if not (
            fits and nodes[0] == 0 and (np.diff(nodes) > 0).all() and (seconds > 0).all() and np.isfinite(seconds).all()
        ):
            raise ValueError
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(f"{path} holds no step cost: {FORM}.") from error
    return StepCost(nodes, seconds)
