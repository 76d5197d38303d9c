"""Selects the decoder layers and sublayers that a pass runs, and the hidden states that it returns.

Layers are counted from 0; the hidden states of layer i are its output, for the last layer before the final norm (in
most models, transformers' `hidden_states[-1]` is after the norm). A skipped layer passes on its input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sublayers import Sublayers
from speculant.engines.hf.cache import usable_cache
from speculant.engines.hf.states.mixers import Mixers, View, find_mixers, view_layer
from speculant.engines.hf.views.layer_parts import LayerParts, find_layer_parts, split_layer
from speculant.engines.hf.views.model_view import (
    LayerList,
    attention_paths,
    change_config,
    decoder_config,
    feed_layer,
    find_layers,
    skip_layer,
    tap_layer,
    view_model,
    with_config,
)


class Taps:
    """Stores the outputs of tapped layers during one pass."""

    def __init__(self, indices: Sequence[int]) -> None:
        """Prepare for the layers of these indices, 0 or more, in the requested order."""
        self.indices = tuple(indices)
        self._outputs: dict[int, Any] = {}

    def take(self, index: int) -> Callable[[Any], None]:
        """Return a callback for a layer's output."""

        def keep(output: Any) -> None:
            self._outputs[index] = output

        return keep

    def take_all(self, outputs: Mapping[int, Tensor]) -> None:
        """Store the outputs of layers, by index."""
        self._outputs |= outputs

    def outputs(self, index: int) -> int | None:
        """Return the length of the tuple that the layer returns; None if it returns the hidden states alone."""
        output = self._outputs[index]
        return len(output) if isinstance(output, tuple) else None

    def hidden(self, rows: int, *, last: bool = False) -> Tensor | None:
        """Return the hidden states [n, L', D] of a pass over n rows; None if no layer was tapped.

        Args:
            rows: n.
            last: whether the last row is enough, [1, L', D]; layers may then have skipped the others.

        Raises:
            UnsupportedError: a layer did not return [1, n, D].
        """
        states: list[Tensor] = []
        for index in self.indices:
            output = self._outputs.get(index)
            state = output[0] if isinstance(output, tuple) else output
            if last and isinstance(state, Tensor) and state.ndim == 3:
                state, rows = state[:, -1:], 1
            if not isinstance(state, Tensor) or state.shape[:-1] != (1, rows):
                raise UnsupportedError(
                    f"layer {index} of this model does not return the hidden states of its rows, so they cannot be "
                    "read; use a method that needs none."
                )
            states.append(state[0].to(states[0].device) if states else state[0])
        return torch.stack(states, dim=1) if states else None


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """The starting point of a pass that does not start with the first layer.

    Attributes:
        layers: number of leading layers that its rows have already passed.
        states: [n, D], the output of the last of these.
    """

    layers: int
    states: Tensor


