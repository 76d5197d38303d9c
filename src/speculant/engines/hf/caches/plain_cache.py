"""One sequence decoded without drafts, token by token, like transformers' own loop.

This serves models and inputs on which drafts cannot be verified: media, encoders, prompts of adapters, modules with
states that no view can be made of. The model's own methods prepare the inputs of each pass, so whatever `generate`
can decode greedily or by sampling, this can. Nothing is rolled back: a pass whose token was not committed is
remembered, and returned when it is requested again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from speculant.core.engine import NO_OUTPUTS, Pass, RequestedOutputs, TargetCache
from speculant.core.errors import ModelError, UnsupportedError
from speculant.core.sublayers import Sublayers
from speculant.core.tree import DraftTree, Int32
from speculant.engines.hf.forward_pass import decode_mode, out_of_memory
from speculant.engines.hf.probe.class_checks import STATE_ON_MODULES
from speculant.engines.hf.prompt import copy_encoded, slices_by_length
from speculant.engines.hf.sampling.generate_capture import GenerateCall
from speculant.engines.hf.views.model_view import twin


class PlainTargetCache(TargetCache):
    """A sequence of one row, [1, T]; see `core.engine.TargetCache`. Not thread-safe."""

    cache = None  # later turns cannot reuse a state that cannot be cropped
    depth = room = 0
    uncommitted = 0  # rows to roll back
    trees = False
    joins = False
    shares_prefixes = False
    media = None

    def __init__(self, call: GenerateCall, latest: list[Any]) -> None:
        """Take the inputs that `generate` prepared: ids Int64[1, T], and inputs for the model's own methods.

        Args:
            call: a call with one row.
            latest: holds the sequence on this model whose prompt was read last; for models that keep their state on
                their modules, so that only this sequence can continue.

        Raises:
            UnsupportedError: the model's forward and its input preparation were replaced.
        """
        self._model = call.model
        if call.prepare_inputs is not None:  # an adapter's, possibly there only during its `generate`
            self._model = twin(call.model, modules={})
            self._model.__dict__["prepare_inputs_for_generation"] = call.prepare_inputs
        self._latest = latest if call.model.config.model_type in STATE_ON_MODULES else [self]
        self._prompt, self._config, self._given = call.ids, call.config, call.inputs
        self._empty = _is_empty(call.cache)
        self._kwargs: dict[str, Any] = {}
        self._tokens: list[int] = []  # tokens read after the prompt
        self._first: Tensor | None = None  # [1, V], after the prompt, until the first round
        self._next: Tensor | None = None  # [1, V], after a token that is not committed yet
        self._length = 0
        self._watcher: Callable[[int, Tensor], None] | None = None  # receives the logits of the prompt
        self._broken = False  # whether a failed pass may have changed the model's state

    @property
    def length(self) -> int:
        return self._length

    @property
    def whole_cache(self) -> Any:
        """The model's own cache, as `generate` returns it; None if the class returns none."""
        return self._kwargs.get("past_key_values", self._kwargs.get("cache_params"))

    @property
    def unread(self) -> int:
        return 0 if self._length else int(self._prompt.shape[1])

    def prefill(self, maximum: int | None = None, *, needs: RequestedOutputs = NO_OUTPUTS) -> Pass:
        """Read the whole prompt, whatever `maximum` is: parts of it could be another prompt."""
        if self._first is None:
            self._kwargs = copy_encoded(self._given)
            if self._empty:
                self._kwargs["past_key_values"] = copy.deepcopy(self._given.get("past_key_values"))
                self._broken = False
            self._latest[:] = [self]
            if self._watcher is not None:
                self._kwargs.pop("logits_to_keep", None)
            logits = self._read(lambda: self._model._prefill(self._prompt, self._config, self._kwargs), self.unread)
            if self._watcher is not None:
                self._watcher(self.unread - len(logits), logits)
            self._first = logits[-1:]
        self._length = int(self._prompt.shape[1])
        return Pass(logits=self._first)

    def watch_prompt(self, take: Callable[[int, Tensor], None]) -> None:
        self._watcher = take

    def forward(
        self,
        tokens: Int32,
        parents: Int32,
        *,
        needs: RequestedOutputs = NO_OUTPUTS,
        layers: Sequence[int] | Sublayers | None = None,
        embeddings: Tensor | None = None,
    ) -> Pass:
        if len(tokens) != 1 or layers is not None or embeddings is not None:
            raise UnsupportedError("nothing can be drafted on this model; its notes give the reason.")
        if self._next is None:
            self._first = None
            self._tokens.append(int(tokens[0]))
            self._next = self._read(self._decode, self._length + 1)[-1:]
        return Pass(logits=self._next)

    def begin_with(self, cache: Any) -> None:
        raise UnsupportedError("a prompt of this model cannot begin with rows of another.")

    def detach(self) -> None:
        """Return nothing: no other sequence can reuse this state."""
        self.release()

    def check(self, draft: DraftTree) -> None:
        if len(draft) or len(draft.queries):
            raise ValueError("nothing can be drafted on this model")

    def keep(self, rows: Sequence[int]) -> None:
        self._next, self._length = None, self._length + len(rows)

    def rollback(self) -> None:
        """Do nothing: the pass over an uncommitted token is returned when it is requested again."""

    def restart(self) -> None:
        """Allow `prefill` again; a prompt that was read is not read twice."""
        self._length = 0

    def release(self) -> None:
        self._kwargs, self._given, self._first, self._next = {}, {}, None, None

    def _read(self, run: Callable[[], Any], total: int) -> Tensor:
        """Run a pass and return the logits [R, V] of its last rows; if it fails, no further pass can run."""
        if self._latest[0] is not self:
            raise ModelError("this model keeps its state on its modules: decode one text after the other.")
        if self._broken:
            raise ModelError("this text cannot go on: a pass failed, and the state of this model cannot be restored.")
        self._broken = True
        with torch.no_grad(), out_of_memory(f"{total} tokens"):
            output = run()
            self._kwargs = self._model._update_model_kwargs_for_generation(
                output, self._kwargs, is_encoder_decoder=bool(self._model.config.is_encoder_decoder)
            )
            rows = output.logits[0] if self._watcher is not None else output.logits[0, -1:]
            logits: Tensor = rows.to(copy=True, dtype=torch.float32, device=self._prompt.device)
        self._broken = False
        return logits

    def _decode(self) -> Any:
        behind = torch.tensor([self._tokens], device=self._prompt.device)
        ids = torch.cat([self._prompt, behind], dim=1)
        sliced = {"next_sequence_length": 1 if self._kwargs.get("use_cache") else None} if slices_by_length() else {}
        with decode_mode(self._model):
            return self._model(
                **self._model.prepare_inputs_for_generation(ids, **sliced, **self._kwargs), return_dict=True
            )


def _is_empty(cache: Any) -> bool:
    """Return whether a cache is known to be empty, so that a copy of it can start over."""
    try:
        return cache is None or int(cache.get_seq_length()) == 0
    except (ValueError, AttributeError):  # a cache of states only
        return False
