"""Draft rows in the first layers of a sequence's cache, waiting for a pass of all layers to continue from them.

Self-speculative methods draft with the first layers of the target. The keys, values and states of drafted tokens are
the same that the target's own pass would recompute: LayerSkip's exit query cache (Elhoushi et al. 2024, arXiv
2404.16710, section 4.3.3), Kangaroo (Liu et al. 2024, arXiv 2404.18911, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.engine import Pass, RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.tree import Int32, Int64
from speculant.engines.hf.caches.in_place_layer import InPlaceLayer
from speculant.engines.hf.draft_rows import DraftRows, NewRows
from speculant.engines.hf.forward_pass import ModelRunner, PassInput, PassOutput
from speculant.engines.hf.partial_passes import PartialPasses


@dataclass(frozen=True, slots=True, eq=False)
class ExitRows:
    """U rows whose keys and values are in the first layers of a cache only, after the committed rows.

    Attributes:
        layers: number of these layers.
        ids: Int64[U].
        rows: the rows below the last committed token.
        states: [U, 1, D], the output of the last of these layers, split as it was computed.
    """

    layers: int
    ids: Int64
    rows: DraftRows
    states: tuple[Tensor, ...] = ()

    @classmethod
    def empty(cls, layers: int) -> ExitRows:
        """Return an empty set of rows."""
        return cls(layers, np.empty(0, np.int64), DraftRows())

    def __len__(self) -> int:
        return len(self.rows)

    def grown(self, new: NewRows, states: Tensor) -> ExitRows:
        """Return these rows with those of a pass appended, with their states [n, 1, D]."""
        return ExitRows(self.layers, np.concatenate([self.ids, new.ids]), new.rows, (*self.states, states))

    def count_shared(self, tokens: Int32, parents: Int32) -> int:
        """Return how many leading rows of a pass are the same, in tokens and parents."""
        count = min(len(self), len(tokens))
        same = (self.ids[:count] == tokens[:count]) & (self.rows.parents[:count] == parents[:count])
        return count if same.all() else int(same.argmin())

    def first(self, count: int) -> ExitRows:
        """Return the first `count` rows."""
        if count == len(self):
            return self
        rows = self.rows
        ancestors = np.ascontiguousarray(rows.ancestors[:count, :count])  # numba compiles for each layout of an array
        kept = DraftRows(rows.parents[:count], rows.depths[:count], ancestors)
        return ExitRows(self.layers, self.ids[:count], kept, (self.joined[:count],) if count else ())

    @property
    def joined(self) -> Tensor:
        """The states [U, 1, D] of all rows."""
        return self.states[0] if len(self.states) == 1 else torch.cat(self.states)


class GrowingCache(Protocol):
    """The part of a sequence's cache that creates rows in its first layers; see `HFTargetCache`."""

    cache: DynamicCache

    @property
    def length(self) -> int: ...

    def new_rows(self, tokens: Int32, parents: Int32, below: DraftRows, *, explicit: bool = False) -> NewRows: ...

    def rows_input(self, ids: Int64, positions: Int64, mask: Any) -> PassInput: ...

    def appended(self, new: NewRows) -> None: ...

    def drop_partial(self) -> None: ...


