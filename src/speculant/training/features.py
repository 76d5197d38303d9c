"""The target's hidden states of groups of texts: computed on demand, or kept on disk up to a limit."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.core.engine import LAST_LAYER
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.training.recipe import SourceStates, TrainBatch
from speculant.engines.hf.views.layer_selection import shares_keys
from speculant.engines.hf.views.model_view import LayerList, find_layers, tap_layer, view_model
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.batches import HELD_OUT, TRAINING, Groups
from speculant.training.feature_cache import FeatureCache
from speculant.training.settings import TrainSettings
from speculant.training.sources import encode_sources, source_inputs
from speculant.training.stored_states import StoredStates
from speculant.training.texts import Int64, Texts


class Features:
    """Batches of groups of texts, with the target's states.

    Attributes:
        groups: groups of texts.
        layers: the decoder layers whose output is stored, ascending.
        cache: cache of states; None to compute them every time.
        stored: reads states of texts that have state files; None if none has.
    """

    def __init__(self, model: Any, target: HFTargetParts, groups: Groups, taps: tuple[int, ...]) -> None:
        """Prepare; nothing is computed yet.

        Args:
            model: the target.
            target: its parts.
            groups: groups of texts.
            taps: the decoder layers whose output the head reads, see `Head.taps`.

        Raises:
            UnsupportedError: the target's decoder layers cannot be found.
        """
        place = find_layers(model)
        if place is None:
            raise UnsupportedError(f"the decoder layers of {type(model).__name__} cannot be found, which heads need.")
        self._model, self._target, self.groups = model, target, groups
        self.cache: FeatureCache | None = None
        self._place: LayerList = place
        self.layers = find_stored_layers(taps, len(place))
        self._order = [self.layers.index(tap % len(place)) for tap in taps]
        self._device = model.device
        forward = inspect.signature(model.forward).parameters
        kept: Any = torch.tensor([-1], device=model.device) if shares_keys(model) else 1  # its layers run all rows
        self.stored: StoredStates | None = None
        self._options = {"logits_to_keep": kept} if "logits_to_keep" in forward else {}

        if files := groups.texts.files:
            self.stored = StoredStates(self.layers, target.hidden_size, self._all_outputs)
            self.stored.check(files)

    @property
    def shape(self) -> tuple[int, int]:
        """L' and D of the stored states."""
        return len(self.layers), self._target.hidden_size

    def batch(self, group: int, anchors: Int64) -> TrainBatch:
        """Return a group with the target's states and these anchors."""
        texts, chosen = self.groups.texts, self.groups[group]
        lengths = texts.lengths[chosen]
        ids = torch.zeros(len(chosen), int(lengths.max()), dtype=torch.long)
        for row, index in enumerate(chosen):
            ids[row, : lengths[row]] = torch.from_numpy(texts[int(index)].astype(np.int64))
        ids = ids.to(self._device)
        source = None if texts.sources is None else encode_sources(self._model, texts.sources, chosen)
        states = self._states(group, ids, lengths, source)
        with torch.no_grad():
            final = self._target.norm(states[:, :, -1])  # the last layer is always the last one stored
        return TrainBatch(
            ids=ids,
            lengths=torch.from_numpy(lengths).to(self._device),
            hidden=states if self._order == [*range(len(self.layers))] else states[:, :, self._order],
            final=final,
            anchors=torch.from_numpy(anchors).to(self._device),
            source=source,
        )

    def training_batch(self, number: int) -> TrainBatch:
        """Return the n-th training batch, counted over all epochs and processes."""
        group = self.groups.at(number)
        return self.batch(group, self.groups.anchors(group, TRAINING, number))

    def held_out_batch(self, group: int) -> TrainBatch:
        """Return a group with the anchors for measuring acceptance, the same each time."""
        return self.batch(group, self.groups.anchors(group, HELD_OUT, group))

    def flush(self) -> None:
        """Flush cached states to disk."""
        if self.cache is not None:
            self.cache.flush()

    def _states(self, group: int, ids: Tensor, lengths: Int64, source: SourceStates | None) -> Tensor:
        """Return the outputs [B, T, L', D] of the stored layers; padding rows are undefined."""
        cache = self.cache
        if cache is None or not cache.holds(group):
            return self._find_states(group, ids, lengths, source)
        rows = np.arange(ids.shape[1]) < lengths[:, None]
        mask = torch.from_numpy(rows)
        if not cache.is_filled(group):
            cache.put(group, self._find_states(group, ids, lengths, source)[mask.to(self._device)])
        found = torch.zeros(*ids.shape, len(self.layers), self._target.hidden_size, dtype=self._model.dtype)
        found[mask] = cache.get(group).to(found.dtype)  # rounded even the first time, so that every epoch is the same
        return found.to(self._device)

    def _find_states(self, group: int, ids: Tensor, lengths: Int64, source: SourceStates | None) -> Tensor:
        """Return the outputs [B, T, L', D] of the stored layers, from disk where available."""
        stored = self.stored
        if stored is None:
            return self._compute(ids, source=source)
        files = [self.groups.texts.files[index] for index in self.groups[group]]
        if None in files:
            states = self._compute(ids)
        else:
            states = torch.zeros(*ids.shape, *self.shape, dtype=self._model.dtype, device=self._device)
        for row, (file, length) in enumerate(zip(files, lengths.tolist(), strict=True)):
            if file is not None:
                states[row, :length] = stored.read(file, length).to(states)
        return states

    def _all_outputs(self, ids: Tensor) -> Tensor:
        """Return the outputs [T, L, D] of all layers for tokens Int64[T]."""
        return self._compute(ids[None].to(self._device), range(len(self._place)))[0]

    def _compute(self, ids: Tensor, layers: Sequence[int] | None = None, source: SourceStates | None = None) -> Tensor:
        """Compute the outputs [B, T, L', D] of layers, by default the stored ones, behind what an encoder has read."""
        layers = self.layers if layers is None else layers
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": None}
        if source is not None:
            given = {"decoder_input_ids": ids, **source_inputs(source)}
        found: dict[int, Tensor] = {}

        def taker(layer: int) -> Any:
            def take(output: Any) -> None:
                found[layer] = (output[0] if isinstance(output, tuple) else output).detach()

            return take

        views = {layer: tap_layer(self._place.layers[layer], taker(layer)) for layer in layers}
        with torch.no_grad():
            view_model(self._model, self._place.path, views)(
                use_cache=False, return_dict=True, **given, **self._options
            )
        return torch.stack([found[layer].to(ids.device) for layer in layers], dim=2)


def head_features(
    model: Any,
    target: HFTargetParts,
    texts: Texts,
    head: Any,
    settings: TrainSettings,
    depth: int,
    _before: Sequence[Any] = (),
) -> Features:
    """Return batches of texts for training a head.

    Args:
        model: the target.
        target: its parts.
        texts: texts of sufficient length, see `usable`.
        head: the head to train, which names the layers that it taps.
        settings: training settings.
        depth: maximum depth to train or measure.
        _before: only for draft models.
    """
    return Features(model, target, text_groups(texts, settings, depth), head.taps)


def text_groups(texts: Texts, settings: TrainSettings, depth: int) -> Groups:
    """Return texts in the groups for a training."""
    return Groups(texts, size=settings.texts, anchors=settings.anchors, depth=depth, seed=settings.seed)


def find_stored_layers(taps: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Return the decoder layers whose output is needed for the taps and the target's own distribution, ascending."""
    return tuple(sorted({tap % layers for tap in (*taps, LAST_LAYER)}))
