"""What goes wrong in a batch stays with the request that it went wrong in, and no text is lost."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from faults import Full
from guesses import LENGTHS, GuessingSession, alone, guessing, prompts
from models import tiny_model
from speculant import Speculator
from speculant.api.batch import Batch, BatchError
from speculant.api.result import Generation
from speculant.core.errors import OutOfMemoryError, UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.none import EmptySession

GREEDY: dict[str, Any] = {"max_new_tokens": 30, "temperature": 0}


class Interrupting:
    """A streamer that is interrupted at its `at`-th call, the prompt's included; or where the text ends."""

    def __init__(self, at: int = 0) -> None:
        self.left = at

    def put(self, ids: Any) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def end(self) -> None:
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def texts(model: Any) -> list[list[int]]:
    return alone(model, [GREEDY] * len(LENGTHS))


def add_all(batch: Batch, **of_the_third: Any) -> list[Generation]:
    return [
        batch.add(prompt, **GREEDY, **(of_the_third if place == 2 else {})) for place, prompt in enumerate(prompts())
    ]


def go_on(batch: Batch) -> tuple[dict[Generation, list[int]], int]:
    """Decode to the end through interrupts; return what the pieces held and how many interrupts there were."""
    pieces: dict[Generation, list[int]] = {}

    def interrupted() -> bool:
        try:
            for generation, piece in batch:
                pieces.setdefault(generation, []).extend(piece.tokens)
        except KeyboardInterrupt:
            return True
        return False

    interrupts = sum(interrupted() for _ in range(5))
    assert not len(batch)
    return pieces, interrupts


@pytest.mark.parametrize("at", [2, 8, 0], ids=["first token", "middle", "end"])
def test_an_interrupt_costs_one_request_at_most(model: Any, texts: list[list[int]], at: int) -> None:
    """Guards the others' tokens, pieces, drafts and caches where Ctrl-C meets a text and decoding goes on."""
    speculator = guessing(model, texts)
    batch = speculator.batch(6, keep_caches=True)
    generations = add_all(batch, streamer=Interrupting(at))
    pieces, interrupts = go_on(batch)
    assert interrupts == 1
    for place, (generation, text) in enumerate(zip(generations, texts, strict=True)):
        said = generation.result.ids
        assert said == pieces[generation] == (text[: len(said)] if place == 2 else text)
        assert generation.result.stats.tokens == len(said)
        assert generation.done
        if said:
            assert generation.result.cache.get_seq_length() == LENGTHS[place] + len(said) - 1
    assert [place for place, generation in enumerate(generations) if generation.error] == [2]
    assert isinstance(generations[2].error, KeyboardInterrupt)
    assert batch.stats.tokens == sum(len(generation.result.ids) for generation in generations)
    assert speculator.drafter.opened - (at == 2) == speculator.drafter.closed - (at == 2)


