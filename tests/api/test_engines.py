"""An engine is one folder and one row: a third one, without transformers, decodes by `Speculator`."""

from __future__ import annotations

from typing import Any

import pytest

from models import VOCABULARY, tiny_model
from speculant import Speculator
from speculant.api import engines
from speculant.api.engines import ListedEngine, describe_model, find_engine
from speculant.api.tuning import step_cost_file
from speculant.cli.env import environment
from speculant.core.errors import UnsupportedError, UsageError
from table_engine import END, TableKind, TableModel

PROMPT = [5, 9, 14, 3]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> TableModel:
    """Return a model of an engine that the table of engines names."""
    row = ListedEngine(models="table_engine:TableModel", kind="table_engine:TableKind")
    monkeypatch.setattr(engines, "ENGINES", (*engines.ENGINES, row))
    return TableModel(VOCABULARY)


def opened(model: TableModel, method: str, **options: Any) -> Speculator:
    """Return a speculator on a table, with drafts of a fixed size."""
    return Speculator.from_transformers(model, method=method, nodes=0 if method == "none" else 6, **options)


@pytest.mark.parametrize("temperature", [0, 0.3])
@pytest.mark.parametrize("method", ["mix", "recycling", "draft-model"])
def test_texts_are_those_of_plain_decoding(model: TableModel, method: str, temperature: float) -> None:
    """Guards all that requests, drafters and rounds ask of an engine, with drafts from texts, logits and a model."""
    options: dict[str, Any] = {"max_new_tokens": 150, "temperature": temperature, "seed": 3}
    expected = opened(model, "none").generate(PROMPT, **options)
    drafts = {"draft_model": tiny_model("llama"), "verifier": "sample-then-follow"} if method == "draft-model" else {}
    speculator = opened(model, method, **drafts)
    for _ in range(2):  # the second text is known to a memory
        result = speculator.generate(PROMPT, **options)
        assert result.ids == expected.ids
    assert method == "draft-model" or result.stats.accepted > (0 if temperature else 20)
    assert (expected.finish_reason == "stop") == (expected.ids[-1] == END)


def test_batches_and_options_of_every_engine(model: TableModel) -> None:
    """What is decoded together, biased or recorded needs nothing of the engine but passes and its settings."""
    prompts, options = [PROMPT, [7, 7, 7, 8, 9], [1, 4]], {"max_new_tokens": 40, "temperature": 0}
    plain, drafted = opened(model, "none"), opened(model, "mix")
    alone = [plain.generate(prompt, **options).ids for prompt in prompts]
    assert [result.ids for result in drafted.generate_batch(prompts, size=2, **options)] == alone
    biased = {**options, "logit_bias": {alone[0][0]: -100.0}, "logprobs": 1}
    results = [each.generate(PROMPT, **biased) for each in (plain, drafted)]
    assert results[0].ids == results[1].ids != alone[0]
    assert len(results[1].logprobs or ()) == len(results[1].ids)


def test_what_it_does_not_offer_is_refused(model: TableModel) -> None:
    """Guards the defaults of an engine: layers and heads are refused by name, unknown options by the engine itself."""
    for method in ("eagle", "swift", "sparse-cache"):
        with pytest.raises(UnsupportedError, match="which this model's engine does not offer"):
            opened(model, method)
    with pytest.raises(UnsupportedError, match="tables know no top_k"):
        opened(model, "mix").generate(PROMPT, top_k=5)
    with pytest.raises(UnsupportedError, match="no logits of the prompt"):
        opened(model, "mix").generate(PROMPT, prompt_logprobs=0)
    with pytest.raises(UsageError, match="costs of passes on TableEngine cannot be stored"):
        step_cost_file(opened(model, "mix").engine)
    with pytest.raises(UsageError, match="must be a loaded transformers tokenizer"):
        Speculator.from_transformers(model, object())


def test_the_engine_of_a_model(model: TableModel) -> None:
    """Subclasses run on their base's engine, all that is not listed on transformers; results bear its description."""

    class Derived(TableModel):
        pass

    assert type(find_engine(Derived(4))) is TableKind
    assert find_engine(tiny_model("llama")).without_layers == ""
    assert describe_model(model).form == "a table"
    assert environment(model)["dtype"] == "float32"
