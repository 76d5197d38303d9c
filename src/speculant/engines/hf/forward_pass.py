"""One forward pass of a transformers model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from speculant.core.engine import NO_OUTPUTS, Pass, RequestedOutputs
from speculant.core.errors import OutOfMemoryError, UnsupportedError, UsageError, is_out_of_memory
from speculant.core.sublayers import Sublayers
from speculant.core.tree import Bool, Int32, Int64
from speculant.drafters.top_tokens import top_on_host
from speculant.engines.hf.acceleration import Acceleration, LayerPass
from speculant.engines.hf.batch_attention import BatchCache
from speculant.engines.hf.cache import usable_cache
from speculant.engines.hf.draft_rows import DraftRows
from speculant.engines.hf.probe.capabilities import HFCapabilities
from speculant.engines.hf.probe.class_checks import STATE_LAYERS
from speculant.engines.hf.states.adapter import cache_class
from speculant.engines.hf.states.mixers import View
from speculant.engines.hf.states.recorded_cache import RecordedStates, StateCache
from speculant.engines.hf.states.recorder import StateRecorder
from speculant.engines.hf.views.extra_embeddings import with_embeddings
from speculant.engines.hf.views.layer_selection import Entry, LayerSelection, shares_keys
from speculant.engines.hf.views.row_positions import RowPlaces, with_positions

EMBEDDED = "inputs_embeds"  # the classes' argument for rows given as embeddings


@dataclass(frozen=True, slots=True, eq=False)
class PassInput:
    """The inputs of a pass over n rows, besides the cache.

    Attributes:
        ids: Int64[1, n].
        positions: Int64[1, n], or [A, 1, n] for families with A position axes.
        mask: the value passed to the model as `attention_mask`.
        others: further inputs, such as images, or `EMBEDDED` in place of the ids.
        cross: cross-attention cache of an encoder-decoder's source, or None.
        places: positions of each sequence's rows, if a view passes them to the model; otherwise ().
    """

    ids: Tensor
    positions: Tensor
    mask: Any
    others: Mapping[str, Any] = field(default_factory=dict)
    cross: Cache | None = None
    places: tuple[RowPlaces, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PassOutput:
    """The outputs of a pass over n rows.

    Attributes:
        logits: [R, V], of all rows or the requested ones.
        hidden: [n, L', D], of the tapped layers; of a prompt's part possibly only its last row; None without taps.
        cache: the cache returned by the model.
        early: see `core.engine.Pass`.
        returned: the model's complete output.
    """

    logits: Tensor
    hidden: Tensor | None = None
    cache: Any = None
    early: float = field(default=0.0, kw_only=True)
    returned: Any = field(default=None, kw_only=True)


class ModelRunner:
    """Runs passes of a model."""

    def __init__(self, model: Any, capabilities: HFCapabilities, acceleration: Acceleration) -> None:
        """Prepare for a model.

        Args:
            model: a causal LM that `check_model` accepted.
            capabilities: the result of `check_model`.
            acceleration: faster code for it.
        """
        self.model, self.capabilities, self.acceleration = model, capabilities, acceleration
        self._selection, self._shares_keys = LayerSelection(model), shares_keys(model)
        self.locate()

    def locate(self) -> None:
        """Find the model's first weight, which tells its device; again after modules of the model were replaced."""
        weights = ((module._parameters, name) for module in self.model.modules() for name in module._parameters)
        self._first_weight = next(((held, name) for held, name in weights if held[name] is not None), None)

    @property
    def device(self) -> torch.device:
        """The device of the model: that of its first weight, which `model.device` searches for in all its modules."""
        held, name = self._first_weight or ({}, "")
        first = held.get(name)
        found: torch.device = self.model.device if first is None else first.device
        return found

    def empty_cache(self, cache: Any = None) -> DynamicCache:
        """Return a cache with this model's kinds of layers, or convert a given one; see `usable_cache`.

        Raises:
            UnsupportedError: the given cache cannot be rolled back.
        """
        mixers, text = self.capabilities.mixers, self.model.config.get_text_config(decoder=True)
        if mixers is None:
            indexed, sources = self.capabilities.indexed, self.capabilities.source_layers
            return usable_cache(cache, text if indexed else None, sources=sources)
        return usable_cache(cache, text, mixers.adapter.stored)

    def run(
        self,
        given: PassInput,
        cache: Any,
        *,
        needs: RequestedOutputs = NO_OUTPUTS,
        layers: Sublayers | None = None,
        config: Mapping[str, Any] | None = None,
        embeddings: Tensor | None = None,
        wanted: Sequence[int] | None = None,
        recorder: StateRecorder | None = None,
        entry: Entry | None = None,
        total: int,
    ) -> PassOutput:
        """Run a pass without gradients; its rows are appended to the cache.

        Args:
            given: n rows.
            cache: the cache to attend to; None for a new one of the model's own kind.
            needs: the layers whose output is requested.
            layers: the sublayers to run; None for all.
            config: attributes that override those in the layers' config.
            embeddings: [E, D], embeddings of tokens after the vocabulary.
            wanted: ascending rows whose logits are requested; None for all.
            recorder: replaces the functions of layers with states; None for their own.
            entry: starting point of the pass; None for the first layer.
            total: number of rows that the caches will have, for the message if memory runs out.

        Raises:
            OutOfMemoryError: the device is full.
            UnsupportedError: hidden states or these sublayers are not available on this model.
        """
        # 1. The inputs by the names that the class takes.
        held, mixers = self._states_of(cache, recorder)
        names = self.capabilities.inputs
        if given.cross is not None:
            held = EncoderDecoderCache(held, given.cross)
        options: dict[str, Any] = {**given.others}
        if EMBEDDED not in options:
            options[names.ids] = given.ids.to(self.device)
        if self.capabilities.takes_positions:
            first = self.capabilities.first_position
            options[names.positions] = given.positions + first if first else given.positions

        # 2. Whether compiled code may run all layers, and the rows whose logits are computed.
        count, index, last = given.ids.shape[1], None, False
        joined = config is None or type(cache) is BatchCache  # compiled code separates sequences itself
        whole = joined and layers is None and entry is None and mixers is None and embeddings is None
        whole = whole and not (given.others or given.cross or given.places)
        if wanted is not None:
            index = torch.tensor(wanted, device=self.device)
            if self.capabilities.keeps_logits:  # most models accept an index, all of them the number of last rows
                last = list(wanted) == [count - 1] and not (needs.hidden_layers and needs.prompt and self._shares_keys)
                options["logits_to_keep"] = 1 if last else index
                index = None

        # 3. The pass: by compiled code, else by a view of the model with what is changed for this pass.
        with torch.no_grad(), out_of_memory(f"{total} cached tokens"):
            taps = self._selection.taps(needs.hidden_layers, layers)
            if whole and (given.mask is None or type(given.mask) is Tensor):
                kept = options.get("logits_to_keep", 0) if index is None else index
                ids, positions = options[names.ids], options.get(names.positions, given.positions)
                asked = LayerPass(ids, positions, given.mask, held, kept=kept, taps=taps.indices)
                direct = self.acceleration.run_layers(self.model, asked)
                if direct is not None and direct.logits is not None:
                    taps.take_all(direct.states)
                    return PassOutput(direct.logits[0], taps.hidden(count, last=last and not needs.prompt), held)
            source = self.acceleration.model_for(self.model, count, whole=layers is None and entry is None)
            model = self._selection.view(source, taps, layers, config, mixers, entry)
            if given.places:
                model = with_positions(model, self.capabilities.placing, given.places)
            if embeddings is not None:
                model = with_embeddings(model, self.model, self.capabilities.vocabulary, embeddings)
            output = model(
                use_cache=True,
                return_dict=True,
                **{names.mask: given.mask, self.capabilities.cache_argument: held},
                **options,
            )
        logits: Tensor = output.logits[0]
        behind = getattr(output, self.capabilities.cache_argument, None)
        hidden = taps.hidden(count, last=last and not needs.prompt)
        return PassOutput(logits if index is None else logits[index], hidden, behind, returned=output)

    def _states_of(self, cache: Any, recorder: StateRecorder | None) -> tuple[Any, View | None]:
        """Return the cache to pass, and the function that creates views of mixers for its states.

        Args:
            cache: cache of one sequence, or of several with their recorder; None for the model's own.
            recorder: None for a pass of the model's own.
        """
        mixers = self.capabilities.mixers
        if mixers is None or cache is None:
            return cache, None
        if recorder is None:
            return mixers.adapter.give_cache(cache), mixers.own(cache)
        recorded = cache
        if not isinstance(cache, RecordedStates):
            recorded = cache_class(StateCache, mixers.adapter.kind)(cache, recorder)
        return recorded, mixers.record_mixers(recorder)

    def verify(self, given: PassInput, cache: Any, **options: Any) -> PassOutput:
        """Run a pass like `run`, in the mode in which transformers' own decoding loop runs its passes."""
        with self.decode_mode():
            return self.run(given, cache, **options)

    def decode_mode(self) -> contextlib.AbstractContextManager[Any]:
        """Return what the function `decode_mode` does, except on CPUs, where that takes long and changes nothing."""
        return contextlib.nullcontext() if self.device.type == "cpu" else decode_mode(self.model)

    def mask(
        self, rows: DraftRows, start: int, before: int, *, seen: Bool | None, hidden: int, sliding: int | None = None
    ) -> Any:
        """Return the mask of a pass over rows in the model's form.

        A dict by kind of layer if there are two kinds; additive for eager attention.

        Args:
            rows: the uncommitted rows.
            start: the first of them in the pass.
            before, seen, hidden: see `DraftRows.mask`.
            sliding: how many of the last `before` tokens are in layers with a window; None for all.
        """
        capabilities, full, windowed = self.capabilities, None, None
        if not capabilities.attends:
            return None
        if capabilities.mixed or capabilities.window is None:
            full = rows.mask(start, before, seen=seen, hidden=hidden)
        if capabilities.window is not None:
            held = before if sliding is None else sliding
            windowed = rows.mask(start, held, seen=seen, window=capabilities.window, hidden=hidden)
        if capabilities.mixed:
            masks = {"full_attention": self._to_device(full), "sliding_attention": self._to_device(windowed)}
            if capabilities.indexed:
                masks["indexed_attention"] = masks["full_attention"]
            return masks | dict.fromkeys(STATE_LAYERS) if capabilities.states else masks
        return self._to_device(full if capabilities.window is None else windowed)

    def _to_device(self, mask: Bool | None) -> Tensor:
        assert mask is not None
        allowed, device = torch.from_numpy(mask), self.device
        if not self.capabilities.additive:
            return allowed.to(device)
        dtype = self.model.dtype
        return torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min).to(device)