def test_an_interrupt_while_learning_keeps_the_text(
    model: Any, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the sessions behind an interrupted one: each learns every round of its own text."""
    observe, left = GuessingSession.observe, [20]

    def interrupted(session: GuessingSession, verified: Any) -> None:
        observe(session, verified)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(GuessingSession, "observe", interrupted)
    batch = guessing(model, texts).batch(6)
    generations = add_all(batch)
    pieces, interrupts = go_on(batch)
    assert interrupts == 1
    assert sum(generation.error is not None for generation in generations) == 1
    for generation, text in zip(generations, texts, strict=True):
        assert generation.result.ids == pieces[generation] == text[: len(generation.result.ids)]
        assert generation.error is not None or generation.result.ids == text
        assert generation.result.stats.tokens == len(generation.result.ids)


def test_steps_hand_out_the_pieces_of_an_interrupted_one(model: Any, texts: list[list[int]]) -> None:
    """Guards who drives a batch by steps: the pieces of a round that ended in an interrupt come with the next."""
    batch = guessing(model, texts).batch(6)
    generations = add_all(batch, streamer=Interrupting(8))
    said: dict[Generation, list[int]] = {generation: [] for generation in generations}
    while len(batch):
        with contextlib.suppress(KeyboardInterrupt):
            for generation, piece in batch.step():
                said[generation] += piece.tokens
    assert list(said.values()) == [generation.result.ids for generation in generations]


def test_iterations_that_are_left_early_lose_no_piece(model: Any, texts: list[list[int]]) -> None:
    """Guards loops with a `break`, and loops inside loops."""
    batch = guessing(model, texts).batch(6)
    generations = add_all(batch)
    said: dict[Generation, list[int]] = {generation: [] for generation in generations}
    for place in range(10):
        for generation, piece in batch:
            said[generation] += piece.tokens
            if place < 9:
                break
    assert list(said.values()) == texts


def test_requests_that_share_a_cache_are_refused(model: Any) -> None:
    """Guards texts from another request's rows in their cache: one is refused, the other is right."""
    speculator = Speculator.from_transformers(model, method="none")
    turn = speculator.generate(prompts()[2], max_new_tokens=5, temperature=0)
    asked = [[*prompts()[2], *turn.ids, 3, 4], [*prompts()[2], *turn.ids, 9, 8, 7]]  # the shorter one is read first
    texts = [speculator.generate(prompt, **GREEDY).ids for prompt in asked]
    batch = speculator.batch()
    generations = [batch.add(prompt, cache=turn.cache, **GREEDY) for prompt in asked]
    for _ in batch:
        pass
    assert generations[0].result.ids == texts[0]
    assert isinstance(generations[1].error, UsageError)
    assert "cache of its own" in str(generations[1].error)


def test_a_session_that_cannot_be_closed_harms_nobody(
    model: Any, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a round from a drafter that fails while a request leaves; the error is in that request's generation."""
    close = GuessingSession.close

    def failing(session: GuessingSession) -> None:
        close(session)
        if session.text == texts[2]:
            raise ArithmeticError("a drafter's bug")

    monkeypatch.setattr(GuessingSession, "close", failing)
    speculator = guessing(model, texts)
    batch = speculator.batch(6)
    generations = add_all(batch)
    for _ in batch:
        pass
    assert [generation.result.ids for generation in generations] == texts
    assert [type(generation.error) for generation in generations if generation.error] == [ArithmeticError]
    assert generations[2].error is not None
    assert speculator.drafter.closed == len(LENGTHS)


@pytest.mark.parametrize("token", [-1, 10_000])
def test_a_node_that_is_no_token_fails_its_request(
    model: Any, texts: list[list[int]], token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the pass of all from one drafter's node that the model cannot look up."""
    propose = GuessingSession.propose

    def bad(session: GuessingSession, nodes: int) -> DraftTree:
        return DraftTree.from_paths([[3, token]]) if session.text == texts[2] else propose(session, nodes)

    monkeypatch.setattr(GuessingSession, "propose", bad)
    batch = guessing(model, texts).batch(6)
    generations = add_all(batch)
    for _ in batch:
        pass
    assert [generation.result.ids == text for generation, text in zip(generations, texts, strict=True)] == [
        place != 2 for place in range(len(LENGTHS))
    ]
    assert f"token {token}" in str(generations[2].error)


def test_a_prompt_that_does_not_fit_waits_on(
    model: Any, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a request whose prompt finds no room beside others: it stays the next one, and nothing of it is lost."""
    device = Full(model.model.layers[1].mlp, monkeypatch)
    batch = guessing(model, texts, nodes=0).batch(6, keep_caches=True)
    generations = add_all(batch)
    device.full = lambda rows: rows >= 30
    with pytest.raises(OutOfMemoryError, match="30 cached"):
        batch.step()
    assert [generation.result.cache.get_seq_length() for generation in generations[:3]] == [9, 1, 0]
    assert batch.stats.prefill_seconds > 0
    batch.remove(generations[1])
    device.full = lambda _: False
    for _ in batch:
        pass
    assert [generation.result.ids for generation in generations if generation is not generations[1]] == texts[
        :1
    ] + texts[2:]


@pytest.mark.parametrize("own", [{}, {"temperature": 1.0, "seed": 5}])
def test_a_session_that_does_not_fit_repeats_no_token(
    model: Any, own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards losslessness where memory ends between a text's first token and its session, as of sparse caches."""
    expected = alone(model, [GREEDY | own] * 2)
    speculator, observe, failures = guessing(model, expected), GuessingSession.observe, [OutOfMemoryError("no room")]

    def full(session: GuessingSession, verified: Any) -> None:
        if session.text == expected[1] and failures:
            raise failures.pop()
        observe(session, verified)

    monkeypatch.setattr(GuessingSession, "observe", full)
    batch = speculator.batch(2)
    running = batch.add(prompts()[0], **GREEDY | own)
    batch.step()
    generation = batch.add(prompts()[1], **GREEDY | own)
    with pytest.raises(OutOfMemoryError):
        batch.step()
    for _ in batch:
        pass
    assert [running.result.ids, generation.result.ids] == expected
    assert (speculator.drafter.opened, speculator.drafter.closed) == (3, 3)


def test_a_prompt_that_fits_nowhere_fails(model: Any, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards who waits behind a prompt that has no room even alone."""
    device = Full(model.model.layers[1].mlp, monkeypatch)
    batch, other = guessing(model, texts, nodes=0).batch(1), guessing(model, texts, nodes=0)
    other.batch(8)  # which looks at the model while there is room
    device.full = lambda rows: rows >= 30
    generations = add_all(batch)
    for _ in batch:
        pass
    assert [generation.result.ids for generation in generations] == [*texts[:2], [], *texts[3:]]
    assert isinstance(generations[2].error, OutOfMemoryError)
    with pytest.raises(BatchError, match="OutOfMemoryError") as met:
        other.generate_batch(prompts(), **GREEDY)
    assert all(result.ids for result in met.value.results[:2])


def test_steps_that_fail_take_time(model: Any, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the tokens per second of a batch that ran out of memory on its way."""
    device = Full(model.model.layers[1].mlp, monkeypatch)
    batch = guessing(model, texts).batch(6)
    add_all(batch)
    batch.step()
    before = batch.stats.seconds
    device.full = lambda _: time.sleep(0.05) is None
    with pytest.raises(OutOfMemoryError):
        batch.step()
    assert batch.stats.seconds > before + 0.04


def test_requests_leave_once_and_only_their_own_batch(model: Any, texts: list[list[int]]) -> None:
    """Guards sessions from being ended twice, and a batch's list from another batch's requests."""
    speculator = guessing(model, texts)
    with speculator.batch(2) as batch, speculator.batch(2) as other:
        generations = add_all(batch)
        batch.step()
        batch.remove(generations[0])
        batch.remove(generations[0])
        with pytest.raises(UsageError, match="not in this batch"):
            other.remove(generations[1])
        batch.step()
    batch.remove(generations[1])
    assert all(generation.done for generation in generations)
    assert speculator.drafter.opened == speculator.drafter.closed > 1


def test_a_run_is_decoded_once(model: Any, texts: list[list[int]]) -> None:
    """Guards a request from a second batch, or the same one, that would find it half decoded."""
    speculator = guessing(model, texts)
    batch, other = speculator.batch(), speculator.batch()
    run = speculator.prepare(prompts()[0], **GREEDY)
    generation = batch.submit(run)
    for again in (batch, other):
        with pytest.raises(UsageError, match="already been decoded"):
            again.submit(run)
    for _ in batch:
        pass
    assert generation.result.ids == texts[0]


def test_requests_may_be_removed_from_within_a_round(model: Any, texts: list[list[int]]) -> None:
    """Guards rounds in which one request's streamer lets others leave, before and behind it."""
    batch = guessing(model, texts).batch(6, keep_caches=True)
    generations: list[Generation] = []

    class Removing(Interrupting):
        def put(self, ids: Any) -> None:
            self.left += 1
            if self.left == 5:
                batch.remove(generations[0])
                batch.remove(generations[4])

    generations += add_all(batch, streamer=Removing())
    for _ in batch:
        pass
    for place, (generation, text) in enumerate(zip(generations, texts, strict=True)):
        said = generation.result.ids
        assert generation.error is None
        assert said == (text[: len(said)] if place in (0, 4) else text)
        assert generation.result.cache.get_seq_length() == LENGTHS[place] + len(said) - 1


def test_failures_to_begin_count_no_token(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards counts against texts: a first token that was taken back is none."""

    def failing(session: EmptySession, verified: Any) -> None:
        raise ArithmeticError("a drafter's bug")

    monkeypatch.setattr(EmptySession, "observe", failing)
    batch = Speculator.from_transformers(model, method="none").batch(keep_caches=True)
    generation = batch.add(prompts()[0], **GREEDY)
    assert [(each, piece.tokens) for each, piece in batch] == [(generation, [])]
    assert (generation.result.ids, generation.result.stats.tokens, batch.stats.tokens) == ([], 0, 0)
    assert generation.result.cache.get_seq_length() == 0
