"""Attention that reads keys and values once: the same as transformers' own, and only for the length of a pass."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from speculant.engines.hf.cpu.gqa import MAX_QUERIES, NAME, GQAttention, is_plain_sdpa


@pytest.fixture
def attend(compiled: ctypes.CDLL) -> Iterator[GQAttention]:
    """Return the function, where no gradients are wanted."""
    with torch.inference_mode():
        yield GQAttention(compiled)


def given(
    heads: int, groups: int, rows: int, *, cached: int = 9, head: int = 8, batch: int = 1, masked: bool = True
) -> dict[str, Any]:
    """Return what transformers hands to an attention: so many rows behind the cached ones, in a buffer with room."""
    torch.manual_seed(heads)
    query, length = torch.randn(batch, rows, heads, head).transpose(1, 2), cached + rows
    key, value = torch.randn(2, batch, heads // groups, length + 5, head)[..., :length, :]
    mask = (torch.rand(batch, 1, rows, length) < 0.7) if masked else None
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
def test_it_is_the_attention_of_transformers(
    attend: GQAttention, heads: int, groups: int, rows: int, additive: bool
) -> None:
    """Guards which queries see which keys, under masks of both kinds."""
    inputs = given(heads, groups, rows)
    if additive:
        inputs["attention_mask"] = torch.zeros(inputs["attention_mask"].shape).masked_fill(
            ~inputs["attention_mask"], torch.finfo(torch.float32).min
        )
    expected, found = output(sdpa_attention_forward(**inputs)), output(attend(**inputs))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert found.is_contiguous()


@pytest.mark.parametrize("cached", [0, 55, 56, 57, 120, 700])
@pytest.mark.parametrize("head", [8, 24, 64])
def test_blocks_of_keys_come_out_even_or_not(attend: GQAttention, cached: int, head: int) -> None:
    """Guards the edges of blocks, sequences of a batch with masks of their own, and scores that grow on the way."""
    inputs = given(6, 3, 7, cached=cached, head=head, batch=2)
    inputs["key"] *= torch.linspace(0.1, 9, cached + 7)[:, None]
    double = {name: inputs[name].double() for name in ("query", "key", "value")}
    exact = output(sdpa_attention_forward(**inputs | double))
    torchs = (output(sdpa_attention_forward(**inputs)) - exact).abs().mean()
    assert (output(attend(**inputs)) - exact).abs().mean() <= 2 * torchs


@pytest.mark.parametrize("cached", [3, 57, 300])
def test_bfloat16_is_rounded_once(attend: GQAttention, cached: int) -> None:
    """Guards keys, values and answers in bfloat16: what floats of the same numbers give, rounded as torch rounds."""
    inputs = given(6, 3, 7, cached=cached, head=24, batch=2)
    narrow = {name: inputs[name].bfloat16() for name in ("query", "key", "value")}
    exact = output(attend(**inputs | {name: held.float() for name, held in narrow.items()}))
    assert torch.equal(output(attend(**inputs | narrow)), exact.bfloat16())


def test_numbers_halfway_between_two_are_rounded_to_even(attend: GQAttention) -> None:
    """Guards ties, infinity and what is no number, against torch's own rounding."""
    inputs = given(4, 2, 1, cached=1, masked=False)
    key = torch.zeros(1, 2, 2, 8, dtype=torch.bfloat16)
    low = torch.tensor([1.0, 1.0078125, -1.0, 3.0, float("inf"), float("nan"), 3.3e38, 0.0])
    step = torch.tensor([0.0078125, 0.0078125, -0.0078125, 0.015625, 0, 0, 0, 1e-40])
    value = torch.stack((low, low + step)).bfloat16().expand(1, 2, 2, 8).contiguous()
    found = output(attend(**inputs | {"query": torch.ones(1, 4, 1, 8).bfloat16(), "key": key, "value": value}))
    expected = ((value[0, 0, 0].float() + value[0, 0, 1].float() * 1.0) * 0.5).bfloat16()
    torch.testing.assert_close(found, expected.expand(1, 1, 4, 8), atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_those_beside_it(attend: GQAttention, dtype: torch.dtype) -> None:
    """Guards that a draft changes nothing, to the last bit, of the logits of the other rows."""
    inputs = given(14, 7, 20, cached=300)
    inputs |= {name: inputs[name].to(dtype) for name in ("query", "key", "value")}
    whole = output(attend(**inputs))
    for rows in (1, 2, 5, 19):
        fewer = {"query": inputs["query"][:, :, :rows], "attention_mask": inputs["attention_mask"][:, :, :rows]}
        assert torch.equal(output(attend(**inputs | fewer)), whole[:, :rows])


def test_one_row_sees_everything_without_a_mask(attend: GQAttention) -> None:
    """Guards plain decoding."""
    inputs = given(14, 7, 1, cached=300, masked=False)
    torch.testing.assert_close(output(attend(**inputs)), output(sdpa_attention_forward(**inputs)))


def test_a_row_that_sees_nothing_is_zero(attend: GQAttention) -> None:
    """Guards padding: no division by nothing."""
    inputs = given(4, 2, 5)
    inputs["attention_mask"][:, :, 3] = False
    found = output(attend(**inputs))
    assert not found[:, 3].any()
    assert found.isfinite().all()


@pytest.mark.parametrize("case", ["many rows", "halves", "odd head", "keys apart", "shared keys"])
def test_what_the_code_cannot_do_is_done_by_torch(attend: GQAttention, case: str) -> None:
    """Guards, to the last bit, calls that must not reach the compiled code."""
    inputs = given(4, 2, MAX_QUERIES if case == "many rows" else 5, head=9 if case == "odd head" else 8)
    if case == "halves":
        inputs |= {name: inputs[name].half() for name in ("query", "key", "value")}
    if case == "keys apart":
        inputs |= {name: inputs[name].mT.contiguous().mT for name in ("key", "value")}
    if case == "shared keys":
        inputs["query"] = inputs["query"].expand(2, -1, -1, -1)
    tensors = [inputs[name] for name in ("query", "key", "value", "attention_mask")]
    expected = F.scaled_dot_product_attention(*tensors, scale=0.3, enable_gqa=True).transpose(1, 2)
    assert torch.equal(output(attend(**inputs)), expected)


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_exact_for_any_number_and_place(compiled: ctypes.CDLL, heads: int, dtype: torch.dtype) -> None:
    """Guards models whose next product rounds: neither other rows, nor unseen keys between a row's own, move a bit."""
    attend = GQAttention(compiled, exact=True)
    torch.manual_seed(heads)
    query, (key, value) = torch.randn(1, heads, 100, 16).to(dtype), torch.randn(2, 1, 2, 100, 16).to(dtype)
    module = SimpleNamespace(num_key_value_groups=heads // 2, is_causal=True)
    with torch.inference_mode():
        whole = output(attend(module, query, key, value, None))
        exact = output(sdpa_attention_forward(module, query.double(), key.double(), value.double(), None))
        torch.testing.assert_close(whole.double(), exact, atol=1e-5 if dtype is torch.float32 else 0.02, rtol=1e-5)
        for end in (1, 64, 65, 93):
            last = torch.ones(1, 1, 1, end, dtype=torch.bool)
            alone = output(attend(module, query[:, :, end - 1 : end], key[:, :, :end], value[:, :, :end], last))
            assert torch.equal(alone[:, 0], whole[:, end - 1])
        apart = torch.randn(2, 1, 2, 230, 16).to(dtype)
        seen = torch.randperm(230)[:100].sort().values
        apart[:, :, :, seen] = torch.stack((key, value))
        mask = torch.zeros(1, 1, 7, 230, dtype=torch.bool)
        for row in range(7):
            mask[0, 0, row, seen[: 94 + row]] = True
        assert torch.equal(output(attend(module, query[:, :, 93:], *apart, mask)), whole[:, 93:])


@pytest.mark.parametrize("case", ["no mask", "dropout", "bias"])
def test_other_calls_are_those_of_transformers(attend: GQAttention, case: str) -> None:
    """Guards, to the last bit, prefill and what only transformers' own function knows."""
    inputs = given(4, 2, 5, masked=case != "no mask")
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


def test_transformers_functions_stay_what_they_are(attend: GQAttention) -> None:
    """Guards other models of the process: the function has a name of its own beside transformers' names."""
    before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    attend.register()
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    assert ALL_ATTENTION_FUNCTIONS[NAME] is attend
    assert dict(ALL_ATTENTION_FUNCTIONS._local_mapping) == before


def test_a_function_of_the_users_is_used(attend: GQAttention, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards an attention that the user has put in the place of transformers'; other names are not replaced."""
    assert attend.rename("sdpa") == NAME
    assert attend.rename("eager") == "eager"
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", lambda *_, **__: None)
    assert not is_plain_sdpa()
    assert attend.rename("sdpa") == "sdpa"
