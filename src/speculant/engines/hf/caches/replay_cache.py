"""One sequence on a model whose cache can only be copied: chains are verified, and accepted tokens are read again.

For caches without selectable rows whose recurrences are not among the recorded ones (`states`): compressed blocks,
states in class-specific formats. RWKV-4 and xLSTM are among these: their recurrences could branch like the others, but
both classes store the states of all layers in one object of their own, and mixers and models write slices of it, so
trees would need our forwards in place of theirs.

A pass runs on a copy of the cache. If all of its rows are kept, the copy replaces the cache; otherwise the copy is
dropped, and the kept tokens are prepended to the next pass. So a rejected draft costs extra rows, but no extra pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.core.engine import NO_OUTPUTS, Pass, RequestedOutputs, TargetCache, check_path
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sublayers import Sublayers
from speculant.core.tree import UNLIMITED, DraftTree, Int32
from speculant.engines.hf.draft_rows import DraftRows
from speculant.engines.hf.forward_pass import (
    ModelRunner,
    PassInput,
    PassOutput,
    as_ids,
    check_queries,
    check_tokens,
    finish_pass,
)
from speculant.engines.hf.prompt import Prompt, join_states

MAX_PENDING = 16  # maximum kept tokens to read again with a draft; more get a pass of their own
SHARED = ("config", "layer_class_to_replicate")
REPLACED = ("keys", "values", "indexer_keys", "compressed_kv", "buffer_kv", "buffer_gate")  # never written in place


class ReplayTargetCache(TargetCache):
    """A sequence, [1, T]; see `core.engine.TargetCache`. Not thread-safe."""

    cache = None  # later turns cannot reuse a state that lags behind the text
    trees = False
    joins = False
    shares_prefixes = False
    media = None

    def __init__(
        self, runner: ModelRunner, ids: Tensor, *, padding: Tensor | None = None, positions: Tensor | None = None
    ) -> None:
        """Prepare a sequence.

        Args:
            runner: runner of the model.
            ids: Int64[1, T], the whole prompt.
            padding: Int64[1, T], 0 at padding, or None.
            positions: Int64[1, T], or None to count the unpadded tokens.
        """
        self._runner, self._prompt = runner, Prompt(ids, padding=padding, positions=positions)
        self._held: Any = None  # the model's own cache; None before the prompt is read
        self._after: Any = None  # the cache after the rows of the last pass
        self._pending: list[int] = []  # committed tokens that `_held` has not read
        self._rows: list[int] = []  # tokens of rows neither kept nor dropped yet
        self._length = 0
        self._watcher: Callable[[int, Tensor], None] | None = None

    @property
    def length(self) -> int:
        return self._length

    @property
    def unread(self) -> int:
        return 0 if self._length else len(self._prompt)

    @property
    def uncommitted(self) -> int:
        return len(self._rows)

    @property
    def position(self) -> int:
        """The position of the token that follows the last committed one."""
        return self._length - self._prompt.shift

    @property
    def depth(self) -> int:
        capabilities = self._runner.capabilities
        if not capabilities.drafts:
            return 0
        if capabilities.positions is None:
            return UNLIMITED
        return max(0, capabilities.positions - 1 - self.position - self.unread)

    @property
    def room(self) -> int:
        return UNLIMITED

    def watch_prompt(self, take: Callable[[int, Tensor], None]) -> None:
        self._watcher = take

    def prefill(self, maximum: int | None = None, *, needs: RequestedOutputs = NO_OUTPUTS) -> Pass:
        """Read the whole prompt, whatever `maximum` is: parts of it could be another prompt."""
        check_queries(needs, self._runner.capabilities)
        if not self.unread:
            raise UsageError("the prompt of this sequence has already been read.")
        count = len(self._prompt)
        wanted = None if self._watcher else [count - 1]
        output = self._runner.run(self._prompt.part(0, count), None, needs=needs, wanted=wanted, total=count)
        self._held = output.cache
        if self._watcher is not None:
            self._watcher(0, output.logits)
        hidden = [] if output.hidden is None else [output.hidden]
        self._length = count
        return finish_pass(PassOutput(output.logits[-1:], join_states(hidden, needs)), needs)

    def forward(
        self,
        tokens: Int32,
        parents: Int32,
        *,
        needs: RequestedOutputs = NO_OUTPUTS,
        layers: Sequence[int] | Sublayers | None = None,
        embeddings: Tensor | None = None,
    ) -> Pass:
        """Run a pass over a chain of rows; earlier rows that were not kept are read again with them."""
        if layers is not None or embeddings is not None:
            raise UnsupportedError("single layers and embeddings of the drafter's own cannot be run on this model.")
        if not DraftRows().grown(np.arange(-1, len(self._rows) - 1)).grown(parents).is_chain():
            raise UnsupportedError("this model verifies chains only; set the budget's `trees` to False.")
        if len(self._pending) > MAX_PENDING:
            self._held, self._pending = self._read(self._held, self._pending, start=self._read_tokens).cache, []
        before = len(self._pending) + len(self._rows)
        rows = [*self._rows, *tokens.tolist()]
        output = self._read(self._held, [*self._pending, *rows], start=self._read_tokens, needs=needs)
        self._after, self._rows = output.cache, rows
        hidden = None if output.hidden is None else output.hidden[before:]
        return finish_pass(PassOutput(output.logits[before:], hidden), needs)

    @property
    def _read_tokens(self) -> int:
        """The number of tokens the held cache has read."""
        return self._length - len(self._pending)

    def _read(self, held: Any, tokens: list[int], *, start: int, needs: RequestedOutputs = NO_OUTPUTS) -> PassOutput:
        """Run a pass over tokens on a copy of a cache that has read `start` tokens, and return its output."""
        device, end = self._prompt.ids.device, start + len(tokens)
        positions = torch.arange(start, end, device=device)[None] - self._prompt.shift
        ids = as_ids(np.array(tokens, np.int64)).to(device)
        given = PassInput(ids, positions, self._prompt.padding_mask(end))
        return self._runner.verify(given, copy_writable(held), needs=needs, total=end)

    def keep(self, rows: Sequence[int]) -> None:
        kept = list(rows)
        check_path(kept, range(-1, len(self._rows) - 1))
        if kept and len(kept) == len(self._rows):
            self._held, self._pending = self._after, []
        else:
            self._pending += self._rows[: len(kept)]
        self._length += len(kept)
        self.rollback()

    def rollback(self) -> None:
        self._after, self._rows = None, []

    def plain_logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits [n, V] after each of several candidate next tokens, one pass each; none is kept."""
        held, logits = self._held, list[Tensor]()
        if self._pending:
            held = self._read(held, self._pending, start=self._read_tokens).cache
        for place, token in enumerate(tokens):
            output = self._read(held, [token], start=self._length + place)
            held = output.cache
            logits.append(output.logits)
        return torch.cat(logits)

    def check(self, draft: DraftTree) -> None:
        check_tokens(draft.tokens, self._runner.capabilities.vocabulary)

    def restart(self) -> None:
        self._held, self._pending, self._length = None, [], 0
        self.rollback()

    def detach(self) -> None:
        """Return nothing: no other sequence can reuse this state."""
        self.release()

    def release(self) -> None:
        self.restart()

    def begin_with(self, cache: Any) -> None:
        raise UnsupportedError("a prompt of this model cannot begin with rows of another.")


def copy_writable(held: Any, name: str = "", known: dict[int, Any] | None = None) -> Any:
    """Return a copy of a cache that a pass can write to; it shares the tensors that passes only ever replace.

    Args:
        held: a cache, or part of one.
        name: the name of the attribute that holds it.
        known: copies so far, by the identity of the original.
    """
    known = {} if known is None else known
    if id(held) in known:
        return known[id(held)]
    if isinstance(held, Tensor):
        known[id(held)] = held if name in REPLACED else held.clone()
    elif type(held) is dict:
        known[id(held)] = twin = dict[Any, Any]()
        twin |= {key: copy_writable(value, name, known) for key, value in held.items()}
    elif type(held) is list:
        known[id(held)] = items = list[Any]()
        items += (copy_writable(value, name, known) for value in held)
    elif type(held) is tuple:
        return tuple(copy_writable(value, name, known) for value in held)
    elif hasattr(held, "__dict__") and not isinstance(held, type) and not type(held).__module__.startswith("torch"):
        known[id(held)] = other = copy.copy(held)
        parts = {key: value if key in SHARED else copy_writable(value, key, known) for key, value in vars(held).items()}
        vars(other).update(parts)
    return known.get(id(held), held)
