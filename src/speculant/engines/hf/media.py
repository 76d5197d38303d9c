"""Prompts with images, sound or video: the model's own methods prepare their pass, and drafts follow as behind text.

`generate` computes positions (on several axes where a family has them), types of tokens and what the media are, and the
prompt's pass reads the media once. What follows is text: its rows are given positions, on the axes on which the model's
own methods place the next token, and nothing else. Whether that is all a model reads there, a check finds out
(`probe/first_prompt.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from speculant.engines.hf.forward_pass import PassInput
from speculant.engines.hf.prompt import Prompt, UnusualPromptError, slices_by_length
from speculant.engines.hf.sampling.generate_capture import HANDLED, Call

_OWN = {*HANDLED, "input_ids", "return_dict"}  # inputs that a pass is given anyway, or in another form


class MediaPrompt(Prompt):
    """A prompt that the model's own methods prepare, in one pass."""

    whole = True

    def __init__(self, call: Call) -> None:
        """Prepare the prompt's pass, and find out what the passes behind it read.

        Args:
            call: what `generate` prepared, of one row.

        Raises:
            UnusualPromptError: drafts cannot follow it.
        """
        front = torch.zeros(1, _rows_in_front(call), dtype=call.ids.dtype, device=call.ids.device)
        super().__init__(torch.cat([front, call.ids], dim=1), padding=None, positions=None)
        if not slices_by_length():
            raise UnusualPromptError("this release of transformers prepares passes behind media in another way")
        inputs, model = dict(call.inputs), call.model
        if inputs.get("inputs_embeds") is not None:
            raise UnusualPromptError("the prompt is given as embeddings")
        count = call.ids.shape[1]
        first = model.prepare_inputs_for_generation(
            call.ids, next_sequence_length=count, is_first_iteration=True, **inputs
        )
        inputs = model._update_model_kwargs_for_generation({}, inputs, is_encoder_decoder=False)
        longer = torch.cat([call.ids, call.ids[:, -1:]], dim=1)
        following = model.prepare_inputs_for_generation(longer, next_sequence_length=1, **inputs)
        positions, position = first.get("position_ids"), following.get("position_ids")
        if positions is None:
            positions = torch.arange(count, device=call.ids.device)[None]
        self._pass = PassInput(first["input_ids"], positions, first.get("attention_mask"), _others(first))
        self._axes: Tensor | None = None
        if position is not None:
            by_axis = position[..., -1].flatten()
            self.shift = len(self) - int(by_axis[0])
            self._axes = by_axis - by_axis[0] if position.ndim > 2 else None

    @property
    def plain(self) -> bool:
        """Its rows are not those of a text with the same tokens."""
        return False

    def part(self, start: int, end: int) -> PassInput:
        """Return what the pass over the prompt reads; it is not read in parts."""
        assert (start, end) == (0, len(self))
        return self._pass

    def following(self, ids: Tensor, positions: Tensor, mask: Any) -> PassInput:
        """Return what a pass over rows behind the prompt reads, with positions [A, 1, n] where there are A axes."""
        if self._axes is not None:
            positions = positions[None] + self._axes[:, None, None]
        return PassInput(ids, positions, mask)


def _rows_in_front(call: Call) -> int:
    """Return how many rows the cache gets of images that no ids stand for, in front of the text, as GIT's does."""
    if call.inputs.get("pixel_values") is None:
        return 0
    counts = (getattr(module, "image_patch_tokens", 0) for module in call.model.modules())
    return next((count for count in counts if count), 0)


def _others(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that a pass over text has not."""
    return {name: value for name, value in inputs.items() if name not in _OWN and value is not None}
