"""What `generate` prepared, as a request that any engine could have prepared."""

from __future__ import annotations

import torch

from models import tiny_model
from speculant.core.sampler import GREEDY, Sampling
from speculant.engines.hf.sampling.generate_capture import make_request, prepare_call
from speculant.engines.hf.sampling.sampler import plan_sampling

IDS = torch.tensor([[3, 4, 5]])


def test_lengths_and_ends_are_no_criteria() -> None:
    """The smaller of two limits holds, and only what must be asked after each token is left to ask."""
    given = [lambda *_: False]
    call = prepare_call(tiny_model("llama"), IDS, max_new_tokens=4, eos_token_id=[7, 9], stopping_criteria=given)
    call.criteria += [type(each)(5) for each in call.criteria if hasattr(each, "max_length")]
    request = make_request(call)
    assert (request.max_length, request.ends, request.criteria) == (5, {7, 9}, given)
    assert request.sampling == GREEDY


def test_settings_of_the_sampling() -> None:
    """Drafters that sample see what the processors apply."""
    options = {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9}
    request = make_request(prepare_call(tiny_model("llama"), IDS, max_new_tokens=4, **options))
    assert request.sampling == Sampling(temperature=0.7, top_k=5, top_p=0.9)
    assert len(request.processors) == 3


def test_sampling_without_warpers_samples() -> None:
    """A temperature of 1 needs no processor, and is no greedy decoding."""
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    request = make_request(prepare_call(tiny_model("llama"), IDS, max_new_tokens=4, **options))
    assert not request.processors
    assert plan_sampling(request, first=[], stop=[], tokenizer=None, generator=None).sample


def test_padding_is_part_of_the_request() -> None:
    """What is in front of a text reaches the engine, so that the cache is opened behind it."""
    mask = torch.tensor([[0, 1, 1]])
    request = make_request(prepare_call(tiny_model("llama"), IDS, max_new_tokens=4, attention_mask=mask))
    assert request.padding is not None
    assert request.padding.tolist() == mask.tolist()
