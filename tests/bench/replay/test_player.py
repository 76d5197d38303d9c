"""Replaying recordings: what is counted, what drafters observe, and in which order."""

from __future__ import annotations

from speculant.bench.replay.player import replay
from speculant.core.drafter import Budget
from speculant.core.tree import DraftTree
from speculant.drafters.none import NoDrafter

from scripted import Scripted, ScriptedSession, recording  # isort: skip


def test_plain_decoding_is_a_token_a_round() -> None:
    """Every output id counts, the last one too."""
    result = replay(NoDrafter(), [recording([4, 5, 6])], nodes=8)
    assert (result.tokens, result.rounds, result.mat) == (3, 3, 1.0)
    assert result.drafting is not None
    assert result.drafting.memory_bytes is None
    assert result.drafting.deepest.tolist() == [0, 0, 0]


def test_the_last_round_counts_what_was_left() -> None:
    """A draft that goes on beyond the end gains nothing from it."""
    drafter = Scripted(DraftTree.from_paths([[4, 4, 4, 4]]))
    result = replay(drafter, [recording([4, 4, 4, 4, 4, 4, 4])], nodes=8)
    assert drafter.seen == [[4, 4, 4, 4, 4], [4, 4]]
    assert (result.tokens, result.rounds, result.mat) == (7, 2, 3.5)
    assert result.accepted.tolist() == [4, 1]


def test_columns() -> None:
    """Rounds are distinguished by request, and the budget is kept."""
    drafter = Scripted(DraftTree.from_paths([[4, 5], [6]]))
    result = replay(drafter, [recording([4, 9], "x", [1, 2]), recording([7], "y", [3])], nodes=2)
    assert drafter.prompts == [[1, 2], [3]]
    assert drafter.closed == 2
    assert (result.categories, result.prompt_tokens.tolist()) == (("x", "y"), [2, 1])
    assert (result.request.tolist(), result.accepted.tolist()) == ([0, 1], [1, 0])
    drafting = result.drafting
    assert drafting is not None
    assert (drafting.nodes.tolist(), drafting.deepest.tolist()) == ([1, 0], [1, 0])
    assert len(drafting.propose_seconds) == len(drafting.learn_seconds) == len(drafting.open_seconds) == 2
    assert drafting.memory_bytes == 7


def test_chains_are_asked_for_as_for_an_engine_that_verifies_nothing_else() -> None:
    """A wider tree is searched for the best chain, which is no longer than what was asked for."""
    asked: list[tuple[int, int, bool]] = []

    class Asked(ScriptedSession):
        def propose(self, budget: Budget) -> DraftTree:
            asked.append((budget.nodes, budget.depth, budget.trees))
            return super().propose(budget)

    drafter = Scripted(DraftTree.from_paths([[9], [4, 5, 6, 7]], [0.5, 0.4]))
    drafter.open = lambda _start: Asked(drafter)  # type: ignore[method-assign]
    result = replay(drafter, [recording([4, 5, 6, 7, 4, 5])], nodes=3, chain=True)
    assert asked[0] == (12, 3, False)
    assert result.accepted.tolist() == [3, 1]
    assert result.drafting is not None
    assert result.drafting.nodes.tolist() == result.drafting.deepest.tolist() == [3, 1]
    asked.clear()
    replay(drafter, [recording([4, 5, 6, 7])], nodes=3)
    assert asked[0] == (3, 3, True)


def test_memory_is_kept_unless_renewed() -> None:
    """One drafter is used for every request, or each gets its own."""
    made: list[Scripted] = []

    def renew() -> Scripted:
        made.append(Scripted(DraftTree.empty()))
        return made[-1]

    first = renew()
    told: list[int] = []
    recordings = [recording([4, 5]), recording([6]), recording([7])]
    replay(first, recordings, nodes=2, renew=renew, advance=told.append)
    assert [drafter.prompts for drafter in made] == [[[1]]] * 3
    assert told == [2, 1, 1]
    kept = Scripted(DraftTree.empty())
    replay(kept, recordings, nodes=2)
    assert len(kept.prompts) == 3
