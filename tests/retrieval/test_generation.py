"""Guessed retrievals change no answer: neither its tokens nor its documents."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from pairwise import in_turn
from speculant import Speculator
from speculant.core.errors import PromptError, TokenizerError, UsageError
from speculant.options.retrieval import RetrievalOptions
from speculant.options.sampling import SamplingOptions
from speculant.retrieval import RetrievalGenerator
from speculant.retrieval.dense import DenseRetriever

DOCUMENTS = [
    f"{name} had a {thing}. {name} took the {thing} to the {place} and was very happy."
    for name in ("Tom", "Lily", "Ben", "Mia", "Sam")
    for thing in ("ball", "kite", "cake", "boat")
    for place in ("park", "lake")
]
QUESTIONS = ["One day Tom went to the lake.", "Lily was sad.", "Ben and Mia had a cake.", "The kite was red."]


class Scripted:
    """A retriever whose answers are drawn from a query's hash: often the same document, sometimes another."""

    documents = DOCUMENTS

    def __init__(self, *, changes: int, delay: float = 0.0) -> None:
        self.changes, self.delay, self.widths, self.broken = changes, delay, list[int](), False

    def encode(self, query: str) -> int:
        return sum(query.encode())

    def search(self, queries: Any, k: int) -> Any:
        time.sleep(self.delay)
        if self.broken:
            raise ConnectionError("the index is gone")
        self.widths.append(len(queries))
        first = [(query // 7) % len(DOCUMENTS) if query % 10 < self.changes else 3 for query in queries]
        return np.array([[(each + place) % len(DOCUMENTS) for place in range(k)] for each in first])

    def score(self, query: int, ids: Any) -> Any:
        return -np.abs(ids - 3).astype(np.float32)


@pytest.fixture(scope="module")
def speculator() -> Speculator:
    """Return the bundled model with its default method."""
    return Speculator.from_pretrained()


def answers(speculator: Speculator, retriever: Any, sampling: SamplingOptions, **options: Any) -> list[Any]:
    """Return tokens, documents and reasons of the answers to all questions."""
    generator = RetrievalGenerator(speculator, retriever, RetrievalOptions(**options))
    results = [generator.generate(question, sampling) for question in QUESTIONS]
    return [(each.ids, each.documents, each.finish_reason, each.text) for each in results]


OPTIONS: dict[str, dict[str, Any]] = {
    "in turn, fixed": {"in_turn": True, "stride": 3},
    "beside, fixed": {"stride": 5, "prefetch": 3},
    "in turn": {"in_turn": True},
    "beside": {},
    "as long as it takes": {"stride": 64},
}
SAMPLING = SamplingOptions(max_new_tokens=16)


@pytest.fixture(scope="module")
def searched_each_time(speculator: Speculator) -> Callable[[int], list[Any]]:
    """Return what gives the answers of searching each time, by how often the document changes."""
    return cache(lambda changes: answers(speculator, Scripted(changes=changes), SAMPLING, sequential=True))


# Guesses that are mostly right meet both ways of searching at fixed strides with those that always and hardly ever are.
@pytest.mark.parametrize(("options", "changes"), in_turn(OPTIONS, [3, 10, 0], whole=2))
def test_answers_are_those_of_searching_each_time(
    speculator: Speculator, searched_each_time: Callable[[int], list[Any]], options: str, changes: int
) -> None:
    """Guards identity where guesses are always, mostly and hardly ever right."""
    found = answers(speculator, Scripted(changes=changes, delay=0.002), SAMPLING, **OPTIONS[options])
    assert found == searched_each_time(changes)


def test_sampled_answers_are_those_of_searching_each_time(speculator: Speculator) -> None:
    """Guards random streams: text behind a wrong guess uses up no numbers."""
    sampling = SamplingOptions(max_new_tokens=20, temperature=0.9, seed=5)
    expected = answers(speculator, Scripted(changes=4), sampling, sequential=True)
    assert answers(speculator, Scripted(changes=4), sampling, interval=4, stride=3) == expected
    assert answers(speculator, Scripted(changes=4), sampling, sequential=True, interval=7) != expected


def test_answers_are_those_of_transformers_alone(speculator: Speculator) -> None:
    """Guards the procedure itself against a loop over transformers' generate, prompt by prompt."""
    retriever, model, tokenizer = Scripted(changes=5), speculator.model, speculator.tokenizer
    result = RetrievalGenerator(speculator, retriever).generate(QUESTIONS[0], SamplingOptions(max_new_tokens=24))
    question, answer = tokenizer(QUESTIONS[0], add_special_tokens=False)["input_ids"], list[int]()
    for document in result.documents:
        query = tokenizer.decode([*question, *answer][-32:], skip_special_tokens=True)
        assert document == retriever.search([retriever.encode(query)], 1)[0, 0]
        prompt = tokenizer(f"{DOCUMENTS[document]}\n\n{QUESTIONS[0]}", return_tensors="pt")["input_ids"][0].tolist()
        ids = model.generate(
            model.dummy_inputs["input_ids"].new_tensor([[*prompt, *answer]]), max_new_tokens=4, do_sample=False
        )
        answer += ids[0, len(prompt) + len(answer) :].tolist()
    assert result.ids == answer[: len(result.ids)]


def test_right_guesses_are_verified_several_at_once(speculator: Speculator) -> None:
    """Guards the gain: few searches, in batches, and stats that add up."""
    retriever = Scripted(changes=0)
    generator = RetrievalGenerator(speculator, retriever, RetrievalOptions(stride=4, in_turn=True))
    result = generator.generate(QUESTIONS[0], SamplingOptions(max_new_tokens=68))
    stats = result.stats
    assert (stats.retrievals, stats.searches, stats.guesses, stats.confirmed) == (17, 5, 16, 16)
    assert retriever.widths == [1, 4, 4, 4, 4]
    assert stats.dropped_tokens == 0
    assert len(result.ids) == 68


def test_intervals_come_when_they_are_verified(speculator: Speculator) -> None:
    """Guards streams: their texts join to the answer's, and each says whether it was guessed."""
    generator = RetrievalGenerator(speculator, Scripted(changes=3), RetrievalOptions(stride=2))
    found = list(generator.stream(QUESTIONS[1], SamplingOptions(max_new_tokens=30)))
    result = generator.generate(QUESTIONS[1], SamplingOptions(max_new_tokens=30))
    assert "".join(each.text for each in found) == result.text
    assert [each.document for each in found] == result.documents
    assert not found[0].guessed
    assert any(each.guessed for each in found)


def test_a_failing_search_ends_the_answer(speculator: Speculator) -> None:
    """Guards faults on the other thread: the error arrives, and the next answer is whole."""
    retriever = Scripted(changes=0)
    generator = RetrievalGenerator(speculator, retriever, RetrievalOptions(stride=2))
    sampling = SamplingOptions(max_new_tokens=20)
    expected = generator.generate(QUESTIONS[0], sampling).ids
    retriever.broken = True
    with pytest.raises(ConnectionError):
        generator.generate(QUESTIONS[0], sampling)
    retriever.broken = False
    assert generator.generate(QUESTIONS[0], sampling).ids == expected


def test_what_cannot_be_done_is_said_first(speculator: Speculator) -> None:
    """Guards users from long work that fails: empty questions, stop texts, templates, documents that do not fit."""
    generator = RetrievalGenerator(speculator, Scripted(changes=0))
    with pytest.raises(UsageError, match="empty"):
        generator.generate(" ")
    with pytest.raises(UsageError, match="stop"):
        generator.generate("Tom", SamplingOptions(stop=("x",)))
    with pytest.raises(UsageError, match="question"):
        RetrievalOptions(template="{document}")
    with pytest.raises(TokenizerError, match="tokenizer"):
        RetrievalGenerator(Speculator.from_transformers(speculator.model, method="none"), Scripted(changes=0))
    long = DenseRetriever(["Tom " * 5000], lambda texts: np.ones((len(texts), 2), np.float32))
    with pytest.raises(PromptError):
        RetrievalGenerator(speculator, long).generate("Tom")
