"""The prompt of a sequence as the model reads it: token ids, padding, positions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.utils import ModelOutput

from speculant.core.engine import RequestedOutputs
from speculant.core.model_engine import MediaPrefix
from speculant.core.tree import Bool
from speculant.engines.hf.forward_pass import PassInput


class UnusualPromptError(Exception):
    """Drafts cannot follow a prompt with more than text; the message is the reason, phrased as part of a sentence."""


def slices_by_length() -> bool:
    """Return whether this transformers release is told how many of the ids a pass reads."""
    return "next_sequence_length" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters


def copy_encoded(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pass's inputs with a copy of the encoder's states, which some decoders (Moonshine's) modify in place."""
    encoded = inputs.get("encoder_outputs")
    if not isinstance(encoded, ModelOutput):
        return dict(inputs)
    copied = {name: each.clone() if isinstance(each, Tensor) else each for name, each in encoded.items()}
    return {**inputs, "encoder_outputs": type(encoded)(**copied)}


@dataclass(frozen=True, slots=True, eq=False)
class PromptPart:
    """Prompt tokens that a pass will read.

    Attributes:
        start, end: their range in the prompt.
        needs: requested outputs besides the last token's logits.
        hidden: hidden states of the previous parts.
    """

    start: int
    end: int
    needs: RequestedOutputs
    hidden: list[Tensor]

    def __len__(self) -> int:
        return self.end - self.start

    def with_states(self, hidden: Tensor | None) -> list[Tensor]:
        """Return the states of the parts so far and of this one, if requested."""
        return self.hidden if hidden is None or not self.needs.hidden_layers else [*self.hidden, hidden]


class Prompt:
    """A prompt of T tokens.

    Attributes:
        ids: Int64[1, T].
        seen: Bool[T], False at padding; None without padding.
        shift: cache slot minus position for all tokens after the prompt.
        whole: whether it must be read in one pass.
        joins: whether rows after it can share a pass with rows after other prompts of its kind.
        extra_inputs: whether passes after it read more than ids, a mask, and positions that continue the prompt's.
    """

    whole = False
    joins = True
    extra_inputs = False

    @property
    def media(self) -> MediaPrefix | None:
        """Set for a prompt with media that can reuse rows of the same media; otherwise None."""
        return None

    def __init__(self, ids: Tensor, *, padding: Tensor | None, positions: Tensor | None) -> None:
        """Determine where the positions of what follows start.

        Args:
            ids: Int64[1, T].
            padding: Int64[1, T], 0 at padding, or None.
            positions: Int64[1, T] or of the uncached part; None to count the unpadded tokens.
        """
        self.ids = ids
        self._padding = None if padding is None or bool(padding.all()) else padding
        self._positions = positions
        self.seen: Bool | None = None
        self.shift = 0
        if self._padding is not None:
            self.seen = self._padding[0].bool().cpu().numpy()
        if positions is not None:  # behind padding at the end of a prompt, transformers goes on from that padding's
            self.shift = len(self) - 1 - int(positions[0, -1])
        elif self.seen is not None:
            self.shift = int((~self.seen).sum())

    def __len__(self) -> int:
        return int(self.ids.shape[1])

    @property
    def plain(self) -> bool:
        """Whether it has no padding and its positions count its tokens."""
        if self._padding is not None or self._positions is None:
            return self._padding is None
        first, given = len(self) - self._positions.shape[1], self._positions[0]
        return bool((given == torch.arange(first, len(self), device=given.device)).all())

    def part(self, start: int, end: int) -> PassInput:
        """Return the input of a pass over some of its tokens, after all previous ones are cached."""
        padding = None if self._padding is None else self._padding[:, :end]
        return PassInput(self.ids[:, start:end], self._positions_of(start, end), padding)

    def following(self, ids: Tensor, positions: Tensor, mask: Any) -> PassInput:
        """Return the input of a pass over rows after the prompt.

        Args:
            ids, positions: Int64[1, n].
            mask: mask of the rows, in the model's form.
        """
        return PassInput(ids, positions, mask)

    def note_output(self, output: Any) -> None:
        """Record the model's output of a pass over the prompt."""

    def whole_cache(self, cache: Any) -> Any:
        """Return the cache in the model's own form, given the cache of the text's rows."""
        return cache

    def padding_mask(self, total: int) -> Tensor | None:
        """Return the 2-D mask of a pass in which every row attends to all previous ones; None without padding.

        Args:
            total: number of rows that the cache will have.
        """
        if self._padding is None:
            return None
        return torch.nn.functional.pad(self._padding, (0, total - len(self)), value=1)

    def _positions_of(self, start: int, end: int) -> Tensor:
        if self._positions is not None:
            offset = len(self) - self._positions.shape[1]
            return self._positions[:, start - offset : end - offset]
        if self._padding is not None:
            return (self._padding.long().cumsum(-1) - 1).clamp(min=0)[:, start:end]
        return torch.arange(start, end, device=self.ids.device)[None]


def join_states(parts: list[Tensor], needs: RequestedOutputs) -> Tensor | None:
    """Return the hidden states of a prompt that was read in parts, [T', L', D], or of its last token, [1, L', D]."""
    if not needs.hidden_layers:
        return None
    return torch.cat(parts) if needs.prompt else parts[-1][-1:]
