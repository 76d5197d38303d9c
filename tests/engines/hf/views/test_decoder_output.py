"""The way from an encoder-decoder's last decoder layer to its logits, and its embeddings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from encoder_decoders import SOURCE, build_encoder_decoder
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.views.model_view import find_layers
from speculant.engines.hf.views.target_parts import HFTargetParts

TEXT = torch.tensor([[2, 7, 30, 9]])


def run(model: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what the first decoder layer reads, the last one's output, and the logits, for a text behind a source."""
    found: dict[str, Any] = {}
    place = find_layers(model)
    assert place is not None

    def read(_module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        found["given"] = given[0] if given else options["hidden_states"]

    handles = [
        place.layers[0].register_forward_pre_hook(read, with_kwargs=True),
        place.layers[-1].register_forward_hook(lambda _module, _given, output: found.update(last=output)),
    ]
    with torch.no_grad():
        logits = model(input_ids=SOURCE, decoder_input_ids=TEXT).logits
    for handle in handles:
        handle.remove()
    last = found["last"]
    return found["given"], last[0] if isinstance(last, tuple) else last, logits


@pytest.mark.parametrize(
    "name",
    [
        "t5",
        "bart",
        "m2m_100",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mt5", "umt5", "marian", "mbart", "pegasus", "led")),
    ],
)
def test_parts_give_the_model_s_logits(name: str) -> None:
    """Guards scales, biases, norms and their absence, and embeddings that the class scales."""
    model = build_encoder_decoder(name, "" if name in ("mt5", "mbart", "pegasus", "led") else "eager")
    if name == "bart":
        model.final_logits_bias.normal_()
    parts = HFTargetParts(model)
    given, last, logits = run(model)
    with torch.no_grad():
        torch.testing.assert_close(parts.project(parts.norm(last)), logits, atol=1e-4, rtol=1e-4)
        some = torch.tensor([3, 8, 1])
        fewer = parts.with_output_rows(some)
        assert fewer is not None
        torch.testing.assert_close(fewer.project(parts.norm(last)), logits[..., some], atol=1e-4, rtol=1e-4)
        if name == "t5":
            torch.testing.assert_close(parts.embed(TEXT), given)
    assert (parts.layers, parts.hidden_size, parts.source_size, parts.vocabulary) == (2, 32, 32, 128)
    assert parts.positions == (None if name in ("t5", "mt5", "umt5", "led") else 200)


def test_a_decoder_of_other_depth_than_its_encoder() -> None:
    """Guards the list of layers: the decoder's, whatever the encoder has."""
    parts = HFTargetParts(build_encoder_decoder("t5", "eager", num_layers=1, num_decoder_layers=3))
    assert parts.layers == 3


def test_embeddings_are_scaled_as_by_the_decoder() -> None:
    """Guards Marian, whose decoder multiplies the embeddings by itself."""
    model = build_encoder_decoder("marian", scale_embedding=True)
    with torch.no_grad():
        torch.testing.assert_close(HFTargetParts(model).embed(TEXT), model.get_input_embeddings()(TEXT) * 32**0.5)


def test_unknown_ways_to_the_logits_are_refused() -> None:
    """Guards heads against a projection that is not the model's: the message says what works instead."""
    model = build_encoder_decoder("bart")
    kind = type(model)

    class Doubled(kind):  # type: ignore[valid-type,misc]
        def forward(self, **given: Any) -> Any:
            output = super().forward(**given)
            output.logits = 2 * output.logits
            return output

    model.__class__ = Doubled
    with pytest.raises(UnsupportedError, match=r"cannot be found: the known ways .* 'mix'"):
        HFTargetParts(model)


def test_decoders_that_need_more_of_their_encoder_are_refused() -> None:
    """Guards Switch, whose loss reads what the encoder's routers chose: the message says what works instead."""
    with pytest.raises(UnsupportedError, match=r"on states of its encoder alone.* 'mix'"):
        HFTargetParts(build_encoder_decoder("switch", ""))
