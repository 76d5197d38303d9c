"""The target's hidden states of groups of texts: computed when they are needed, or kept on disk up to a limit."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.model_view import LayerList, find_layers, tapped_layer, view_model
from speculant.engines.hf.target_parts import HFTargetParts
from speculant.training.batches import Groups
from speculant.training.feature_cache import FeatureCache
from speculant.training.recipe import TrainBatch
from speculant.training.texts import Int64

LAST = -1


class Features:
    """Batches of groups of texts, with the target's states."""

    def __init__(
        self, model: Any, target: HFTargetParts, groups: Groups, taps: tuple[int, ...], cache: FeatureCache | None
    ) -> None:
        """Prepare; nothing is computed yet.

        Args:
            model: the target.
            target: its parts.
            groups: of texts.
            taps: the decoder layers whose output the head reads, as `Head.taps`.
            cache: where states are kept; None to compute them every time.

        Raises:
            UnsupportedError: the target's decoder layers cannot be found.
        """
        place = find_layers(model)
        if place is None:
            raise UnsupportedError(f"the decoder layers of {type(model).__name__} cannot be found, which heads need.")
        self._model, self._target, self.groups, self.cache = model, target, groups, cache
        self._place: LayerList = place
        self.layers = stored_layers(taps, len(place))
        self._order = [self.layers.index(tap % len(place)) for tap in taps]
        self._device = model.device
        forward = inspect.signature(model.forward).parameters
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in forward else {}

    def batch(self, group: int, anchors: Int64) -> TrainBatch:
        """Return a group with the target's states and these anchors."""
        texts, chosen = self.groups.texts, self.groups[group]
        lengths = texts.lengths[chosen]
        ids = torch.zeros(len(chosen), int(lengths.max()), dtype=torch.long)
        for row, index in enumerate(chosen):
            ids[row, : lengths[row]] = torch.from_numpy(texts[int(index)].astype(np.int64))
        ids = ids.to(self._device)
        states = self._states(group, ids, lengths)
        with torch.no_grad():
            final = self._target.norm(states[:, :, -1])  # the last layer is always the last one stored
        return TrainBatch(
            ids=ids,
            lengths=torch.from_numpy(lengths).to(self._device),
            hidden=states if self._order == [*range(len(self.layers))] else states[:, :, self._order],
            final=final,
            anchors=torch.from_numpy(anchors).to(self._device),
        )

    def flush(self) -> None:
        """Let cached states survive a crash of the machine."""
        if self.cache is not None:
            self.cache.flush()

    def _states(self, group: int, ids: Tensor, lengths: Int64) -> Tensor:
        """Return the outputs [B, T, L', D] of the stored layers; rows of padding are of no meaning."""
        cache = self.cache
        if cache is None or not cache.holds(group):
            return self._compute(ids)
        rows = np.arange(ids.shape[1]) < lengths[:, None]
        mask = torch.from_numpy(rows)
        if not cache.filled(group):
            cache.put(group, self._compute(ids)[mask.to(self._device)])
        found = torch.zeros(*ids.shape, len(self.layers), self._target.hidden_size, dtype=self._model.dtype)
        found[mask] = cache.get(group).to(found.dtype)  # rounded the first time too, so that all times are alike
        return found.to(self._device)

    def _compute(self, ids: Tensor) -> Tensor:
        found: dict[int, Tensor] = {}

        def taker(layer: int) -> Any:
            def take(output: Any) -> None:
                found[layer] = (output[0] if isinstance(output, tuple) else output).detach()

            return take

        views = {layer: tapped_layer(self._place.layers[layer], taker(layer)) for layer in self.layers}
        with torch.no_grad():
            view_model(self._model, self._place.path, views)(
                input_ids=ids, attention_mask=None, use_cache=False, return_dict=True, **self._options
            )
        return torch.stack([found[layer].to(ids.device) for layer in self.layers], dim=2)


def stored_layers(taps: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Return the decoder layers whose output is needed for taps and for the target's own distribution, ascending."""
    return tuple(sorted({tap % layers for tap in (*taps, LAST)}))
