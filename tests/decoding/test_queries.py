"""Query rows: their logits are those of passes of their own, and nothing else about a round changes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from guesses import alone, prompts
from models import tiny_model
from pairwise import in_turn
from speculant import Speculator
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.tree import ROOT, DraftTree, Queries
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.target_cache import HFTargetCache
from speculant.engines.recorded import RecordedEngine

TOKENS = 14
IDS = torch.tensor([[5, 9, 14, 3, 8, 5, 9, 14, 3, 8, 5, 9, 17, 4, 22]])
WINDOW = Queries(np.array([7, 8, 11, 12, 13, 11, 12], np.int32), np.array([-1, 0, -1, 0, 1, 2, 3], np.int32))
DRAFT = replace(DraftTree.from_paths([[5, 6, 7, 8], [5, 9], [10, 11]]), queries=WINDOW)


def path_of(row: int, tree: DraftTree, root: int) -> list[int]:
    """Return the tokens from the root down to a row of the pass."""
    tokens, parents = tree.rows(root)
    path: list[int] = []
    while row != ROOT:
        path.insert(0, int(tokens[row]))
        row = int(parents[row])
    return path


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("together", [False, True])
def test_logits_of_queries_are_those_of_passes_over_their_paths(name: str, together: bool) -> None:
    """Guards masks and positions of the window, with sliding layers and learned positions, alone and in a batch."""
    model = tiny_model(name).double()
    engine, batch = HFEngine(model), [(IDS, DRAFT), (IDS[:, :6], replace(DRAFT, queries=WINDOW).head(3))]
    with torch.no_grad():
        requests = [(engine.open(ids), 4, draft) for ids, draft in batch[: 1 + together]]
        for cache, _, _ in requests:
            cache.prefill()
        for (ids, draft), result in zip(batch, engine.forward(requests, RequestedOutputs(top_k=1)), strict=False):
            assert result.logits.shape[0] == len(draft) + 1 + len(WINDOW)
            for row in range(len(result.logits)):
                text = torch.cat([ids, torch.tensor([path_of(row, draft, 4)])], dim=1)
                torch.testing.assert_close(result.logits[row], model(text).logits[0, -1], rtol=0, atol=1e-9)


class Asking(Drafter):
    """Drafts nothing but asks about the true continuation, so that a query that was followed would be noticed."""

    def __init__(self, texts: dict[tuple[int, ...], list[int]]) -> None:
        self.texts, self.asked = texts, 0

    @property
    def needs(self) -> RequestedOutputs:
        return RequestedOutputs(top_k=1, hidden_layers=(-1,), queries=4)

    def open(self, start: SessionRequest) -> Session:
        return AskingSession(self, self.texts[tuple(start.prompt.tolist())])


class AskingSession(Session):
    """Where the text of a request stands."""

    def __init__(self, owner: Asking, text: list[int]) -> None:
        self.owner, self.text, self.at = owner, text, 0

    def propose(self, budget: Budget) -> DraftTree:
        tokens = np.array(self.text[self.at : self.at + min(4, budget.queries)], np.int32)
        return DraftTree.empty(queries=Queries(tokens, np.arange(-1, len(tokens) - 1, dtype=np.int32)))

    def observe(self, verified: Verified) -> None:
        asked = verified.tree.queries.tokens.tolist()
        assert verified.top_ids is not None
        assert verified.top_ids.shape == (1 + len(asked), 1)
        assert verified.hidden.shape[0] == 1 + len(asked)
        answers = verified.top_ids[1:, 0].tolist()[: len(self.text) - self.at - 1]
        assert answers == self.text[self.at + 1 :][: len(answers)]  # the argmax after each asked token of the text
        assert len(verified.tokens) == 1
        self.at += 1
        self.owner.asked += len(asked)

    def close(self) -> None:
        pass


@cache
def plain_texts(name: str, temperature: float = 0) -> list[list[int]]:
    """Return each request's own text, decoded plainly."""
    options = [{"max_new_tokens": TOKENS, "temperature": temperature, "seed": 5 + i} for i in range(len(prompts()))]
    return alone(tiny_model(name), options)


@pytest.mark.parametrize(("name", "nodes"), in_turn(["llama", "gemma3", "gpt2"], [8, "auto"]))
def test_queries_are_answered_never_accepted_or_counted(name: str, nodes: int | str) -> None:
    """Guards the split of a pass: acceptance sees root and nodes only, the session all rows; statistics count nodes."""
    options, texts = {"max_new_tokens": TOKENS, "temperature": 0}, plain_texts(name)
    speculator = Speculator.from_transformers(tiny_model(name), method="none", nodes=nodes)
    asking = Asking({tuple(prompt): text for prompt, text in zip(prompts(), texts, strict=True)})
    speculator.drafter = asking
    for result, text in zip(speculator.generate_batch(prompts(), size=3, **options), texts, strict=True):
        assert result.ids == text
        assert (result.stats.drafted, result.stats.accepted, result.stats.mat) == (0, 0, 1.0)
        assert result.stats.offered_by_depth == []
    assert asking.asked > 0


