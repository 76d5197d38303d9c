"""What an encoder-decoder reads and begins with: the encoder's states of sources, and the decoder's first tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutput

from speculant.core.errors import UsageError
from speculant.drafters.heads.training.recipe import SourceStates
from speculant.training.texts import Int64, Texts


def decoder_start(model: Any) -> int | None:
    """Return the token with which a decoder's text begins; None if the model has no encoder that reads text.

    Raises:
        UsageError: its encoder reads something else, such as sound, or its configs name no such token.
    """
    if not getattr(model.config, "is_encoder_decoder", False):
        return None
    if model.main_input_name != "input_ids":
        raise UsageError(
            f"the encoder of {type(model).__name__} reads {model.main_input_name}; heads are trained on pairs of texts."
        )
    for config in (getattr(model, "generation_config", None), model.config):
        found = getattr(config, "decoder_start_token_id", None)
        if isinstance(found, int):
            return found
    raise UsageError(
        f"the configs of {type(model).__name__} name no decoder_start_token_id; set it in `model.generation_config`."
    )


def source_positions(model: Any) -> int | None:
    """Return the maximum tokens of a source; None for no limit."""
    config = model.get_encoder().config
    found = getattr(config, "max_position_embeddings", None)
    return None if found is None else int(found)


@torch.no_grad()
def encode_sources(model: Any, sources: Texts, chosen: Int64) -> SourceStates:
    """Return what the encoder of a model reads of some sources, padded on the right."""
    lengths = sources.lengths[chosen]
    ids = torch.zeros(len(chosen), int(lengths.max()), dtype=torch.long)
    for row, index in enumerate(chosen):
        ids[row, : lengths[row]] = torch.from_numpy(sources[int(index)].astype(np.int64))
    seen = torch.from_numpy(np.arange(ids.shape[1]) < lengths[:, None]).to(model.device)
    output = model.get_encoder()(input_ids=ids.to(model.device), attention_mask=seen.long(), return_dict=True)
    return SourceStates(output.last_hidden_state, seen)


def source_inputs(source: SourceStates) -> dict[str, Any]:
    """Return the inputs of a model's pass for what its encoder has read."""
    return {
        "encoder_outputs": BaseModelOutput(last_hidden_state=source.states),
        "attention_mask": source.seen.long(),
    }
