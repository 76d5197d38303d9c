"""What an encoder-decoder does between its last decoder layer and its logits, found by a pass over one token.

Families differ and no config tells all of it: BART and Marian have no final norm, T5 scales the normalised states if
its embeddings are tied, BART adds a bias to the logits. So the ways that occur are compared with the model's own
logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.views.model_view import LayerList, decoder_config, tap_layer, view_model

_NEAR = 0.05  # maximum relative distance of logits, in the model's dtype


@dataclass(frozen=True, slots=True, eq=False)
class DecoderOutput:
    """The way from the last layer's output h to the logits: projection(norm(h)) * factor + bias.

    Attributes:
        norm: the final norm, or the identity.
        factor: factor of the projection.
        bias: the model's buffer [1, V], or None.
    """

    norm: nn.Module
    factor: float
    bias: Tensor | None


@torch.no_grad()
def find_decoder_output(model: Any, place: LayerList) -> DecoderOutput:
    """Return the way that gives the logits of an encoder-decoder.

    Args:
        model: the model.
        place: its decoder layers.

    Raises:
        UnsupportedError: none of the known ways does, or the decoder cannot be run without its encoder.
    """
    name, output = type(model).__name__, model.get_output_embeddings()
    try:
        states, logits = _run(model, place)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedError(
            f"the decoder of {name} cannot be run on states of its encoder alone, as heads need it: {error}. Use a "
            "method without a head, such as 'mix', or a draft model."
        ) from error
    for each in _candidates(model, place, int(states.shape[-1])):
        found = output(each.norm(states).to(output.weight.dtype)) * each.factor
        found = found if each.bias is None else found + each.bias
        if float((found.float() - logits.float()).norm()) <= _NEAR * float(logits.float().norm()):
            return each
    raise UnsupportedError(
        f"the final norm and output projection of {name} cannot be found: the known ways do not give its logits. Use a "
        "method without a head, such as 'mix', or a draft model."
    )


def _candidates(model: Any, place: LayerList, size: int) -> Iterator[DecoderOutput]:
    above = model
    for name in place.path[:-1]:
        above = getattr(above, name)
    norms = [each for name, each in above.named_children() if "norm" in name and "embed" not in name]
    for norm in (*norms, nn.Identity()):
        for factor in (1.0, size**-0.5):
            yield DecoderOutput(norm, factor, getattr(model, "final_logits_bias", None))


def _run(model: Any, place: LayerList) -> tuple[Tensor, Tensor]:
    """Return the last layer's output [1, 1, D] at one token behind an arbitrary source, and its logits [1, 1, V]."""
    found, last = list[Tensor](), len(place) - 1
    view = tap_layer(
        place.layers[last], lambda output: found.append(output[0] if isinstance(output, tuple) else output)
    )
    source = torch.linspace(-1, 1, source_size(model), dtype=model.dtype, device=model.device)
    output = view_model(model, place.path, {last: view})(
        encoder_outputs=BaseModelOutput(last_hidden_state=source[None, None]),
        decoder_input_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device),
        use_cache=False,
        return_dict=True,
    )
    return found[0], output.logits


def source_size(model: Any) -> int:
    """Return the size of the encoder's states that a decoder reads."""
    config = model.get_encoder().config
    return int(getattr(config, "d_model", None) or config.hidden_size)


def decoder_embeddings(model: Any) -> tuple[nn.Module, float]:
    """Return a decoder's token embeddings, and the factor that the decoder applies to their output."""
    decoder = model.get_decoder()
    return decoder.get_input_embeddings(), float(getattr(decoder, "embed_scale", None) or 1.0)


def decoder_positions(model: Any) -> int | None:
    """Return the maximum positions of a decoder; None for no limit."""
    config = decoder_config(model)
    sizes = (getattr(config, name, None) for name in ("max_target_positions", "max_position_embeddings"))
    return next((int(size) for size in sizes if size), None)
