"""The encoder of a draft model that is an encoder-decoder, next to a target that is one.

Distilled draft models often keep their teacher's encoder, as distil-whisper does (Gandhi et al. 2023, arXiv
2311.00430): they read the states that the target has computed. Other draft models run their own encoder, once for each
input: Whisper's fallback to higher temperatures decodes one window several times.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.drafter import EncoderSource
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.encoded import unpad_states

INPUT_SIZES = {"num_mel_bins": "mel bins", "max_source_positions": "positions of the encoder"}


class DraftEncoder:
    """Provides the encoder's states of a draft model, on its device.

    Attributes:
        shared: whether they are the target's, since both encoders have the same weights.
    """

    def __init__(self, target: Any, draft: Any) -> None:
        """Compare the encoders of two encoder-decoders of transformers.

        Raises:
            UnsupportedError: the draft model's own encoder cannot read what the target's reads.
        """
        self._model, self._encoder = draft, draft.get_encoder()
        self.shared = same_weights(target.get_encoder(), self._encoder)
        names = target.main_input_name, draft.main_input_name
        if not self.shared and names[0] != names[1]:
            raise UnsupportedError(
                f"the target's encoder reads {names[0]} and the draft model's {names[1]}. Use a smaller model of the "
                "target's family."
            )
        self._read: tuple[Tensor, Tensor] | None = None  # the input that was read last, and its states

    def states(self, source: EncoderSource) -> Tensor:
        """Return the states [1, S, D] of what the target's encoder has read.

        Raises:
            UnsupportedError: the draft model's own encoder is needed, but not known what it should read.
        """
        device, dtype = self._model.device, self._model.dtype
        if self.shared:
            found: Tensor = source.states.to(device, dtype)
            return found
        name = self._model.main_input_name
        if source.inputs is None or (given := source.inputs.get(name)) is None:
            raise UnsupportedError(
                f"the draft model's encoder has other weights than the target's, so it needs `{name}`, which "
                "`generate` does not pass on. Use custom_generate=speculator.bind(source=inputs), "
                "`Speculator.generate`, or for speech `transcribe`."
            )
        read = self._read  # other threads may replace it meanwhile
        if read is None or not _equal(read[0], given):
            read = self._read = given, self._run(source.inputs)
        return read[1]

    @torch.no_grad()
    def _run(self, given: Mapping[str, Any]) -> Tensor:
        known, found = inspect.signature(self._encoder.forward).parameters, dict[str, Any]()
        for name, value in given.items():
            if name in known and isinstance(value, Tensor):
                floating = value.is_floating_point()
                found[name] = value.to(self._model.device, self._model.dtype if floating else None)
        positions = getattr(self._model.config, "max_position_embeddings", None)
        if positions is not None:  # what a smaller table has no position for is not read
            found = {name: value[:, :positions] if value.ndim == 2 else value for name, value in found.items()}
        return unpad_states(self._encoder(**found, return_dict=True), found.get("attention_mask"))


def same_weights(target: nn.Module, draft: nn.Module) -> bool:
    """Return whether two encoders are of one class and have the same weights, in the draft model's dtype."""
    if type(target) is not type(draft):
        return False
    ours, theirs = target.state_dict(), draft.state_dict()
    shapes = [{name: each.shape for name, each in weights.items()} for weights in (ours, theirs)]
    return shapes[0] == shapes[1] and all(_equal(each, ours[name].to(each)) for name, each in theirs.items())


def has_encoder(draft: Any, target: Any) -> bool:
    """Return whether a draft model is an encoder-decoder, given its config and its target's (None if not known).

    Raises:
        UnsupportedError: it is one, and the target is not, or their encoders read inputs of different sizes.
    """
    if not getattr(draft, "is_encoder_decoder", False):
        return False
    if not getattr(target, "is_encoder_decoder", False):
        raise UnsupportedError(
            f"the draft model is an encoder-decoder ({draft.model_type}), but its target has no encoder. Use a smaller "
            "model of the target's family."
        )
    for name, title in INPUT_SIZES.items():
        sizes = [getattr(config, name, None) or "no" for config in (target, draft)]
        if sizes[0] != sizes[1]:
            raise UnsupportedError(
                f"the target's encoder has {sizes[0]} {title} and the draft model's {sizes[1]}, so they cannot read "
                "the same input. Use a draft model that was distilled from the target, or one with the same input."
            )
    return True


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one, other.to(one.device)))
