"""The corpus that SGLang's worker asks: texts, drafts, ranks, requests that leave and come back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from speculant.core.drafter import Drafter
from speculant.core.errors import UnsupportedError
from speculant.integrations.sglang_corpus import Corpus
from speculant.registry import BuildContext, build_drafter

VOCABULARY, WIDTH, TAIL = 200, 8, 6


def mix() -> Drafter:
    """Return an empty drafter."""
    return build_drafter("mix", BuildContext(vocabulary=VOCABULARY, tokenizer="t", memory_limit=4 << 20))


def corpus(drafter: Drafter | None = None) -> Corpus:
    """Return a corpus without requests."""
    return Corpus(drafter or mix(), vocabulary=VOCABULARY, width=WIDTH, tail=TAIL)


def text(seed: int, length: int = 200) -> np.ndarray:
    """Return random tokens."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).astype(np.int32)


class Server:
    """Calls a corpus as SGLang's worker does, for requests whose outputs are known; greedy."""

    def __init__(self, held: Corpus) -> None:
        self.corpus = held
        self.steps = 0
        self._before: set[str] = set()

    def run(
        self, requests: dict[str, np.ndarray], *, prompt: int, ends: dict[str, int] | None = None
    ) -> list[list[int]]:
        """Decode requests together until each is at its end; return what every step returned."""
        at, found = dict.fromkeys(requests, prompt + 1), []
        until = {name: (ends or {}).get(name, len(requests[name])) for name in requests}
        while active := [name for name in requests if at[name] < until[name]]:
            for name in active:
                if self.corpus.is_behind(name, at[name] - 1):
                    self.corpus.begin(name, requests[name][: at[name] - 1])
            tails = [requests[name][max(0, at[name] - TAIL) : at[name]].tolist() for name in active]
            tokens, masks = self.corpus.batch_get(active, tails, [at[name] for name in active])
            self.corpus.batch_put(tails)
            self.corpus.synchronize()
            found.append([*tokens.tolist(), *masks.tolist()])
            trees = zip(active, tokens.reshape(-1, WIDTH), masks.reshape(-1, WIDTH, WIDTH), strict=True)
            for name, drafted, mask in trees:
                assert drafted[0] == requests[name][at[name] - 1]
                at[name] += 1 + accepted(drafted, mask, requests[name][at[name] :])
            self.corpus.erase_match_state(self._before - set(active))
            self._before = set(active)
            self.steps += 1
        return found


def accepted(tokens: np.ndarray, mask: np.ndarray, truth: Sequence[int]) -> int:
    """Return how many tokens a greedy target accepts."""
    row, count = 0, 0
    while count < len(truth) - 1:
        below = [i for i in range(row + 1, len(tokens)) if max(j for j in range(i) if mask[i, j]) == row]
        match = [i for i in below if tokens[i] == truth[count]]
        if not match:
            break
        row, count = match[0], count + 1
    return count


def test_what_was_decoded_is_drafted_again() -> None:
    """The purpose: a text that was seen takes a fraction of the steps, across requests."""
    server = Server(corpus())
    server.run({"a": text(1)}, prompt=50)
    first = server.steps
    server.run({"b": text(1)}, prompt=50)
    assert first > 140
    assert server.steps - first < 40


def test_ranks_draft_the_same() -> None:
    """Guards tensor parallelism: drafts are never sent between ranks, so equal calls must give equal trees."""
    requests = {f"r{i}": text(i % 3, 120) for i in range(5)}
    one, other = (Server(corpus()) for _ in range(2))
    assert one.run(requests, prompt=40) == other.run(requests, prompt=40)
    assert one.run(requests, prompt=40) == other.run(requests, prompt=40)


def test_requests_may_be_retracted_and_come_back() -> None:
    """Guards preemption: a request that left and returns is given whole, and is drafted for as if it had stayed."""
    stayed, returned = Server(corpus()), Server(corpus())
    stayed.run({"a": text(4)}, prompt=50)
    returned.run({"a": text(4)}, prompt=50, ends={"a": 120})
    returned.run({"b": text(5)}, prompt=50)
    assert returned.corpus.is_behind("a", 121)
    known = returned.steps
    returned.run({"a": text(4)}, prompt=119)
    assert returned.steps - known < 100
    assert returned.corpus.rows.faults == 0


def test_a_step_that_shows_only_tails_is_served() -> None:
    """Guards callers that give no whole texts: the tail is taken for the text."""
    held = corpus()
    tokens, masks = held.batch_get(["a", "b"], [[1, 2, 3], [4]], [300, 1])
    assert tokens.reshape(2, WIDTH)[:, 0].tolist() == [3, 4]
    assert masks.shape == (2 * WIDTH * WIDTH,)
    assert held.rows.faults == 0


def test_resetting_keeps_what_was_learned() -> None:
    """Guards the memory: SGLang clears its cache after an update of weights; text that was seen stays known."""
    server = Server(corpus())
    server.run({"a": text(6)}, prompt=50)
    server.corpus.reset()
    assert len(server.corpus.rows) == 0
    before = server.steps
    server.run({"a": text(6)}, prompt=50)
    assert server.steps - before < 40


def test_requests_that_left_are_forgotten() -> None:
    """Guards memory: sessions of requests that have left are closed some steps later."""
    server = Server(corpus())
    for i in range(30):
        server.run({f"r{i}": text(i, 70)}, prompt=40)
    assert len(server.corpus.rows) < 10


def test_corpora_are_learned_as_prompts() -> None:
    """Guards --speculative-ngram-external-corpus-path: its texts are drafted, listed, and cannot be taken back."""
    held = corpus()
    count = held.load_external_corpus_named("log", [text(7)[:100].tolist(), text(7)[100:].tolist()])
    held.commit_external_corpus_load("log", count)
    assert held.list_external_corpora() == {"log": 200}
    server = Server(held)
    server.run({"a": text(7)}, prompt=20)
    assert server.steps < 60
    with pytest.raises(ValueError, match="learned already"):
        held.load_external_corpus_named("log", [[1]])
    with pytest.raises(ValueError, match="outside"):
        held.load_external_corpus_named("other", [[VOCABULARY]])
    with pytest.raises(UnsupportedError, match="cannot be removed"):
        held.remove_external_corpus("log")
