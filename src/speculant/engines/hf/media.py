"""Prompts with images, audio or video: the model's own methods prepare their pass, and drafts follow as after text.

`generate` computes positions (on several axes for some families), token types and media inputs, and the prompt's pass
reads the media once. Everything after it is text: its rows get positions on the axes on which the model's own methods
place the next token. Most classes need nothing else there. Those with cross-attention to an image do, such as its
states and the tiles that a row sees: these inputs are obtained from the model's own methods, for one row and for two,
which shows what is specific to each row. A check verifies that this is sufficient (`probe/first_prompt.py`). If the
text after the media only needs positions too, a prompt can reuse the rows of another prompt with the same media, and
its pass reads only the text after them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from speculant.core.model_engine import MediaPrefix
from speculant.engines.hf.forward_pass import EMBEDDED, PassInput
from speculant.engines.hf.prompt import Prompt, UnusualPromptError, slices_by_length
from speculant.engines.hf.sampling.generate_capture import HANDLED, GenerateCall

_OWN = {*HANDLED, "input_ids", "return_dict"}  # inputs that a pass gets anyway, or in another form
_OF_PROMPTS = {  # those that describe a prompt's mask, or padding in media
    *("token_type_ids", "mm_token_type_ids", "feature_attention_mask", "interpolate_pos_encoding"),
}
KINDS = ("image", "audio", "video")


def media_tokens(config: Any) -> dict[str, tuple[int, ...]]:
    """Return, by kind, the ids of the tokens that represent media in a model's prompts."""
    found = {kind: [getattr(config, f"{kind}_token_{suffix}", None) for suffix in ("id", "index")] for kind in KINDS}
    known = {kind: tuple({each for each in ids if each is not None}) for kind, ids in found.items()}
    return {kind: ids for kind, ids in known.items() if ids}


