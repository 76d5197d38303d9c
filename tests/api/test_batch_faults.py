"""What goes wrong in a batch stays with the request that it went wrong in, and nothing that was said is lost."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from faults import Full
from guesses import LENGTHS, GuessingSession, alone, guessing, prompts
from models import tiny_model
from speculant import Speculator
from speculant.api.batch import Batch, Ticket
from speculant.core.drafter import NoDrafter
from speculant.core.errors import BatchError, OutOfMemoryError, UsageError
from speculant.core.tree import DraftTree

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


def add_all(batch: Batch, **of_the_third: Any) -> list[Ticket]:
    return [
        batch.add(prompt, **GREEDY, **(of_the_third if place == 2 else {})) for place, prompt in enumerate(prompts())
    ]


def go_on(batch: Batch) -> tuple[dict[Ticket, list[int]], int]:
    """Decode to the end through interrupts; return what the pieces held and how many interrupts there were."""
    pieces: dict[Ticket, list[int]] = {}

    def interrupted() -> bool:
        try:
            for ticket, piece in batch:
                pieces.setdefault(ticket, []).extend(piece.tokens)
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
    tickets = add_all(batch, streamer=Interrupting(at))
    pieces, interrupts = go_on(batch)
    assert interrupts == 1
    for place, (ticket, text) in enumerate(zip(tickets, texts, strict=True)):
        said = ticket.result.ids
        assert said == pieces[ticket] == (text[: len(said)] if place == 2 else text)
        assert ticket.result.stats.tokens == len(said)
        assert ticket.done
        if said:
            assert ticket.result.cache.get_seq_length() == LENGTHS[place] + len(said) - 1
    assert [place for place, ticket in enumerate(tickets) if ticket.error] == [2]
    assert isinstance(tickets[2].error, KeyboardInterrupt)
    assert batch.stats.tokens == sum(len(ticket.result.ids) for ticket in tickets)
    assert speculator.drafter.opened - (at == 2) == speculator.drafter.closed - (at == 2)


def test_an_interrupt_while_learning_keeps_what_was_said(
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
    tickets = add_all(batch)
    pieces, interrupts = go_on(batch)
    assert interrupts == 1
    assert sum(ticket.error is not None for ticket in tickets) == 1
    for ticket, text in zip(tickets, texts, strict=True):
        assert ticket.result.ids == pieces[ticket] == text[: len(ticket.result.ids)]
        assert ticket.error is not None or ticket.result.ids == text
        assert ticket.result.stats.tokens == len(ticket.result.ids)


def test_steps_give_out_the_pieces_of_an_interrupted_one(model: Any, texts: list[list[int]]) -> None:
    """Guards who drives a batch by steps: the pieces of a round that ended in an interrupt come with the next."""
    batch = guessing(model, texts).batch(6)
    tickets = add_all(batch, streamer=Interrupting(8))
    said: dict[Ticket, list[int]] = {ticket: [] for ticket in tickets}
    while len(batch):
        with contextlib.suppress(KeyboardInterrupt):
            for ticket, piece in batch.step():
                said[ticket] += piece.tokens
    assert list(said.values()) == [ticket.result.ids for ticket in tickets]


def test_iterations_that_are_left_early_lose_no_piece(model: Any, texts: list[list[int]]) -> None:
    """Guards loops with a `break`, and loops inside loops."""
    batch = guessing(model, texts).batch(6)
    tickets = add_all(batch)
    said: dict[Ticket, list[int]] = {ticket: [] for ticket in tickets}
    for place in range(10):
        for ticket, piece in batch:
            said[ticket] += piece.tokens
            if place < 9:
                break
    assert list(said.values()) == texts


def test_requests_that_share_a_cache_are_told(model: Any) -> None:
    """Guards texts from another request's rows in their cache: one is told, the other is right."""
    speculator = Speculator.from_transformers(model, method="none")
    turn = speculator.generate(prompts()[2], max_new_tokens=5, temperature=0)
    asked = [[*prompts()[2], *turn.ids, 9, 8, 7], [*prompts()[2], *turn.ids, 3, 4]]
    texts = [speculator.generate(prompt, **GREEDY).ids for prompt in asked]
    batch = speculator.batch()
    tickets = [batch.add(prompt, cache=turn.cache, **GREEDY) for prompt in asked]
    for _ in batch:
        pass
    assert tickets[0].result.ids == texts[0]
    assert isinstance(tickets[1].error, UsageError)
    assert "cache of its own" in str(tickets[1].error)


