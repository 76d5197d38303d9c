"""A sparse cache of a text on a transformers model: a short cache of copied rows for growing drafts.

Cached keys are already rotated and attention does not depend on their order, so selected rows in a separate cache are
attended to as in the text. A pass below them is an ordinary one on a short cache, accelerated like any other, with
position ids that count the whole text. Layers with a window have the rows of the window.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sparse_cache import RowBudget
from speculant.core.tree import Bool, Int32, Int64
from speculant.engines.hf.batch_attention import config_changes, stand_in_masks
from speculant.engines.hf.caches.in_place_layer import InPlaceLayer
from speculant.engines.hf.caches.row_retrieval import NO_QUERIES, RetrievalCache
from speculant.engines.hf.draft_rows import DraftRows, NewRows
from speculant.engines.hf.forward_pass import ModelRunner, PassInput
from speculant.engines.hf.probe.capabilities import HFCapabilities
from speculant.engines.hf.probe.class_checks import check_model
from speculant.engines.hf.views.layer_selection import shares_keys
from speculant.engines.hf.views.unwrapping import base_model

ROOT_ROW = np.array([-1], np.int32)


class FullText(Protocol):
    """The parts of a text, a `HFTargetCache`, that a sparse cache of its rows needs."""

    cache: DynamicCache

    @property
    def length(self) -> int: ...

    @property
    def position(self) -> int: ...

    @property
    def uncommitted(self) -> int: ...

    @property
    def seen(self) -> Bool | None: ...

    def plan(self, tokens: Int32, parents: Int32, *, explicit: bool) -> NewRows: ...

    def rows_input(self, ids: Int64, positions: Int64, mask: Any) -> PassInput: ...

    def drop_partial(self) -> None: ...


class HFSparseCache:
    """Selected rows of one sequence; see `core.sparse_cache.SparseCache`. Not thread-safe."""

    def __init__(self, runner: ModelRunner, text: FullText, budget: RowBudget) -> None:
        """Prepare a sparse cache; nothing is read before `retrieve`."""
        self._runner, self._text, self._budget = runner, text, budget
        self._cache: DynamicCache | None = None
        self._sliding: set[int] = set()  # layers with a sliding window
        self._held = 0, 0, 0  # text tokens copied so far, rows of layers without and with a window
        self._rows = DraftRows()

    def retrieve(self, root: int) -> Tensor:
        text, runner = self._text, self._runner
        if text.uncommitted:
            raise UsageError("the text has rows that were neither kept nor dropped; roll its cache back first.")
        capabilities, device = runner.capabilities, runner.model.device
        new = text.plan(np.array([root], np.int32), ROOT_ROW, explicit=True)
        masks = stand_in_masks(device, mixed=capabilities.mixed, window=capabilities.window)
        given = text.rows_input(new.ids, new.positions, masks)
        own = getattr(runner.model.config.get_text_config(decoder=True), "_attn_implementation", None) or "eager"
        joined = RetrievalCache(
            text.cache,
            new.mask,
            runner.acceleration.attention_for(own),
            self._budget,
            seen=_places(text.seen, text.length),
            window=capabilities.window,
        )
        try:
            output = runner.verify(given, joined, config=config_changes(joined), total=text.length + 1)
        finally:
            text.drop_partial()
        if not joined.complete:
            raise UnsupportedError(NO_QUERIES)
        cache = runner.empty_cache()
        cache.layers = [joined.chosen.get(index, InPlaceLayer()) for index in range(len(text.cache.layers))]
        full, sliding = joined.counts()
        self._cache, self._sliding, self._held = cache, joined.sliding, (text.length, full, sliding)
        self._rows = DraftRows().grown(ROOT_ROW)
        return output.logits

    def begin(self, root: int) -> Tensor:
        self._rows = DraftRows()
        self._follow()
        return self.forward(np.array([root], np.int32), ROOT_ROW)

    def forward(self, tokens: Int32, parents: Int32) -> Tensor:
        cache = self._require_cache()
        before, rows = len(self._rows), self._rows.grown(parents)
        positions = rows.depths[before:] + (self._text.position - 1)
        given = self._text.rows_input(tokens.astype(np.int64), positions, self._mask(rows, before))
        try:
            output = self._runner.verify(given, cache, total=self._held[1] + len(rows))
        except BaseException:
            self._cut(cache)
            raise
        self._rows = rows
        return output.logits

    def release(self) -> None:
        self._cache, self._rows = None, DraftRows()

    def _require_cache(self) -> DynamicCache:
        if self._cache is None:
            raise UsageError("a sparse cache holds no rows before the first `retrieve`.")
        return self._cache

    def _follow(self) -> None:
        """Drop the draft's rows and copy those that the text has committed since."""
        cache, (start, full, sliding), end = self._require_cache(), self._held, self._text.length
        self._cut(cache)
        if end == start:
            return
        for layer, held in zip(cache.layers, self._text.cache.layers, strict=True):
            if layer.is_initialized:
                layer.update(held.keys[..., start:end, :], held.values[..., start:end, :])
        self._held = end, full + end - start, sliding + end - start

    def _cut(self, cache: DynamicCache) -> None:
        """Drop what follows the rows of the text and the draft, such as the rows of a failed pass."""
        _, full, sliding = self._held
        for index, layer in enumerate(cache.layers):
            layer.keep((sliding if index in self._sliding else full) + len(self._rows), [])

    def _mask(self, rows: DraftRows, start: int) -> Any:
        """Return the mask of a pass over the rows from `start` on; None if its only row sees all others."""
        if len(rows) == start + 1 and self._runner.capabilities.window is None and rows.is_chain():
            return None
        _, full, sliding = self._held
        return self._runner.mask(rows, start, full, seen=None, hidden=0, sliding=sliding)


def sparse_refusal(capabilities: HFCapabilities, model: Any) -> str:
    """Return why a model's passes cannot read part of their cache; "" if they can.

    Args:
        capabilities: capabilities of the model.
        model: the model, for facts that no capability covers.
    """
    if capabilities.states or capabilities.replays:
        reason = "some of its layers keep a state, of which no rows can be chosen"
    elif not (capabilities.trees and capabilities.attends and capabilities.takes_positions):
        reason = "it takes no explicit attention masks and positions, so that its passes read the whole cache"
    elif capabilities.indexed:
        reason = "its layers choose the tokens they attend to by an index of their own"
    elif capabilities.source_layers:
        reason = "some of its layers hold rows of an image, not of the text"
    elif shares_keys(model):
        reason = "some of its layers read the keys of others"
    elif not capabilities.hidden_layers:
        reason = "its decoder layers were not found"
    else:
        return ""
    return f"{type(model).__name__} cannot draft with a part of its cache: {reason}. Use a method such as 'mix'."


def whole_cache_reason(model: Any) -> str:
    """Return why a model's passes read their whole cache; "" if they can read part of it. Raises as `check_model`."""
    base = base_model(model)
    return sparse_refusal(check_model(base), base)


def _places(seen: Bool | None, length: int) -> Tensor | None:
    """Return the indices Int64[T'] of the unpadded among the first `length` rows, given `Prompt.seen`."""
    if seen is None:
        return None
    behind = np.ones(max(0, length - len(seen)), bool)
    return torch.from_numpy(np.flatnonzero(np.concatenate([seen, behind])[:length]))