class MediaPrompt(Prompt):
    """A prompt prepared by the model's own methods, read in one pass."""

    whole = True

    def __init__(self, call: GenerateCall, *, splits: Callable[[int], bool] = lambda _: False) -> None:
        """Prepare the prompt's pass, and determine the inputs of the passes after it.

        Args:
            call: a call of one row, prepared by `generate`.
            splits: returns whether rows after a number of first ones, including media, may be read separately.

        Raises:
            UnusualPromptError: drafts cannot follow it.
        """
        front = torch.zeros(1, _rows_in_front(call), dtype=call.ids.dtype, device=call.ids.device)
        super().__init__(torch.cat([front, call.ids], dim=1), padding=None, positions=None)
        if not slices_by_length():
            raise UnusualPromptError("this release of transformers prepares passes behind media in another way")
        inputs, model = dict(call.inputs), call.model
        count, embedded = call.ids.shape[1], inputs.get(EMBEDDED)
        if embedded is not None and embedded.shape[1] != count:
            raise UnusualPromptError("the prompt is given as embeddings, without its tokens")
        first = model.prepare_inputs_for_generation(
            call.ids, next_sequence_length=count, is_first_iteration=True, **inputs
        )
        following = _prepared_behind(call, _NoOutput(), 1)
        positions, position = first.get("position_ids"), following.get("position_ids")
        if positions is None:
            positions = torch.arange(count, device=call.ids.device)[None]
        self._cross = DynamicCache() if "encoder_hidden_states" in inputs else None
        self._pass = PassInput(call.ids, positions, first.get("attention_mask"), _others(first), self._cross)
        self._places, self._splits = [*chain(*media_tokens(model.config).values())], splits
        self._call, self._others = call, dict[str, Any]()
        self._own = tuple[str, ...]()  # names of other inputs that are specific to each row
        crossing = getattr(model.config.get_text_config(decoder=True), "cross_attention_layers", None)
        self.joins = not crossing and not _others(following).keys() - _OF_PROMPTS
        self._axes: Tensor | None = None
        if position is not None:
            by_axis = position[..., -1].flatten()
            self.shift = len(self) - int(by_axis[0])
            self._axes = by_axis - by_axis[0] if position.ndim > 2 else None
        self.extra_inputs = not self.joins or self._axes is not None

    @property
    def plain(self) -> bool:
        """False: its rows differ from those of a text with the same tokens."""
        return False

    @cached_property
    def media(self) -> MediaPrefix | None:
        tokens = self.ids[0].to(torch.int32).cpu().numpy().astype(np.int32)
        standing, digest = np.flatnonzero(np.isin(tokens, self._places)), self._digest()
        if not len(standing) or not digest or not self.joins:
            return None
        end = int(standing[-1]) + 1
        return MediaPrefix(tokens, digest, end) if end < len(self) and self._splits(end) else None

    def part(self, start: int, end: int) -> PassInput:
        """Return the input of the pass over the prompt: all of it, or the part after its media."""
        if start == 0:
            return self._pass
        return PassInput(self.ids[:, start:end], self._pass.positions[..., start:end], None)

    def note_output(self, output: Any) -> None:
        """Determine the inputs of rows after the prompt, given the states of its media."""
        if self.joins:
            return
        one, two = ({**_others(_prepared_behind(self._call, output, rows))} for rows in (1, 2))
        self._others = {name: value for name, value in one.items() if name not in _OF_PROMPTS}
        shapes = {name: getattr(value, "shape", ()) for name, value in self._others.items()}
        self._own = tuple(name for name, shape in shapes.items() if shape != getattr(two.get(name), "shape", ()))
        wrong = [name for name in self._own if shapes[name][1:2] != (1,) or two[name].shape[1] != 2]
        if wrong:
            raise UnusualPromptError(f"every token behind such a prompt reads a further piece of {' and '.join(wrong)}")

    def whole_cache(self, cache: DynamicCache) -> Any:
        """Return the text's rows, with those of an image that the class keeps separately."""
        return cache if self._cross is None else EncoderDecoderCache(cache, self._cross)

    def following(self, ids: Tensor, positions: Tensor, mask: Any) -> PassInput:
        """Return the input of a pass over rows after the prompt; positions are [A, 1, n] with A axes."""
        if self._axes is not None:
            positions = positions[None] + self._axes[:, None, None]
        others = dict(self._others)
        for name in self._own:
            others[name] = others[name].expand(-1, ids.shape[1], *others[name].shape[2:])
        return PassInput(ids, positions, mask, others, self._cross)

    def _digest(self) -> str:
        """Return a digest of all inputs except token types; "" if one cannot be compared."""
        found = hashlib.sha256()
        for name, value in sorted(self._pass.others.items()):
            if isinstance(value, Tensor) and value.shape == self.ids.shape and not value.is_floating_point():
                continue
            found.update(name.encode())
            if not _add_value(found, value):
                return ""
        return found.hexdigest()


class _NoOutput(dict[str, Any]):
    """A placeholder for the output of a pass that has not run: it has no values."""

    def __getattr__(self, name: str) -> None:
        return None


def _prepared_behind(call: GenerateCall, output: Any, rows: int) -> dict[str, Any]:
    """Return the inputs that the model's own methods prepare for rows after a prompt, given its pass's output."""
    model, ids = call.model, call.ids
    inputs = model._update_model_kwargs_for_generation(output, dict(call.inputs), is_encoder_decoder=False)
    longer = torch.cat([ids, ids[:, -1:].expand(-1, rows)], dim=1)
    found: dict[str, Any] = model.prepare_inputs_for_generation(longer, next_sequence_length=rows, **inputs)
    return found


def _add_value(digest: Any, value: Any) -> bool:
    """Add an input to a digest: arrays, a vision tower's output, plain values; return False for any other."""
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype} {[*value.shape]}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return True
    if isinstance(value, Mapping):
        digest.update(f"{len(value)} {[*value]}".encode())
        return all(_add_value(digest, each) for each in value.values())
    if isinstance(value, list | tuple):
        digest.update(f"{len(value)}".encode())
        return all(_add_value(digest, each) for each in value)
    digest.update(repr(value).encode())
    return value is None or isinstance(value, bool | int | float | str)


def _rows_in_front(call: GenerateCall) -> int:
    """Return the number of cache rows for images without ids, in front of the text, as in GIT."""
    if call.inputs.get("pixel_values") is None:
        return 0
    counts = (getattr(module, "image_patch_tokens", 0) for module in call.model.modules())
    return next((count for count in counts if count), 0)


def _others(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that a pass over text does not have."""
    return {name: value for name, value in inputs.items() if name not in _OWN and value is not None}