@pytest.mark.parametrize(
    ("name", "method", "temperature"),
    in_turn([(name, method) for method in ("jacobi", "lookahead") for name in ("llama", "gemma3", "gpt2")], [0, 0.7]),
)
def test_texts_are_those_of_plain_decoding(name: str, method: str, temperature: float) -> None:
    """Alone and in batches, greedy and seeded, with sliding windows and learned positions."""
    texts = plain_texts(name, temperature)
    speculator = Speculator.from_transformers(tiny_model(name), method=method, nodes=8)
    options = {"max_new_tokens": TOKENS, "temperature": temperature}
    assert [each.ids for each in speculator.generate_batch(prompts(), size=4, seed=5, **options)] == texts
    assert speculator.generate(prompts()[2], seed=7, **options).ids == texts[2]


@pytest.mark.parametrize("settings", [{"variant": "pgj"}, {"variant": "hgj", "length": 10}, {"fill": 0}])
def test_variants_of_jacobi_decoding(settings: dict[str, Any]) -> None:
    """All of them give the text of plain decoding."""
    speculator = Speculator.from_transformers(tiny_model("llama"), method="jacobi", nodes=8, settings=settings)
    found = [speculator.generate(prompt, max_new_tokens=TOKENS, temperature=0).ids for prompt in prompts()[:4]]
    assert found == plain_texts("llama")[:4]


def test_a_window_stays_within_the_models_positions() -> None:
    """Guards learned positions: the window is left out where its rows would lie beyond the last one."""
    model = tiny_model("gpt2")
    ids, options = prompts()[2] * 7, {"max_new_tokens": 46, "temperature": 0}  # all 256 positions
    plain = Speculator.from_transformers(model, method="none").generate(ids, **options).ids
    assert Speculator.from_transformers(model, method="lookahead", nodes=8).generate(ids, **options).ids == plain


def test_models_that_verify_chains_only() -> None:
    """Jacobi decoding drafts chains; a method that brings queries is refused before anything is decoded."""
    model, options = tiny_model("bloom"), {"max_new_tokens": 20, "temperature": 0}
    plain = Speculator.from_transformers(model, method="none").generate(prompts()[0], **options).ids
    assert Speculator.from_transformers(model, method="jacobi", nodes=8).generate(prompts()[0], **options).ids == plain
    with pytest.raises(UnsupportedError, match=r"rows in addition to the draft.*chains only"):
        Speculator.from_transformers(model, method="lookahead").generate(prompts()[0], **options)


def test_chains_under_a_rule_without_trees_may_have_queries() -> None:
    """Only the model decides about queries; a rule for chains alone still gets chains."""
    model, options = tiny_model("llama"), {"max_new_tokens": 16, "temperature": 0}
    plain = Speculator.from_transformers(model, method="none").generate(prompts()[0], **options).ids
    speculator = Speculator.from_transformers(model, method="lookahead", verifier="block", nodes=8)
    assert speculator.generate(prompts()[0], **options).ids == plain


def test_queries_that_a_pass_cannot_take_are_refused() -> None:
    """Guards batches: a wrong query fails its own sequence before the pass, not all of them in it."""
    engine = HFEngine(tiny_model("gpt2"))
    cache = engine.open(torch.ones((1, 250), dtype=torch.long))
    cache.prefill()
    line = np.arange(-1, 8, dtype=np.int32)
    cache.check(DraftTree.empty(queries=Queries(line[1:6], line[:5])))
    with pytest.raises(ValueError, match="deeper than the 5"):
        cache.check(DraftTree.empty(queries=Queries(line[1:7], line[:6])))
    with pytest.raises(UsageError, match="token 61"):
        cache.check(DraftTree.empty(queries=Queries(np.array([61], np.int32), line[:1])))


def test_a_recorded_output_counts_their_rows() -> None:
    """A recording has no logits to return, but its passes would have as many rows."""
    rows: list[int] = []
    RecordedEngine(on_pass=rows.append).forward([(None, 4, DRAFT)])
    assert rows == [len(DRAFT) + 1 + len(WINDOW)]


class Noting(Drafter):
    """Has queries, drafts nothing, and notes for how many nodes it is asked."""

    def __init__(self) -> None:
        self.nodes: list[int] = []

    @property
    def needs(self) -> RequestedOutputs:
        return RequestedOutputs(queries=4)

    def open(self, start: SessionRequest) -> Session:
        return NotingSession(self.nodes)


class NotingSession(Session):
    """Drafts nothing."""

    def __init__(self, nodes: list[int]) -> None:
        self.nodes = nodes

    def propose(self, budget: Budget) -> DraftTree:
        self.nodes.append(budget.nodes)
        return DraftTree.empty()

    def observe(self, verified: Verified) -> None:
        pass


def test_queries_take_room_from_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a pass may append six rows, a drafter with four queries is asked for two nodes."""
    monkeypatch.setattr(HFTargetCache, "room", property(lambda _: 6))
    drafter = Noting()
    speculator = Speculator.from_transformers(tiny_model("llama"), drafter=drafter, nodes=8)
    speculator.generate(prompts()[0], max_new_tokens=12, temperature=0)
    assert set(drafter.nodes) == {2}
