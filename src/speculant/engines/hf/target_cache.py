"""The cache of one sequence on a transformers model, and the passes that extend it.

The keys and values are in transformers' own DynamicCache, written in place. A pass appends a row for every token in
flat order; rotary or learned positions come from position ids = position of the last committed token + depth, so
accepted rows only have to be moved together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.engine import NO_NEEDS, Needs, Pass
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.tree import UNLIMITED, DraftTree, Int32
from speculant.engines.hf.cache import keep_rows, layer_rows, usable_cache
from speculant.engines.hf.draft_rows import DraftRows, NewRows
from speculant.engines.hf.forward_pass import ModelRunner, PassInput, PassOutput, as_ids, finished_pass
from speculant.engines.hf.prompt import Prompt, PromptPart, joined_states
from speculant.engines.hf.rotary_limit import RotaryLimit


class HFTargetCache:
    """One sequence on a model; see `core.engine.TargetCache`. Not for several threads at once."""

    def __init__(
        self,
        runner: ModelRunner,
        ids: Tensor,
        *,
        cache: DynamicCache | None = None,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> None:
        """Prepare a sequence.

        Args:
            runner: of the model.
            ids: Int64[1, T], the whole prompt, cached part included.
            cache: what is cached of it already; fewer tokens than T.
            padding: Int64[1, T], 0 at padding, or None.
            positions: Int64[1, T] or of the uncached part, or None to count the unpadded tokens.

        Raises:
            UnsupportedError: the cache is of a kind that cannot be rolled back.
        """
        self._runner, self._prompt = runner, Prompt(ids, padding=padding, positions=positions)
        self._limit = RotaryLimit(runner, self._prompt)
        self.cache = usable_cache(cache)
        self._length = self._given = int(self.cache.get_seq_length())
        self._rows = DraftRows()
        self._layers: tuple[int, ...] | None = None  # those that the rows were run through, None for all
        self._foreign = False  # whether rows have tokens that the model does not
        self._prompt_hidden: list[Tensor] = []  # of the chunks read so far
        self._text: list[int] = []  # the tokens of all rows behind the prompt

    @property
    def length(self) -> int:
        return self._length

    @property
    def unread(self) -> int:
        return max(0, len(self._prompt) - self._length)

    @property
    def trees(self) -> bool:
        return self._runner.capabilities.trees

    @property
    def uncommitted(self) -> int:
        """How many rows `forward` has appended since the last `keep` or `rollback`."""
        return len(self._rows)

    @property
    def position(self) -> int:
        """The position of the token that follows the last committed one."""
        return self._length - self._prompt.shift

    @property
    def depth(self) -> int:
        capabilities, depth = self._runner.capabilities, UNLIMITED
        if capabilities.positions is not None:
            depth = capabilities.positions - 1 - self.position
        return max(0, min(depth, self._limit.depth(self.position)))

    @property
    def shares_prefixes(self) -> bool:
        """Whether the rows of its first tokens are those of any other text that begins with the same tokens.

        They are not where positions are the request's own, where factors or windows go by the length of the pass that
        reads a prompt, or where such a text was read with other factors.
        """
        within = self._limit.holds(max(len(self._prompt), self._length))
        return self._prompt.plain and within and not self._runner.capabilities.window_by_cache

    def begin_with(self, cache: DynamicCache) -> None:
        """Begin with rows of the prompt's first tokens in place of an empty cache.

        Raises:
            UsageError: the prompt is being read, or the cache holds all of it.
        """
        length = int(cache.get_seq_length())
        if self._length or length >= len(self._prompt):
            raise UsageError("a prompt can begin with cached rows only before it is read, and must be longer.")
        self.cache, self._length, self._given = usable_cache(cache), length, length

    def prefill(self, most: int | None = None, *, needs: Needs = NO_NEEDS) -> Pass | None:
        self._runner.acceleration.check_weights()
        part = self.plan_prompt(most, needs)
        try:
            output = self._runner.run(
                self._prompt.part(part.start, part.end),
                self.cache,
                needs=part.needs,
                wanted=[len(part) - 1],
                total=part.end,
            )
            return self.take_prompt(part, output, needs)
        except BaseException:
            self.undo_prompt(part)
            raise

    @property
    def joins(self) -> bool:
        """Whether its prompt may be read in a pass with those of other sequences."""
        return self._runner.capabilities.trees and self.shares_prefixes

    def plan_prompt(self, most: int | None, needs: Needs) -> PromptPart:
        """Return the part of the prompt that a pass is to read next; nothing is run.

        Args:
            most: tokens; None for any number.
            needs: what is wanted of the whole prompt, or of its last token.

        Raises:
            UsageError: the prompt was read before, or the cache was used elsewhere meanwhile.
            UnsupportedError: the model cannot give what the drafter needs.
        """
        self._check_cache()
        if not self.unread:
            raise UsageError("the prompt of this sequence was read before.")
        if needs.queries and not self._runner.capabilities.trees:
            raise UnsupportedError(
                "this method asks for rows beside the draft, and this model verifies chains only; its notes give the "
                "reason. Use another method."
            )
        self._drop_other_factors()
        start = self._length
        end = start + (self.unread if most is None or self._reads_at_once() else min(most, self.unread))
        # Of a prompt that is read in chunks, only the last chunk's last row is wanted unless all rows are.
        wanted = needs if needs.prompt or end == len(self._prompt) else NO_NEEDS
        return PromptPart(start, end, wanted, self._prompt_hidden)

    def prompt_rows(self, part: PromptPart) -> PassInput:
        """Return what a pass with other sequences reads of a part of the prompt; the mask is None for causal rows."""
        capabilities, given = self._runner.capabilities, self._prompt.part(part.start, part.end)
        if part.start == 0 and capabilities.window is None and not capabilities.additive:
            return given
        rows = DraftRows().grown(np.arange(-1, len(part) - 1))
        return PassInput(given.ids, given.positions, self._mask(rows, 0))

    def take_prompt(self, part: PromptPart, output: PassOutput, needs: Needs) -> Pass | None:
        """Take what a pass has returned for a part of the prompt: logits [1, V] of its last row, and hidden states.

        Returns:
            The last token's Pass; None if more of the prompt is to be read.
        """
        hidden = part.with_states(output.hidden)
        if part.end < len(self._prompt):
            self._length, self._prompt_hidden = part.end, hidden
            return None
        finished = finished_pass(PassOutput(output.logits, joined_states(hidden, needs)), needs)
        self._length, self._prompt_hidden = part.end, []
        return finished

    def undo_prompt(self, part: PromptPart) -> None:
        """Drop what a pass that failed has read."""
        self._length, self._prompt_hidden = part.start, part.hidden
        self.rollback()

    def forward(
        self,
        tokens: Int32,
        parents: Int32,
        *,
        needs: Needs = NO_NEEDS,
        layers: Sequence[int] | None = None,
        embeddings: Tensor | None = None,
    ) -> Pass:
        chosen = None if layers is None else tuple(layers)
        if len(self._rows) and chosen != self._layers:
            raise UsageError("earlier rows were run through other layers; keep or drop them first.")
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
        return finished_pass(output, needs)

    def layer_rows(self, layer: int) -> tuple[Tensor, Tensor]:
        self._check_cache()
        return layer_rows(self.cache, layer, self._length, seen=self._prompt.seen)

    def reread(self, count: int, layers: Sequence[int]) -> Pass:
        self._check_cache()
        self._check_masks()
        if len(self._rows):
            raise UsageError("the cache has rows that were neither kept nor dropped; roll it back before.")
        if not 0 < count <= self._length:
            raise UsageError(f"{count} tokens cannot be read again; {self._length} are committed.")
        rows = DraftRows().grown(np.arange(-1, count - 1))
        positions = rows.depths + (self.position - count - 1)
        ids = [*self._prompt.ids[0].tolist(), *self._text][self._length - count : self._length]
        new = NewRows(np.array(ids, np.int64), positions, self._mask(rows, 0, again=count), rows)
        try:
            return finished_pass(self._run(new, NO_NEEDS, tuple(layers)), NO_NEEDS)
        finally:
            self.drop_partial()

    def check(self, draft: DraftTree) -> None:
        self._check_cache()
        self._check_tokens(draft.tokens)
        self._check_tokens(draft.queries.tokens)
        if len(draft.queries) and draft.queries.depths().max() > self.depth:
            raise ValueError(f"the drafter's queries are deeper than {self.depth}, which the model has room for.")

    def keep(self, rows: Sequence[int]) -> None:
        kept = list(rows)
        self._rows.check_path(kept)
        if kept and self._layers is not None:
            raise UsageError("rows of a pass that left layers out have no keys in those, so they cannot be kept.")
        if kept and self._foreign:
            raise UsageError("rows of a pass with embeddings of the drafter's own cannot be kept.")
        graphs = self._runner.acceleration.graphs
        if graphs is None or not graphs.keep(self.cache, self._length, kept):
            keep_rows(self.cache, self._length, kept)
        self._text[self._committed() :] = [self._text[self._committed() + row] for row in kept]
        self._length, self._rows, self._layers = self._length + len(kept), DraftRows(), None
        self._foreign = False

    def rollback(self) -> None:
        self._rows, self._layers, self._foreign = DraftRows(), None, False
        del self._text[self._committed() :]
        keep_rows(self.cache, self._length, [])

    def restart(self) -> None:
        self._length, self._prompt_hidden, self._text = self._given, [], []
        self.rollback()

    def detach(self) -> DynamicCache:
        """Return the cache of the committed tokens for others to keep; nothing can follow here."""
        self.rollback()
        cache = self.cache
        self.release()
        return cache

    def release(self) -> None:
        self.cache, self._prompt_hidden = usable_cache(None), []
        self._length, self._rows, self._layers, self._foreign = 0, DraftRows(), None, False

    def plan(self, tokens: Int32, parents: Int32, *, explicit: bool = False, extra: int = 0) -> NewRows:
        """Return the rows that a pass over these tokens will append; nothing is run.

        Args:
            tokens: Int32[n].
            parents: Int32[n], as in `forward`.
            explicit: whether masks must be four-dimensional, and one for each kind of layer.
            extra: how many tokens the pass has embeddings for beside the model's.

        Raises:
            ValueError: a token is none of the model's, or a parent does not come first.
            UnsupportedError: the rows branch on a model that verifies chains only.
            UsageError: the cache was used elsewhere meanwhile.
        """
        self._check_cache()
        self._check_tokens(tokens, extra)
        capabilities = self._runner.capabilities
        if explicit:
            self._check_masks()
        before, rows = len(self._rows), self._rows.grown(parents)
        if not capabilities.trees and not rows.is_chain():
            raise UnsupportedError(
                "this model verifies chains only; its notes give the reason. Set the budget's `trees` to False."
            )
        positions = rows.depths[before:] + (self.position - 1)
        plain = (len(rows) == 1 or not capabilities.trees) and not capabilities.window_by_cache
        if explicit:
            free = len(rows) == 1 and capabilities.window is None and self._prompt.seen is None
            mask = None if free else self._mask(rows, before)
        else:
            mask = self._prompt.padding_mask(self._length + len(rows)) if plain else self._mask(rows, before)
        return NewRows(tokens.astype(np.int64), positions, mask, rows)

    def appended(self, new: NewRows, layers: tuple[int, ...] | None = None) -> None:
        """Take note that a pass through these layers has appended the rows."""
        self._rows, self._layers = new.rows, layers
        self._text += new.ids.tolist()

    def drop_partial(self) -> None:
        """Drop what a pass that failed has appended to some layers."""
        keep_rows(self.cache, self._length + len(self._rows), [])

    def _run(
        self, new: NewRows, needs: Needs, layers: tuple[int, ...] | None, embeddings: Tensor | None = None
    ) -> PassOutput:
        graphs = None if self._runner.capabilities.window_by_cache else self._runner.acceleration.graphs
        plain = layers is None and embeddings is None and not needs.hidden_layers
        if graphs is not None and plain and len(new.ids) == len(new.rows):
            logits = graphs.forward(self, new.ids, new.rows, shift=self._prompt.shift, seen=self._prompt.seen)
            if logits is not None:
                return PassOutput(logits)
        device = self._prompt.ids.device
        given = PassInput(as_ids(new.ids).to(device), as_ids(new.positions).to(device), new.mask)
        total = self._length + len(new.rows)
        options = {"needs": needs, "layers": layers, "embeddings": embeddings}
        return self._runner.verify(given, self.cache, **options, total=total)

    def _check_masks(self) -> None:
        if not self._runner.capabilities.trees:
            raise UnsupportedError(
                "this model takes no explicit masks, so layers cannot be left out of its passes; use a method that "
                "runs all layers, such as 'mix'."
            )

    def _check_tokens(self, tokens: Int32, extra: int = 0) -> None:
        vocabulary = self._runner.capabilities.vocabulary + extra
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocabulary:
            wrong = next(token for token in tokens.tolist() if not 0 <= token < vocabulary)
            raise ValueError(f"the drafter proposed token {wrong}; the model has {vocabulary}.")

    @property
    def at_limit(self) -> bool:
        """Whether the next pass reads the whole text anew, as `generate` does where rotary factors change."""
        return self._limit.reached(self.position)

    def _reads_at_once(self) -> bool:
        """Return whether a prompt in several passes would be another prompt: factors and windows go by the pass."""
        return self._limit.reads_at_once or self._runner.capabilities.window_by_cache

    def _drop_other_factors(self) -> None:
        """Drop rows of an earlier turn that `generate` would compute anew with the factors of a longer text."""
        if self._given and self._limit.rereads(self.position) and not self._limit.holds(len(self._prompt)):
            self._length = self._given = 0
            self.rollback()

    def _read_anew(self, new: NewRows, needs: Needs) -> PassOutput:
        """Run one pass over the whole text and the next token; the cache is then that of one such pass."""
        if len(new.rows) != 1:
            raise ValueError("nothing can be drafted where the text is read anew")
        ids = torch.cat(
            [self._prompt.ids, torch.tensor([[*self._text, *new.ids.tolist()]], device=self._prompt.ids.device)], dim=1
        )
        positions, anew = torch.arange(ids.shape[1], device=ids.device)[None], usable_cache(None)
        output = self._runner.run(
            PassInput(ids, positions, None),
            anew,
            needs=needs,
            wanted=[ids.shape[1] - 1],
            total=self._length + ids.shape[1],
        )
        self.cache.layers, self._given = anew.layers, 0
        return PassOutput(output.logits, None if output.hidden is None else output.hidden[-1:])

    def _committed(self) -> int:
        """Return how many committed tokens follow the prompt."""
        return max(0, self._length - len(self._prompt))

    def _check_cache(self) -> None:
        rows = len(self._rows) if self._layers is None or 0 in self._layers else 0  # transformers asks the first layer
        if self.cache.get_seq_length() != self._length + rows:
            raise UsageError("this request's cache was used elsewhere meanwhile; give each request a cache of its own.")

    def _mask(self, rows: DraftRows, start: int, *, again: int = 0) -> object:
        """Return the mask of a pass over the rows from `start` on, which read so many committed tokens again."""
        before, seen = self._length - again, self._prompt.seen
        return self._runner.mask(rows, start, before, seen=None if seen is None else seen[:before], hidden=again)
