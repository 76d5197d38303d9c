"""The prompt of an encoder-decoder: the decoder's first tokens, together with the encoder's states of a source.

The cross-attention reads the source once, in the pass over the text's first tokens. Its keys and values belong to the
prompt and never change, so only rows of the decoder's self-attention are kept or dropped with drafts.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from speculant.core.drafter import EncoderSource
from speculant.engines.hf.forward_pass import PassInput
from speculant.engines.hf.prompt import Prompt, UnusualPromptError, copy_encoded, slices_by_length
from speculant.engines.hf.sampling.generate_capture import GenerateCall

_DECODERS = ("decoder_input_ids", "decoder_attention_mask", "decoder_position_ids")
_OWN = {*_DECODERS, "past_key_values", "use_cache", "return_dict", "logits_to_keep", "cache_position"}


class EncodedPrompt(Prompt):
    """The first tokens of a decoder, with the encoder's states in every pass."""

    whole = True
    extra_inputs = True

    def __init__(self, call: GenerateCall) -> None:
        """Take a call of one row prepared by `generate`.

        Raises:
            UnusualPromptError: drafts cannot follow it.
        """
        super().__init__(call.ids, padding=None, positions=None)
        if call.inputs.get("decoder_inputs_embeds") is not None:
            raise UnusualPromptError("the decoder's first tokens are given as embeddings")
        sliced = {"next_sequence_length": len(self)} if slices_by_length() else {}
        model = call.model
        inputs = model.prepare_inputs_for_generation(call.ids, is_first_iteration=True, **sliced, **call.inputs)
        self._first = {name: value for name, value in inputs.items() if name not in _OWN and value is not None}
        _cut_padding(self._first)
        self._others = copy_encoded(self._first)
        self._cross, mask = DynamicCache(), self._others.get("attention_mask")
        reads_mask = "encoder_attention_mask" in inspect.signature(model.get_decoder().forward).parameters
        self.joins = mask is None or not reads_mask or bool(mask.all())  # passes over several sequences have none

    @property
    def plain(self) -> bool:
        """False: its rows differ from those of another source's text with the same tokens."""
        return False

    def part(self, start: int, end: int) -> PassInput:
        """Return the input of the pass over the first tokens."""
        positions = torch.arange(start, end, device=self.ids.device)[None]
        return PassInput(self.ids[:, start:end], positions, None, copy_encoded(self._first), self._cross)

    def whole_cache(self, cache: DynamicCache) -> EncoderDecoderCache:
        """Return the decoder's rows together with the source's, as the class passes them."""
        return EncoderDecoderCache(cache, self._cross)

    def following(self, ids: Tensor, positions: Tensor, mask: Any) -> PassInput:
        """Return the input of any pass: rows of the decoder, and the source."""
        return PassInput(ids, positions, mask, self._others, self._cross)


def find_source(call: GenerateCall) -> EncoderSource | None:
    """Return what the target's encoder has read, for draft models; None if the model has no encoder."""
    states = call.inputs.get("encoder_outputs")
    if states is None:
        return None
    prompt = call.ids[0].to(torch.int32).cpu().numpy().astype(np.int32)
    return EncoderSource(
        prompt=prompt, states=unpad_states(states, call.inputs.get("attention_mask")), inputs=call.source
    )


def encoded_call(model: Any, ids: Tensor, states: Tensor) -> GenerateCall:
    """Return the call of a decoder's first tokens Int64[1, T] that follow an encoder's states [1, S, D]."""
    call, outputs = GenerateCall(), BaseModelOutput(last_hidden_state=states)
    call(model, ids, [], [], model.generation_config, encoder_outputs=outputs, use_cache=True)
    return call


def unpad_states(outputs: Mapping[str, Any], mask: Tensor | None) -> Tensor:
    """Return an encoder's states [1, S, D], given its output, without those of padding by a mask of its input."""
    inputs = {"encoder_outputs": outputs, "attention_mask": mask}
    _cut_padding(inputs)
    states: Tensor = inputs["encoder_outputs"][0]  # type: ignore[index]
    return states


def _cut_padding(inputs: dict[str, Any]) -> None:
    """Drop the encoder's states of padding, which no row attends to, so that no pass needs a mask of the source."""
    outputs, mask = inputs.get("encoder_outputs"), inputs.get("attention_mask")
    if outputs is None or mask is None or mask.shape != outputs[0].shape[:2] or bool(mask.all()):
        return
    kept = mask[0].bool()
    inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=outputs[0][:, kept])
    inputs["attention_mask"] = mask[:, kept]