class LayerSelection:
    """Creates the views of one model that passes run on."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._found: LayerList | None = None
        self._outputs: dict[int, int | None] = {}  # by layer, once a pass has skipped layers; see `Taps.outputs`
        self._parts: tuple[LayerParts, ...] = ()  # once a pass has skipped a sublayer
        self._mixers: Mixers | None = None
        self._attention: dict[int, tuple[tuple[str, ...], ...]] = {}  # by layer index; see `attention_paths`

    def taps(self, wanted: Sequence[int], layers: Sublayers | None) -> Taps:
        """Return taps for the hidden layers named by `RequestedOutputs`.

        Raises:
            UnsupportedError: the model's layers were not found.
            UsageError: there is no such layer, or it is skipped.
        """
        if not wanted:
            return Taps(())
        count = len(self._place())
        run = range(count) if layers is None else layers.layers
        indices = [run[-1] if index == -1 and len(run) else index for index in wanted]
        for index in indices:
            if not 0 <= index < count:
                raise UsageError(f"there is no hidden layer {index}; the model has {count}, counted from 0.")
            if index not in run:
                raise UsageError(f"layer {index} is left out of the pass, so it has no hidden states.")
        return Taps(indices)

    def view(
        self,
        source: Any,
        taps: Taps,
        layers: Sublayers | None,
        config: Mapping[str, Any] | None = None,
        mixers: View | None = None,
        entry: Entry | None = None,
    ) -> Any:
        """Return the model that a pass runs on: its source, or a view of it.

        Args:
            source: the model, or what an acceleration runs instead.
            taps: the layers whose output is requested.
            layers: the sublayers to run; None for all.
            config: attributes that override those in the config of attention modules.
            mixers: creates views of mixers with states; None if they run unchanged.
            entry: where the pass starts; None for the first layer.

        Raises:
            UnsupportedError: the model's layers were not found, have a forward of their own, or cannot be split.
            UsageError: the layers are not distinct and in order.
        """
        if not taps.indices and layers is None and config is None and mixers is None and entry is None:
            return source
        _settle(self._model)
        place = self._place()
        above = source
        for name in place.path:
            above = getattr(above, name)
        changed: dict[int, nn.Module] = {}
        if config is not None:
            own = decoder_config(self._model)
            new = change_config(own, **config)
            for index, layer in enumerate(place.layers):
                changed[index] = with_config(getattr(above, str(index)), self._attention_of(index, layer, own), new)
        if mixers is not None:
            for index, paths in self._found_mixers().paths.items():
                layer = changed.get(index, getattr(above, str(index)))
                changed[index] = view_layer(layer, paths, partial(mixers, index))
        run = layers if entry is None else Sublayers.whole(range(entry.layers, len(place)))
        for index in self._split(len(place), run):
            assert run is not None  # otherwise nothing is split
            only, running = run.only(index), changed.get(index, getattr(above, str(index)))
            assert only is not None
            changed[index] = split_layer(place.layers[index], running, self._parts[index], only)
        for index in self._find_skipped(len(place), run):
            layer, outputs = getattr(above, str(index)), self._outputs[index]
            fed = entry is not None and index == entry.layers - 1
            changed[index] = feed_layer(layer, outputs, entry.states) if entry and fed else skip_layer(layer, outputs)
        for index in taps.indices:
            changed[index] = tap_layer(changed.get(index, getattr(above, str(index))), taps.take(index))
        return view_model(source, place.path, changed)

    def _place(self) -> LayerList:
        place = self._found
        if place is None or not place.belongs_to(self._model):  # cached: every pass with taps needs it
            place = self._found = find_layers(self._model)
        if place is None:
            raise UnsupportedError(
                f"the decoder layers of {type(self._model).__name__} were not found, so that no hidden states can be "
                "read and no layers left out; use a method that needs neither."
            )
        return place

    def _found_mixers(self) -> Mixers:
        if self._mixers is None:
            self._mixers = find_mixers(self._model)
        assert self._mixers is not None
        return self._mixers

    def _attention_of(self, index: int, layer: nn.Module, config: Any) -> tuple[tuple[str, ...], ...]:
        if index not in self._attention:
            self._attention[index] = attention_paths(layer, config)
        return self._attention[index]

    def _find_skipped(self, count: int, layers: Sublayers | None) -> list[int]:
        """Return the layers to skip as a whole, after finding out what they return."""
        if layers is None:
            return []
        skipped = sorted(set(range(count)) - set(layers.layers))
        if skipped and len(self._outputs) != count:
            self._outputs = self._find_outputs(count)
        return skipped

    def _split(self, count: int, layers: Sublayers | None) -> list[int]:
        """Check the layers; return those of which one sublayer runs, after finding out where these are."""
        if layers is None:
            return []
        check_layers(layers, count)
        split = [index for index in layers.layers if layers.only(index)]
        if split and len(self._parts) != count:
            try:
                self._parts = find_layer_parts(self._model)
            except UnsupportedError as error:
                raise UnsupportedError(
                    f"attention and MLP of this model's layers cannot be skipped separately: {error}. Skip whole "
                    "layers."
                ) from error
        return split

    def _find_outputs(self, count: int) -> dict[int, int | None]:
        """Return the number of outputs of each layer, found by a pass over one token."""
        taps, token = Taps(range(count)), torch.zeros((1, 1), dtype=torch.long, device=self._model.device)
        cache = DynamicCache(config=self._model.config.get_text_config(decoder=True))
        mixers, own = find_mixers(self._model), None
        if mixers is not None:
            stored = usable_cache(None, self._model.config.get_text_config(decoder=True), mixers.adapter.stored)
            cache, own = mixers.adapter.give_cache(stored), mixers.own(stored)
        view = self.view(self._model, taps, None, mixers=own)
        view(input_ids=token, past_key_values=cache, use_cache=True, return_dict=True)
        return {index: taps.outputs(index) for index in range(count)}


def check_layers(run: Sublayers, count: int) -> None:
    """Check the indices of sublayers of a model with `count` layers.

    Raises:
        UsageError: they are not distinct and in order.
    """
    for indices in (run.attention, run.mlp):
        if list(indices) != sorted(set(indices)) or (indices and not 0 <= indices[0] <= indices[-1] < count):
            raise UsageError(f"layers must rise from 0 to {count - 1}, not {list(indices)}.")


def shares_keys(model: Any) -> bool:
    """Return whether the last layers of a model use other layers' keys and values, as in Gemma 4's E2B.

    Given a number of rows whose logits are requested, Gemma 4's run those rows alone; given an index, all rows.
    """
    return bool(getattr(model.config.get_text_config(decoder=True), "num_kv_shared_layers", 0))


def _settle(model: Any) -> None:
    """Let a model change its weights first if its class does so in a pass, as RWKV does in evaluation mode.

    It remembers on itself that it did. On a view that would be lost, and the shared weights changed again.
    """
    rescale = getattr(getattr(model, "base_model", None), "_rescale_layers", None)
    if rescale is not None:
        rescale()