def check_queries(needs: RequestedOutputs, capabilities: HFCapabilities) -> None:
    """Refuse additional rows in a draft if only chains can be verified.

    Raises:
        UnsupportedError: they are requested.
    """
    if needs.queries and not capabilities.trees:
        raise UnsupportedError(
            "this method needs rows in addition to the draft, but this model verifies chains only; its notes give "
            "the reason. Use another method."
        )


def check_tokens(tokens: Int32, vocabulary: int) -> None:
    """Refuse drafted tokens outside the model's vocabulary.

    Raises:
        UsageError: there is such a token.
    """
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocabulary:
        wrong = next(token for token in tokens.tolist() if not 0 <= token < vocabulary)
        raise UsageError(f"the drafter proposed token {wrong}; the model has {vocabulary}, counted from 0.")


def finish_pass(output: PassOutput, needs: RequestedOutputs) -> Pass:
    """Return the Pass for drafter and verifier; the top tokens are being copied to the host."""
    ids, logits = top_on_host(output.logits, needs.top_k) if needs.top_k else (None, None)
    return Pass(logits=output.logits, hidden=output.hidden, top_ids=ids, top_logits=logits, early=output.early)


def as_ids(numbers: Int64) -> Tensor:
    """Return Int64[n] as [1, n]."""
    return torch.from_numpy(numbers)[None]


@contextlib.contextmanager
def out_of_memory(where: str) -> Iterator[None]:
    """Convert the device's out-of-memory error to an OutOfMemoryError that names the place and a remedy."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"the device ran out of memory at {where}. Draft fewer nodes, shorten the prompt, or use a smaller dtype."
        ) from error


def decode_mode(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which transformers' own decoding loop runs its passes, if this release has one."""
    mode: contextlib.AbstractContextManager[Any] = getattr(
        model, "_optimize_model_for_decode", contextlib.nullcontext
    )()
    return mode
