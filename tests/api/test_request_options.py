"""Logit bias, penalties and log-probabilities: exact inside drafts, in both forms of decoding, and refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models import endless
from pairwise import in_turn
from speculant import Speculator
from speculant.core.errors import UsageError

PROMPT = [5, 9, 14, 3, 8, 5, 9, 14, 3]
OPTIONS: dict[str, dict[str, Any]] = {
    "bias": {"logit_bias": {7: 4.0, 9: -100, 30: 3}},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -0.5, "repetition_penalty": 1.2},
    "all": {"logit_bias": {7: 4}, "presence_penalty": -0.7, "frequency_penalty": 0.6, "logprobs": 3},
}
DECODING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "top_k": 9, "seed": 5},
}


@pytest.fixture(scope="module")
def model() -> Any:
    return endless("llama")


@pytest.fixture(scope="module")
def plain(model: Any) -> Speculator:
    return Speculator.from_transformers(model, method="none")


@pytest.fixture(scope="module")
def drafting(model: Any) -> Speculator:
    return Speculator.from_transformers(model, method="lookup", nodes=6)


@pytest.mark.parametrize(("options", "decoding"), in_turn(OPTIONS, [*DECODING]))
def test_options_hold_inside_drafts(plain: Speculator, drafting: Speculator, options: str, decoding: str) -> None:
    """Guards exactness: processors see each token of a draft's path once, so the tokens are plain decoding's."""
    given = {"max_new_tokens": 40, **OPTIONS[options], **DECODING[decoding]}
    assert drafting.generate(PROMPT, **given).ids == plain.generate(PROMPT, **given).ids


def test_penalties_count_the_generated_text_alone(plain: Speculator, model: Any) -> None:
    """Guards the formula: bias, count and presence of output tokens, not of the prompt's."""
    given: dict[str, Any] = {"logit_bias": {4: 2.5}, "presence_penalty": 1.0, "frequency_penalty": 0.5}
    found = plain.generate(PROMPT, max_new_tokens=12, temperature=0, **given).ids
    ids = list(PROMPT)
    for token in found:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        logits[4] += 2.5
        for seen in set(ids[len(PROMPT) :]):
            logits[seen] -= 1.0 + 0.5 * ids[len(PROMPT) :].count(seen)
        assert int(logits.argmax()) == token
        ids.append(token)


@pytest.mark.parametrize("decoding", DECODING)
def test_logprobs_are_those_of_a_forward_pass(drafting: Speculator, model: Any, decoding: str) -> None:
    """Guards log-probabilities: of the raw logits after the true prefix, whatever was drafted, piece by piece."""
    given = {"max_new_tokens": 30, "repetition_penalty": 1.1, "logprobs": 4, **DECODING[decoding]}
    stream = drafting.stream(PROMPT, **given)
    pieces = list(stream)
    result = stream.result
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT + result.ids])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    assert result.logprobs is not None
    assert [each for piece in pieces for each in piece.logprobs or []] == result.logprobs
    assert len(result.logprobs) == len(result.ids)
    for row, token, found in zip(expected, result.ids, result.logprobs, strict=True):
        top = row.topk(4)
        assert found.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert found.top_ids == top.indices.tolist()
        assert found.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-4)


def test_logprobs_in_a_batch_are_those_of_a_request_alone(drafting: Speculator) -> None:
    """Guards batches: each request records its own, and those that did not ask record nothing."""
    given: dict[str, Any] = {"max_new_tokens": 16, "temperature": 0}
    alone = drafting.generate(PROMPT, logprobs=0, **given)
    with drafting.batch(2) as batch:
        asked, other = batch.add(PROMPT, logprobs=0, **given), batch.add(PROMPT[2:], **given)
        for _ in batch:
            pass
    assert other.result.logprobs is None
    assert asked.result.logprobs is not None
    assert alone.logprobs is not None
    assert [each.logprob for each in asked.result.logprobs] == pytest.approx(
        [each.logprob for each in alone.logprobs], abs=1e-4
    )
    assert all(each.top_ids == [] for each in asked.result.logprobs)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"logit_bias": {61: 1.0}}, "logit_bias"),
        ({"logit_bias": {"7": 1.0}}, "logit_bias"),
        ({"logit_bias": {7: 101}}, "logit_bias"),
        ({"logit_bias": {7: None}}, "logit_bias"),
        ({"logit_bias": [7]}, "logit_bias"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": "1"}, "frequency_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"constraint": "{}"}, "constraint"),
    ],
)
def test_bad_values_are_refused_by_name(plain: Speculator, options: dict[str, Any], named: str) -> None:
    """Guards against options that would be misread: the error names the option."""
    with pytest.raises(UsageError, match=named):
        plain.stream(PROMPT, **options)
