"""Draft sizing over the lifetime of a speculator: measurements that its requests share."""

from __future__ import annotations

from speculant.api.options import AUTO
from speculant.core.engine import RequestedOutputs
from speculant.core.tree import UNLIMITED
from speculant.options.drafting import DraftingOptions
from speculant.sizing.acceptance import AcceptanceModel
from speculant.sizing.contract import Sizing
from speculant.sizing.exploration import ExplorationBonus
from speculant.sizing.fixed import FixedSizing
from speculant.sizing.history import PausingHistory
from speculant.sizing.latency import LatencyModel
from speculant.sizing.policy import AdaptiveSizing, warm_up
from speculant.sizing.step_cost import StepCost
from speculant.sizing.throughput import Throughput

_EACH = 3  # nodes for which a pass has room, for each sequence of a large batch


class Sizes:
    """Creates the sizing of streams and batches; they differ in the latency of a pass and in pauses of drafting."""

    def __init__(
        self, options: DraftingOptions, needs: RequestedOutputs, *, known: StepCost | None, learns: bool = False
    ) -> None:
        """Start without measurements.

        Args:
            options: options of the speculator; their `nodes` is a number or "auto".
            needs: outputs that the drafter requests.
            known: latency of a stream's passes, if it was measured before.
            learns: whether the drafter keeps a memory of what it reads.
        """
        self._options, self._needs, self._learns = options, needs, learns
        self._latencies = {1: LatencyModel(maximum=max_rows(needs, 1), known=known)}
        self._acceptance, self._throughput = AcceptanceModel(), Throughput()
        self._histories = dict[int, PausingHistory]()
        self._exploration = ExplorationBonus() if needs.top_k and needs.explores else None
        if options.nodes == AUTO:
            warm_up()

    def of(self, size: int) -> Sizing:
        """Return the sizing of drafts for a batch of `size` sequences."""
        depth = UNLIMITED if self._options.max_depth is None else self._options.max_depth
        if isinstance(self._options.nodes, int):
            return FixedSizing(self._options.nodes, depth=depth)
        if size not in self._latencies:
            self._latencies[size] = LatencyModel(maximum=max_rows(self._needs, size))
        if size not in self._histories:
            self._histories[size] = PausingHistory(size, learns=self._learns)
        return AdaptiveSizing(
            self._latencies[size],
            self._acceptance,
            self._throughput,
            self._exploration,
            self._histories[size],
            maximum=self._needs.max_nodes,
            depth=depth,
        )


def max_rows(needs: RequestedOutputs, size: int) -> int:
    """Return the maximum number of rows beyond the first in a pass over `size` sequences."""
    return size - 1 + size * needs.queries + max(needs.max_nodes, _EACH * size if size > 1 else 0)