class WaitingRows:
    """The waiting rows of one sequence; see `core.exit_cache.ExitCache`."""

    def __init__(self, runner: ModelRunner, owner: GrowingCache) -> None:
        """Start without rows.

        Args:
            runner: runner of the model.
            owner: the sequence's cache.
        """
        self.passes, self._owner = PartialPasses(runner), owner
        self._rows: ExitRows | None = None
        self._spared = 0  # layers, see `spare`

    def count(self, layer: int) -> int:
        """Return how many of these rows a layer has."""
        return len(self._rows) if self._rows is not None and layer < self._rows.layers else 0

    def serve(self, needs: RequestedOutputs) -> bool:
        """Return whether rows are waiting and a pass that continues from them can provide what is needed."""
        return self._rows is not None and all(tap == -1 or tap >= self._rows.layers - 1 for tap in needs.hidden_layers)

    def read(self, tokens: Int32, parents: Int32, layers: int, *, logits: bool) -> Pass:
        """Run rows through the first layers; see `ExitCache.read_exit`."""
        if self._rows is not None and self._rows.layers != layers:
            self.drop()
        waiting = ExitRows.empty(layers) if self._rows is None else self._rows
        with torch.inference_mode(mode=False):  # the cache's rows are also written by passes outside of inference mode
            new = self._owner.new_rows(tokens, parents, waiting.rows, explicit=True)
            output = self._run_first(waiting, new, logits=logits)
        assert output.hidden is not None
        self._rows = waiting.grown(new, output.hidden)
        return Pass(logits=output.logits, hidden=output.hidden)

    def go_on(self, tokens: Int32, parents: Int32, needs: RequestedOutputs) -> PassOutput:
        """Run a pass whose first rows may be waiting; others are first run through the first layers."""
        assert self._rows is not None
        owner, waiting = self._owner, self._rows
        new = owner.new_rows(tokens, parents, DraftRows(), explicit=True)
        kept = waiting.first(waiting.count_shared(tokens, parents))
        cut_first_layers(owner.cache, waiting.layers, owner.length + len(kept))
        self._rows, early = kept, self.passes.share(kept.layers) if len(kept) == len(tokens) else 0.0
        try:
            if len(kept) < len(tokens):
                own = owner.new_rows(tokens[len(kept) :], parents[len(kept) :], kept.rows, explicit=True)
                hidden = self._run_first(kept, own, logits=False).hidden
                assert hidden is not None
                kept = kept.grown(own, hidden)
            given, total = owner.rows_input(new.ids, new.positions, new.mask), owner.length + len(new.rows)
            output = self.passes.rest(given, kept.joined, owner.cache, kept.layers, needs=needs, total=total)
        except BaseException:
            self._rows = None
            owner.drop_partial()
            raise
        self._rows = None
        owner.appended(new)
        return replace(output, early=early)

    def spare(self, count: int, layers: int) -> list[tuple[Tensor, Tensor]] | None:
        """Return buffers in which code may write keys and values; see `ExitCache.spare_exit`."""
        self._spared = layers
        with torch.inference_mode(mode=False):
            return spare_rows(self._owner.cache, layers, count)

    def adopt(self, tokens: Int32, states: Tensor) -> None:
        """Add rows written by code to the waiting ones; see `ExitCache.adopt_exit`."""
        count = len(tokens)
        with torch.inference_mode(mode=False):
            hold_rows(self._owner.cache, self._spared, count)
        rows = DraftRows().grown(np.arange(-1, count - 1))
        self._rows = ExitRows(self._spared, tokens.astype(np.int64), rows, (states[:, None],))

    def drop(self) -> None:
        """Remove the rows from the cache, if there are any."""
        waiting, self._rows = self._rows, None
        if waiting is not None:
            cut_first_layers(self._owner.cache, waiting.layers, self._owner.length)

    def forget(self) -> None:
        """Record that the cache has dropped the rows."""
        self._rows = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Remove the rows from the cache within this context; if it fails, they are lost."""
        waiting, owner = self._rows, self._owner
        held = [] if waiting is None else _lift_rows(owner.cache, waiting.layers, owner.length)
        self._rows = None
        yield
        for layer, (keys, values) in zip(owner.cache.layers, held, strict=False):
            layer.update(keys, values)
        self._rows = waiting

    def _run_first(self, waiting: ExitRows, new: NewRows, *, logits: bool) -> PassOutput:
        """Run rows after the waiting ones through the first layers; on failure, none are waiting."""
        owner = self._owner
        given, total = owner.rows_input(new.ids, new.positions, new.mask), owner.length + len(new.rows)
        try:
            return self.passes.first(given, owner.cache, waiting.layers, logits=logits, total=total)
        except BaseException:
            self._rows = waiting
            self.drop()
            raise


def cut_first_layers(cache: DynamicCache, layers: int, length: int) -> None:
    """Keep the first `length` rows of the first layers."""
    for layer in cache.layers[:layers]:
        if isinstance(layer, InPlaceLayer) and layer.is_initialized:
            layer.keep(length, [])


def spare_rows(cache: DynamicCache, layers: int, count: int) -> list[tuple[Tensor, Tensor]] | None:
    """Return all keys and values [H, L + count, d] of the first layers with room for new rows; None without room."""
    found = list[tuple[Tensor, Tensor]]()
    for layer in cache.layers[:layers]:
        rows = layer.extend(count) if isinstance(layer, InPlaceLayer) else None
        if rows is None or len(rows[0]) != 1:
            return None
        found.append((rows[0][0], rows[1][0]))
    return found


def hold_rows(cache: DynamicCache, layers: int, count: int) -> None:
    """Put `count` rows from `spare_rows` into use."""
    for layer in cache.layers[:layers]:
        rows = layer.extend(count) if isinstance(layer, InPlaceLayer) else None
        assert isinstance(layer, InPlaceLayer)
        assert rows is not None
        layer.hold(rows)


def _lift_rows(cache: DynamicCache, layers: int, start: int) -> list[tuple[Tensor, Tensor]]:
    """Remove the rows after the first `start` from the first layers; return copies of their keys and values."""
    lifted = list[tuple[Tensor, Tensor]]()
    for layer in cache.layers[:layers]:
        if not isinstance(layer, InPlaceLayer):
            raise UnsupportedError("rows of the first layers can be taken only out of KV caches.")
        lifted.append((layer.keys[..., start:, :].clone(), layer.values[..., start:, :].clone()))
        layer.keep(start, [])
    return lifted
