"""The cache of one sequence on a transformers model, and the passes over drafts that extend it.

A pass appends a row for every token in flat order; rotary or learned positions come from position ids = position of the
last committed token + depth, so accepted rows only have to be moved together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.engine import NO_OUTPUTS, Pass, RequestedOutputs, check_path
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sparse_cache import RowBudget, SparseCache
from speculant.core.sublayers import Sublayers
from speculant.core.tree import DraftTree, Int32, Int64
from speculant.engines.hf.cache import (
    begin_own_pass,
    cached_length,
    cut_rows,
    keep_rows,
    layer_rows,
    rows_layer,
    state_layers,
)
from speculant.engines.hf.caches.sparse_cache import HFSparseCache, sparse_refusal
from speculant.engines.hf.draft_rows import DraftRows, NewRows
from speculant.engines.hf.forward_pass import (
    ModelRunner,
    PassInput,
    PassOutput,
    as_ids,
    check_tokens,
    finish_pass,
    out_of_memory,
)
from speculant.engines.hf.prompt import Prompt
from speculant.engines.hf.prompted_cache import PromptedCache
from speculant.engines.hf.states.recorder import RecordedRows, StateRecorder
from speculant.engines.hf.views.row_positions import RowPlaces
from speculant.engines.hf.waiting_rows import WaitingRows


class HFTargetCache(PromptedCache):
    """One sequence on a model; see `core.engine.TargetCache`. Not thread-safe."""

    def __init__(
        self,
        runner: ModelRunner,
        ids: Tensor,
        *,
        cache: DynamicCache | None = None,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
        prompt: Prompt | None = None,
    ) -> None:
        """Prepare a sequence.

        Args:
            runner: runner of the model.
            ids: Int64[1, T], the whole prompt, including its cached part.
            cache: cache of its first tokens, fewer than T.
            padding: Int64[1, T], 0 at padding, or None.
            positions: Int64[1, T] or of the uncached part; None to count the unpadded tokens.
            prompt: a prompt with more than text, instead of padding and positions.

        Raises:
            UnsupportedError: this kind of cache cannot be rolled back.
        """
        super().__init__(runner, prompt or Prompt(ids, padding=padding, positions=positions), cache)
        self._rows = DraftRows()
        self._layers: Sublayers | None = None  # what the rows were run through; None for all layers
        self._waiting = WaitingRows(runner, self)  # see `read_exit`
        self._plain = False  # whether all one-token passes are the model's own
        self._foreign = False  # whether rows have tokens outside the model's vocabulary
        self._text: list[int] = []  # tokens of the rows after the prompt, if the model may read the text anew

    @property
    def uncommitted(self) -> int:
        """The number of rows that `forward` has appended since the last `keep` or `rollback`."""
        return len(self._rows)

    def forward(
        self,
        tokens: Int32,
        parents: Int32,
        *,
        needs: RequestedOutputs = NO_OUTPUTS,
        layers: Sequence[int] | Sublayers | None = None,
        embeddings: Tensor | None = None,
    ) -> Pass:
        chosen = None if layers is None else Sublayers.of(layers)
        if len(self._rows) and chosen != self._layers:
            raise UsageError("earlier rows were run through other layers; keep or drop them first.")
        plain = chosen is None and embeddings is None and not self._plain  # passes for `check` start from scratch
        if plain and self._waiting.serve(needs) and self.exits:
            return finish_pass(self._waiting.go_on(tokens, parents, needs), needs)
        extra = 0 if embeddings is None else len(embeddings)
        new = self.plan(tokens, parents, explicit=chosen is not None, extra=extra)
        try:
            anew = self.at_limit and chosen is None
            output = self._read_anew(new, needs) if anew else self._run(new, needs, chosen, embeddings)
        except BaseException:
            self.drop_partial()
            raise
        self.appended(new, chosen)
        self._foreign = self._foreign or bool(extra)
        return finish_pass(output, needs)

    @property
    def exits(self) -> bool:
        capabilities = self._runner.capabilities
        own = capabilities.states or capabilities.placing or capabilities.window_by_cache or capabilities.source_layers
        return capabilities.trees and not own and not self.at_limit

    def read_exit(self, tokens: Int32, parents: Int32, layers: int, *, logits: bool = False) -> Pass:
        if not self.exits:
            raise UnsupportedError("the first layers of this model cannot be run alone; use a method such as 'mix'.")
        if len(self._rows):
            raise UsageError("the cache has rows that were neither kept nor dropped; roll it back first.")
        return self._waiting.read(tokens, parents, layers, logits=logits)

    def spare_exit(self, count: int, layers: int) -> list[tuple[Tensor, Tensor]] | None:
        self.drop_exit()
        windowed = self._runner.capabilities.window is not None
        if not self.exits or windowed or self._prompt.seen is not None or self.position != self._length:
            return None
        return self._waiting.spare(count, layers)

    def adopt_exit(self, tokens: Int32, states: Tensor) -> None:
        self._waiting.adopt(tokens, states)

    def drop_exit(self) -> None:
        self._waiting.drop()

    def plain_logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits [n, V] after each of several candidate next tokens, one pass each; none is kept."""
        self._plain, logits = True, list[Tensor]()
        with self._waiting.aside():
            try:
                for place, token in enumerate(tokens):
                    logits.append(self.forward(np.array([token], np.int32), np.array([place - 1], np.int32)).logits)
            finally:
                self._plain = False
                self.rollback()
        return torch.cat(logits)

    def layer_rows(self, layer: int) -> tuple[Tensor, Tensor]:
        self._check_cache()
        return layer_rows(self.cache, layer, self._length, seen=self._prompt.seen)

    def open_sparse(self, budget: RowBudget) -> SparseCache:
        if reason := sparse_refusal(self._runner.capabilities, self._runner.model):
            raise UnsupportedError(reason)
        return HFSparseCache(self._runner, self, budget)

    def reread(self, tokens: Int32, layers: Sequence[int] | Sublayers) -> Pass:
        self._check_cache()
        self._check_masks()
        if self._runner.capabilities.states:
            raise UnsupportedError(
                "this model's states cannot be rolled back, so committed tokens cannot be read again."
            )
        if len(self._rows):
            raise UsageError("the cache has rows that were neither kept nor dropped; roll it back first.")
        check_tokens(tokens, self._runner.capabilities.vocabulary)
        count = len(tokens)
        if not 0 < count <= self._length:
            raise UsageError(f"{count} tokens cannot be read again; {self._length} are committed.")
        rows = DraftRows().grown(np.arange(-1, count - 1))
        positions = rows.depths + (self.position - count - 1)
        new = NewRows(tokens.astype(np.int64), positions, self._mask(rows, 0, again=count), rows)
        try:
            return finish_pass(self._run(new, NO_OUTPUTS, Sublayers.of(layers)), NO_OUTPUTS)
        finally:
            self.drop_partial()

    def check(self, draft: DraftTree) -> None:
        self._check_cache()
        for tokens in (draft.tokens, draft.queries.tokens):
            check_tokens(tokens, self._runner.capabilities.vocabulary)
        if len(draft.queries) and draft.queries.depths().max() > self.depth:
            raise ValueError(
                f"the drafter's queries are deeper than the {self.depth} levels that the model has room for."
            )

    def keep(self, rows: Sequence[int]) -> None:
        kept = list(rows)
        self.drop_exit()
        check_path(kept, self._rows.parents)
        if kept and self._layers is not None:
            raise UsageError("rows of a pass that left layers out have no keys in those, so they cannot be kept.")
        if kept and self._foreign:
            raise UsageError("rows of a pass with embeddings of the drafter's own cannot be kept.")
        if not self._runner.acceleration.keep(self.cache, self._length, kept):
            with out_of_memory(f"{self._length} cached tokens"):
                keep_rows(self.cache, self._length, kept)
        if self._text:
            own = self._count_committed()
            self._text[own:] = [self._text[own + row] for row in kept]
        self._length, self._rows, self._layers = self._length + len(kept), DraftRows(), None
        self._foreign = False

    def rollback(self) -> None:
        self._waiting.forget()
        self._rows, self._layers, self._foreign = DraftRows(), None, False
        del self._text[self._count_committed() :]
        keep_rows(self.cache, self._length, [])

    def restart(self) -> None:
        self._length, self._text = self._given, []
        self._reader.restart()
        for layer, start in zip(state_layers(self.cache), self._start, strict=True):
            layer.restore(start)
        self.rollback()

    def detach(self) -> DynamicCache:
        """Return the cache of the committed tokens for reuse; this sequence cannot continue."""
        self.rollback()
        cache = self.cache
        self.release()
        return cache

    def release(self) -> None:
        self.cache, self._start = self._runner.empty_cache(), []
        self._reader.restart()
        self._length, self._rows, self._layers, self._foreign = 0, DraftRows(), None, False
        self._waiting.forget()

    def plan(self, tokens: Int32, parents: Int32, *, explicit: bool = False, extra: int = 0) -> NewRows:
        """Return the rows that a pass over these tokens will append; nothing is run.

        Args:
            tokens: Int32[n].
            parents: Int32[n], as in `forward`.
            explicit: whether masks must be four-dimensional, and one for each kind of layer.
            extra: number of tokens beyond the vocabulary for which the pass has embeddings.

        Raises:
            ValueError: a token is outside the vocabulary, or a parent does not precede its child.
            UnsupportedError: the rows branch on a model that verifies chains only.
            UsageError: the cache was used elsewhere meanwhile.
        """
        self.drop_exit()
        return self.new_rows(tokens, parents, self._rows, explicit=explicit, extra=extra)

    def new_rows(
        self, tokens: Int32, parents: Int32, below: DraftRows, *, explicit: bool = False, extra: int = 0
    ) -> NewRows:
        """Return the rows that a pass appends after others; see `plan`."""
        self._check_cache()
        capabilities = self._runner.capabilities
        check_tokens(tokens, capabilities.vocabulary + extra)
        if explicit:
            self._check_masks()
        before, rows = len(below), below.grown(parents)
        if not capabilities.trees and not rows.is_chain():
            raise UnsupportedError(
                "this model verifies chains only; its notes give the reason. Set the budget's `trees` to False."
            )
        positions = rows.depths[before:] + (self.position - 1)
        plain = (len(rows) == 1 or not capabilities.trees) and not capabilities.window_by_cache
        if not capabilities.attends:
            mask = None
        elif explicit:
            # Without a mask eager attention takes transformers', which counts the rows of the first layer: behind an
            # exit that layer has more than the others.
            free = len(rows) == 1 and not (
                capabilities.additive or capabilities.window or self._prompt.seen is not None
            )
            mask = None if free else self._mask(rows, before)
        else:
            mask = self._prompt.padding_mask(self._length + len(rows)) if plain else self._mask(rows, before)
        return NewRows(tokens.astype(np.int64), positions, mask, rows)

    def rows_input(self, ids: Int64, positions: Int64, mask: Any) -> PassInput:
        """Return the input of a pass over rows after the prompt: Int64[n] tokens and positions, with their mask."""
        device = self._prompt.ids.device
        return self._prompt.following(as_ids(ids).to(device), as_ids(positions).to(device), mask)

    def places(self, new: NewRows) -> RowPlaces:
        """Return the positions of new rows and of all previous ones, counted like slots."""
        depths, device = torch.from_numpy(new.rows.depths), self._prompt.ids.device
        keys = torch.cat([torch.arange(self._length), depths + (self._length - 1)]).to(device)
        return RowPlaces(keys[-len(new.ids) :], keys)

    def appended(self, new: NewRows, layers: Sublayers | None = None) -> None:
        """Record that a pass through these sublayers has appended the rows."""
        self._rows, self._layers = new.rows, layers
        if self._runner.capabilities.rope_rereads:
            self._text += new.ids.tolist()

    def drop_partial(self) -> None:
        """Drop what a failed pass has appended to some layers."""
        cut_rows(self.cache, self._length, len(self._rows))

    def _run(
        self, new: NewRows, needs: RequestedOutputs, layers: Sublayers | None, embeddings: Tensor | None = None
    ) -> PassOutput:
        capabilities = self._runner.capabilities
        others = capabilities.window_by_cache or capabilities.states or self._prompt.extra_inputs
        graphs = None if others else self._runner.acceleration.graphs
        plain = layers is None and embeddings is None and not needs.hidden_layers
        if graphs is not None and plain and len(new.ids) == len(new.rows):
            logits = graphs.forward(self, new.ids, new.rows, shift=self._prompt.shift, seen=self._prompt.seen)
            if logits is not None:
                return PassOutput(logits)
        given = self.rows_input(new.ids, new.positions, new.mask)
        if capabilities.placing and len(new.rows) > 1:
            given = replace(given, places=(self.places(new),))
        options: dict[str, Any] = {"needs": needs, "layers": layers, "embeddings": embeddings}
        if capabilities.states and (len(new.rows) == 1 or self._plain):
            begin_own_pass(self.cache, 1, capabilities.mixers)
        elif capabilities.states:
            rows = RecordedRows(self.cache, new.rows, len(new.ids))
            options["recorder"] = StateRecorder([rows], self._runner.model.device)
        total, output = self._length + len(new.rows), None
        if layers is not None and embeddings is None:
            output = self._waiting.passes.run_sublayers(given, self.cache, layers, needs=needs, total=total)
        return output or self._runner.verify(given, self.cache, **options, total=total)

    def _check_masks(self) -> None:
        if not self._runner.capabilities.trees:
            raise UnsupportedError(
                "this model takes no explicit masks, so layers cannot be left out of its passes; use a method that "
                "runs all layers, such as 'mix'."
            )

    def _read_anew(self, new: NewRows, needs: RequestedOutputs) -> PassOutput:
        """Run one pass over the whole text and the next token; the cache is replaced by that pass's."""
        if len(new.rows) != 1:
            raise ValueError("nothing can be drafted where the text is read anew")
        output, anew = self._reader.read_anew([*self._text, *new.ids.tolist()], needs)
        self.cache.layers, self._given = anew.layers, 0
        return output

    def _count_committed(self) -> int:
        """Return the number of committed tokens after the prompt."""
        return max(0, self._length - len(self._prompt))

    def _check_cache(self) -> None:
        ran = self._layers is None or rows_layer(self.cache) in self._layers.attention
        rows = len(self._rows) if ran else 0
        rows += self._waiting.count(rows_layer(self.cache))
        if cached_length(self.cache) != self._length + rows:
            raise UsageError("this request's cache was used elsewhere meanwhile; give each request a cache of its own.")

    def _mask(self, rows: DraftRows, start: int, *, again: int = 0) -> object:
        """Return the mask of a pass over the rows from `start` on, which rereads `again` committed tokens."""
        before, seen = self._length - again, self._prompt.seen
        return self._runner.mask(rows, start, before, seen=None if seen is None else seen[:before], hidden=again)