def test_a_session_that_cannot_be_closed_harms_nobody(
    model: Any, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a round from a drafter that fails while a request leaves; the error is in that request's ticket."""
    close = GuessingSession.close

    def failing(session: GuessingSession) -> None:
        close(session)
        if session.text == texts[2]:
            raise ArithmeticError("a drafter's bug")

    monkeypatch.setattr(GuessingSession, "close", failing)
    speculator = guessing(model, texts)
    batch = speculator.batch(6)
    tickets = add_all(batch)
    for _ in batch:
        pass
    assert [ticket.result.ids for ticket in tickets] == texts
    assert [type(ticket.error) for ticket in tickets if ticket.error] == [ArithmeticError]
    assert tickets[2].error is not None
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
    tickets = add_all(batch)
    for _ in batch:
        pass
    assert [ticket.result.ids == text for ticket, text in zip(tickets, texts, strict=True)] == [
        place != 2 for place in range(len(LENGTHS))
    ]
    assert f"token {token}" in str(tickets[2].error)


def test_a_prompt_that_does_not_fit_waits_on(
    model: Any, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a request whose prompt finds no room beside others: it stays the next one, and nothing of it is lost."""
    device = Full(model.model.layers[1].mlp, monkeypatch)
    batch = guessing(model, texts, nodes=0).batch(6, keep_caches=True)
    tickets = add_all(batch)
    device.full = lambda rows: rows == 30
    with pytest.raises(OutOfMemoryError, match="30 cached"):
        batch.step()
    assert [ticket.result.cache.get_seq_length() for ticket in tickets[:3]] == [9, 1, 0]
    assert batch.stats.prefill_seconds > 0
    batch.remove(tickets[1])
    device.full = lambda _: False
    for _ in batch:
        pass
    assert [ticket.result.ids for ticket in tickets if ticket is not tickets[1]] == texts[:1] + texts[2:]


def test_a_prompt_that_fits_nowhere_fails(model: Any, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards who waits behind a prompt that has no room even alone."""
    device = Full(model.model.layers[1].mlp, monkeypatch)
    device.full = lambda rows: rows == 30
    batch = guessing(model, texts, nodes=0).batch(1)
    tickets = add_all(batch)
    for _ in batch:
        pass
    assert [ticket.result.ids for ticket in tickets] == [*texts[:2], [], *texts[3:]]
    assert isinstance(tickets[2].error, OutOfMemoryError)
    with pytest.raises(BatchError, match="OutOfMemoryError") as met:
        guessing(model, texts, nodes=0).generate_batch(prompts(), **GREEDY)
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
        tickets = add_all(batch)
        batch.step()
        batch.remove(tickets[0])
        batch.remove(tickets[0])
        with pytest.raises(UsageError, match="not in this batch"):
            other.remove(tickets[1])
        batch.step()
    batch.remove(tickets[1])
    assert all(ticket.done for ticket in tickets)
    assert speculator.drafter.opened == speculator.drafter.closed > 1


def test_a_run_is_decoded_once(model: Any, texts: list[list[int]]) -> None:
    """Guards a request from a second batch, or the same one, that would find it half decoded."""
    speculator = guessing(model, texts)
    batch, other = speculator.batch(), speculator.batch()
    run = speculator.prepare(prompts()[0], **GREEDY)
    ticket = batch.take(run)
    for again in (batch, other):
        with pytest.raises(UsageError, match="decoded before"):
            again.take(run)
    for _ in batch:
        pass
    assert ticket.result.ids == texts[0]


def test_requests_may_be_removed_from_within_a_round(model: Any, texts: list[list[int]]) -> None:
    """Guards rounds in which one request's streamer lets others leave, before and behind it."""
    batch = guessing(model, texts).batch(6, keep_caches=True)
    tickets: list[Ticket] = []

    class Removing(Interrupting):
        def put(self, ids: Any) -> None:
            self.left += 1
            if self.left == 5:
                batch.remove(tickets[0])
                batch.remove(tickets[4])

    tickets += add_all(batch, streamer=Removing())
    for _ in batch:
        pass
    for place, (ticket, text) in enumerate(zip(tickets, texts, strict=True)):
        said = ticket.result.ids
        assert ticket.error is None
        assert said == (text[: len(said)] if place in (0, 4) else text)
        assert ticket.result.cache.get_seq_length() == LENGTHS[place] + len(said) - 1


def test_failures_to_begin_count_no_token(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards counts against texts: a first token that was taken back is none."""

    def failing(drafter: NoDrafter, verified: Any) -> None:
        raise ArithmeticError("a drafter's bug")

    monkeypatch.setattr(NoDrafter, "observe", failing)
    batch = Speculator.from_transformers(model, method="none").batch(keep_caches=True)
    ticket = batch.add(prompts()[0], **GREEDY)
    assert [(each, piece.tokens) for each, piece in batch] == [(ticket, [])]
    assert (ticket.result.ids, ticket.result.stats.tokens, batch.stats.tokens) == ([], 0, 0)
    assert ticket.result.cache.get_seq_length() == 0
