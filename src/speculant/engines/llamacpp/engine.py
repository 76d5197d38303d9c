"""A GGUF model as an engine: passes over its sequences, one or several at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.core.engine import NO_OUTPUTS, Capabilities, Pass, RequestedOutputs, make_refused
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.model_engine import ModelEngine
from speculant.core.prepared_request import PreparedRequest
from speculant.core.tree import DraftTree, Int32
from speculant.engines.hf.cpu.build import processor
from speculant.engines.hf.sampling.generate_capture import check_alone, make_request, prepare_call
from speculant.engines.hf.sampling.settled_options import settle_options
from speculant.engines.llamacpp.batch import Rows
from speculant.engines.llamacpp.context import PASS_ROWS, LlamaContext
from speculant.engines.llamacpp.opening import open_sequence
from speculant.engines.llamacpp.probe import check_drafts
from speculant.engines.llamacpp.request_model import CPU
from speculant.engines.llamacpp.target_cache import LlamaTargetCache, check_needs, finish_pass
from speculant.engines.llamacpp.texts import LlamaText

Request = tuple[LlamaTargetCache, Int32, Int32]


class LlamaEngine(ModelEngine):
    """Runs passes of a GGUF model; see `core.engine.Engine`.

    Attributes:
        context: the KV cache, and passes on it.
        batch_note: why the sequences of a batch run one after the other; never the case here.
    """

    batch_note = ""

    def __init__(self, model: Any, context: LlamaContext, *, notes: Sequence[str] = (), strict: bool = True) -> None:
        """Take a model.

        Args:
            model: see above.
            context: context of the same model.
            notes: messages for the user, in addition to the engine's own.
            strict: whether to refuse a model on which drafts cannot be verified; otherwise it is decoded plainly.
        """
        self._model = model
        self.context, self._strict, self._notes = context, strict, tuple(notes)
        self._probed = bool(context.model.refusal)
        self._capabilities = Capabilities(
            vocabulary=context.model.vocabulary,
            positions=context.positions,
            trees=not context.model.states,
            # A draft runs on a copy of its text's state.
            sequences=context.sequences // 2 if context.model.states else context.sequences,
            notes=_notes(context),
        )
        if context.model.refusal:
            self._refuse(context.model.refusal)

    @property
    def model(self) -> Any:
        """The model with which transformers' `generate` prepares requests; see `request_model`."""
        return self._model

    @property
    def name(self) -> str:
        return "llama.cpp"

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def device(self) -> torch.device:
        """The CPU: llama.cpp returns logits in host memory."""
        return CPU

    @property
    def rounding(self) -> float:
        """The relative rounding error of passes: 8 bits unless weights are float32, since inputs are rounded."""
        exact = self.context.model.weights == "f32"
        return float(torch.finfo(torch.float32 if exact else torch.bfloat16).eps)

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the user about the model and its drafter."""
        return (*self._capabilities.notes, *self._notes)

    @property
    def latency_facts(self) -> tuple[object, ...]:
        """The model's shape and weights, and all else that affects the latency of passes."""
        context = self.context
        model = context.model
        return (
            model.header("general.architecture"),
            model.parameters,
            model.vocabulary,
            model.layers,
            model.weights,
            processor(),
            model.threads,
            model.offloaded,
            context.cache_type,
            context.flash_attention,
            model.library.version,
        )

    def probe(self, *, rows: int = 0) -> None:
        """Check once that passes over trees return the same logits as one-token passes; see `probe`.

        Args:
            rows: maximum rows per pass; ignored here.

        Raises:
            UnsupportedError: they do not, and the engine is strict.
        """
        if self._probed:
            return
        self._probed = True
        try:
            check_drafts(self.context)
        except UnsupportedError as error:
            self._refuse(str(error))

    def _refuse(self, reason: str) -> None:
        if self._strict:
            raise UnsupportedError(reason)
        self._capabilities = make_refused(self._capabilities, reason)

    def open(
        self, ids: Tensor, *, cache: Any = None, padding: Tensor | None = None, positions: Tensor | None = None
    ) -> LlamaTargetCache:
        """Return a new sequence that has read nothing but the given cache.

        Args:
            ids: Int64[1, T], the whole prompt, including its cached part.
            cache: `Result.cache` of an earlier turn on this model, a prefix of the prompt; None for none.
            padding: Int64[1, T] without zeros, or None.
            positions: Int64[1, n] ascending by 1 to T - 1, or None.

        Raises:
            UnsupportedError: the cache is of another kind, or there is padding or positions are not consecutive.
            UsageError: the prompt does not continue the cache.
        """
        if cache is not None and not isinstance(cache, LlamaText):
            raise UnsupportedError(
                f"a {type(cache).__name__} is not a cache of llama.cpp; leave out `cache`, or pass `Result.cache` of "
                "an earlier turn."
            )
        if padding is not None and not bool(padding.all()):
            raise UnsupportedError(
                "llama.cpp does not support padding; leave out attention_mask, and pass prompts unpadded."
            )
        if positions is not None:
            total = ids.shape[1]
            usual = torch.arange(total - positions.shape[1], total)
            if positions[0].tolist() != usual.tolist():
                raise UnsupportedError("llama.cpp counts positions from the first token; leave out position_ids.")
        return open_sequence(self.context, ids[0].tolist(), text=cache)

    @property
    def defaults(self) -> Mapping[str, Any]:
        own: Mapping[str, Any] = vars(self._model.generation_config)
        return own

    def prepare(
        self,
        ids: Tensor,
        *,
        max_new_tokens: int,
        cache: Any,
        options: Mapping[str, Any],
        constrained: bool = False,
    ) -> PreparedRequest:
        """Return what transformers' `generate` prepares for the model; see `ModelEngine.prepare`."""
        settled = settle_options(self._model.generation_config, ids, options, constrained=constrained)
        given = {} if cache is None else {self.capabilities.cache_argument: cache}
        call = prepare_call(self._model, ids, max_new_tokens=max_new_tokens, **given, **settled.options)
        return make_request(call, stop=settled.stop, notes=settled.notes)

    def open_prepared(self, prepared: PreparedRequest, *, plain: bool) -> LlamaTargetCache:
        """Return the cache of a request; passes without drafts are the same.

        Raises:
            UnsupportedError: it asks for something that is not decoded here.
        """
        check_alone(prepared.own, plain=plain)
        return self.open(**prepared.own.text())

    def crop(self, cache: LlamaText, length: int) -> int:
        """Keep the first tokens of a cache, for a prompt that shares only those; return their number."""
        cache.crop(length)
        return length

    def reusable(self, cache: LlamaText, length: int) -> int:
        """Return how many of a cache's first tokens a prompt can reuse: all, or none if their rows may be gone."""
        return 0 if self.context.loses(cache, length) else length

    def copy_prefix(self, cache: LlamaText, length: int, *, room: int) -> LlamaText | None:
        """Return a text that shares the first rows of another; None if that was evicted from llama.cpp's cache."""
        return self.context.fork(cache, length)

    def held_bytes(self, cache: LlamaText) -> int:
        """Return the bytes of a text's rows, including shared ones; 0 if it was evicted from llama.cpp's cache."""
        return self.context.text_bytes(cache)

    def compact_cache(self, cache: LlamaText) -> LlamaText:
        """Return the text itself: its rows take no extra memory."""
        return cache

    def forward(
        self, batch: Sequence[tuple[LlamaTargetCache, int, DraftTree]], needs: RequestedOutputs = NO_OUTPUTS
    ) -> list[Pass]:
        check_needs(needs, trees=self.capabilities.trees)
        if any(cache.uncommitted for cache, _, _ in batch):
            raise UsageError("a cache has rows that were neither kept nor dropped; roll it back before a target pass.")
        requests = [(cache, *tree.rows(root)) for cache, root, tree in batch]
        texts = [cache.text for cache, _, _ in batch]
        for cache, tokens, _ in requests:
            cache.check_tokens(tokens)
        groups, found = list(self._groups(requests)), list[Pass]()
        for group in groups:
            if len(group) == 1:
                [(cache, tokens, parents)] = group
                logits = [cache.run(tokens, parents, texts)]
            else:
                logits = self._together(group, texts)
            for each in logits:
                # The next group's pass overwrites what this one returned.
                found.append(finish_pass(each if group is groups[-1] else each.clone(), needs))
        return found

    def prefill(
        self, batch: Sequence[tuple[LlamaTargetCache, int | None]], needs: RequestedOutputs = NO_OUTPUTS
    ) -> list[Pass | None]:
        rows = sum(cache.unread if maximum is None else min(maximum, cache.unread) for cache, maximum in batch)
        joined = all(cache.joins for cache, _ in batch)
        if len(batch) < 2 or rows > PASS_ROWS or not joined:
            return [cache.prefill(maximum, needs=needs) for cache, maximum in batch]
        texts = [cache.text for cache, _ in batch]
        parts = [cache.plan_prompt(maximum, needs, texts) for cache, maximum in batch]
        logits = list(self.context.decode(Rows.join(parts), texts).clone())
        return [
            cache.take_prompt(part, logits.pop(0)[None] if part.outputs[-1] else None, needs)
            for (cache, _), part in zip(batch, parts, strict=True)
        ]

    def read(self, arrays: Sequence[Tensor]) -> list[list[Any]]:
        return [array.tolist() for array in arrays]

    def _together(self, group: list[Request], texts: list[LlamaText]) -> list[Tensor]:
        planned = [cache.plan(tokens, parents, texts) for cache, tokens, parents in group]
        logits = self.context.decode(Rows.join(planned), texts)
        ends = np.cumsum([sum(rows.outputs) for rows in planned]).tolist()
        return [logits[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def _groups(self, requests: list[Request]) -> Iterator[list[Request]]:
        """Yield the requests whose rows share a pass, in order."""
        group, rows = list[Request](), 0
        for request in requests:
            count = request[0].pending + len(request[1])
            if group and rows + count > PASS_ROWS:
                yield group
                group, rows = [], 0
            group.append(request)
            rows += count
        if group:
            yield group


def _notes(context: LlamaContext) -> tuple[str, ...]:
    """Return messages for the user about drafts and the precision of passes."""
    notes, rounding = [], []
    if context.model.states and not context.model.refusal:
        kind = context.model.header("general.architecture")
        notes.append(
            f"the architecture '{kind}' keeps a running state, from which llama.cpp cannot remove tokens: drafts are "
            "verified as chains, and accepted tokens are read again after a rejected one."
        )
    if context.cache_type != "f32":
        rounding.append(f"keys and values are rounded to {context.cache_type}")
    if context.flash_attention is not False:
        rounding.append("flash attention rounds to float16")
    if rounding:
        notes.append(
            f"{' and '.join(rounding)}, so where two tokens are almost equally probable the text can differ from plain "
            "decoding; cache_type='f32' with flash_attention=False avoids that."
        )
    return tuple(notes)
