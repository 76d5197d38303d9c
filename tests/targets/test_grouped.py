"""Attention without copies of keys and values: it is transformers' own, and only for the length of a pass."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from models import tiny_model
from speculant.targets.fast import prepare_model
from speculant.targets.grouped import attend, grouped_attention


def given(heads: int, groups: int, rows: int, *, masked: bool = True) -> dict[str, Any]:
    """Return what transformers hands to an attention: 9 cached positions and so many rows."""
    torch.manual_seed(heads)
    query, length = torch.randn(1, heads, rows, 8), 9 + rows
    key, value = torch.randn(2, 1, heads // groups, length, 8)
    mask = (torch.rand(1, 1, rows, length) < 0.7) if masked else None
    if mask is not None:
        mask[..., 0] = True
    return {
        "module": SimpleNamespace(num_key_value_groups=groups, is_causal=True),
        "query": query,
        "key": key,
        "value": value,
        "attention_mask": mask,
        "scaling": 0.3,
    }


def output(answer: tuple[Tensor, Any]) -> Tensor:
    assert answer[1] is None
    return answer[0]


@pytest.mark.parametrize(("heads", "groups"), [(4, 1), (4, 2), (6, 6), (14, 7)])
@pytest.mark.parametrize("rows", [1, 3, 8, 33])
@pytest.mark.parametrize("additive", [False, True])
def test_it_is_the_attention_of_transformers(heads: int, groups: int, rows: int, additive: bool) -> None:
    """Guards which queries see which keys, under masks of both kinds."""
    inputs = given(heads, groups, rows)
    if additive:
        inputs["attention_mask"] = torch.zeros(inputs["attention_mask"].shape).masked_fill(
            ~inputs["attention_mask"], torch.finfo(torch.float32).min
        )
    expected, found = output(sdpa_attention_forward(**inputs)), output(attend(**inputs))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert found.is_contiguous()


@pytest.mark.parametrize("case", ["few rows", "no mask", "dropout", "bias"])
def test_other_calls_are_those_of_transformers(case: str) -> None:
    """Guards, to the last bit, plain decoding, prefill and what only transformers' own function knows."""
    inputs = given(4, 2, 2 if case == "few rows" else 5, masked=case != "no mask")
    if case == "dropout":
        inputs["dropout"] = 0.5
    if case == "bias":
        inputs["position_bias"] = torch.randn(1, 4, 5, 14)
        if "position_bias" not in sdpa_attention_forward.__code__.co_varnames:
            pytest.skip("this transformers knows no position bias")
    torch.manual_seed(1)
    expected = output(sdpa_attention_forward(**inputs))
    torch.manual_seed(1)
    assert torch.equal(output(attend(**inputs)), expected)


def test_transformers_is_left_as_it_was() -> None:
    """Guards other models of the process: after a pass, one that failed, and one that ended inside another."""
    with contextlib.suppress(ValueError), grouped_attention():
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is attend
        with grouped_attention():
            assert ALL_ATTENTION_FUNCTIONS["sdpa"] is attend
        raise ValueError
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    assert "sdpa" not in ALL_ATTENTION_FUNCTIONS._local_mapping


def test_a_function_of_the_users_stays() -> None:
    """Guards an attention that the user has put in the place of transformers'."""
    own = lambda *_, **__: None  # noqa: E731
    ALL_ATTENTION_FUNCTIONS["sdpa"] = own
    try:
        with grouped_attention():
            assert ALL_ATTENTION_FUNCTIONS["sdpa"] is own
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is own
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]


def test_plain_passes_leave_it_alone() -> None:
    """Guards models that are not prepared: nothing of the process changes for them."""
    with prepare_model(tiny_model("llama"), False).active(64):
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
