"""A text on a head: its rows stay in step with the target's text, however drafts are grown, verified and given up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heads import random_head
from models import VOCABULARY, tiny_model
from speculant.core.drafter import EMPTY_PATH, SessionRequest, Verified
from speculant.core.sampler import Sampling
from speculant.core.tree import DraftTree
from speculant.drafters.heads.head import head_needs
from speculant.drafters.heads.kept import KEPT, KeptStates
from speculant.drafters.heads.text import HeadText
from trees import random_draft

PROMPT = [5, 9, 14, 3, 8]


def states() -> KeptStates:
    """Return the states of a random head on a tiny model."""
    head = random_head(tiny_model("llama"))
    return KeptStates(head.head, head.target)


def hidden_of(tokens: list[int]) -> Tensor:
    """Return states [n, 1, D] that depend on the token and its position alone."""
    rows = [torch.randn(1, 32, generator=torch.Generator().manual_seed(100 * i + t)) for i, t in enumerate(tokens)]
    return torch.stack(rows)


def begun(kept: KeptStates, prompt: list[int], root: int, *, cached: int = 0) -> HeadText:
    """Return a text whose prompt was observed, but for the first `cached` tokens."""
    text = HeadText(kept, SessionRequest(prompt=np.array(prompt, np.int32)))
    hidden = hidden_of(prompt)[cached:]
    text.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=np.array([root], np.int32), hidden=hidden))
    return text


def ended(text: HeadText) -> None:
    """Let a text draft, and end its request."""
    text.begin()
    text.release()


def committed(text: HeadText, draft: DraftTree, path: list[int], bonus: int) -> None:
    """Let a text observe a round."""
    tokens = [*draft.tokens[path].tolist(), bonus]
    rows = [text.tokens + draft.tokens[draft.path(node)].tolist() for node in range(-1, len(draft))]
    hidden = torch.stack([hidden_of(row)[-1] for row in rows])
    text.observe(Verified(tree=draft, path=np.array(path, np.int32), tokens=np.array(tokens, np.int32), hidden=hidden))


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_a_text_read_at_once(seed: int) -> None:
    """Guards step: after random drafts, accepted and rejected, q is that of a text that was never drafted for."""
    random, kept = np.random.default_rng(seed), states()
    text = begun(kept, PROMPT, 7)
    for _ in range(6):
        draft = random_draft(random, 7, VOCABULARY)
        text.begin()
        for _ in range(int(random.integers(3))):  # drafted again and again, in part or in another order
            text.begin()
            text.read(draft.tokens[:4].tolist(), draft.parents[:4].tolist())
        leaf = int(random.integers(-1, len(draft)))
        committed(text, draft, draft.path(leaf).tolist() if leaf >= 0 else [], int(random.integers(3, VOCABULARY)))
    again = begun(kept, text.tokens[:-1], text.tokens[-1])
    torch.testing.assert_close(text.begin(), again.begin(), atol=1e-5, rtol=1e-4)
    assert text.state is not None
    assert text.state.length == len(text.tokens) - 1


def test_nodes_are_read_in_any_order() -> None:
    """Guards unions: a whole tree, depth first, in one call is what its levels are in several."""
    text = begun(states(), PROMPT, 7)
    text.begin()
    tokens, parents = [4, 6, 8, 9, 10], [-1, 0, 1, 0, -1]
    rows, whole = text.read(tokens, parents)
    assert rows == [0, 1, 2, 3, 4]
    assert text.rows == 5
    further, q = text.read([11], [2])
    assert further == [5]
    text.begin()
    assert text.rows == 0
    for path, expected in (([4], whole[0]), ([4, 6], whole[1]), ([4, 6, 8], whole[2]), ([10], whole[4])):
        text.begin()
        alone = [text.read([token], [place - 1])[1] for place, token in enumerate(path)]
        torch.testing.assert_close(alone[-1][0], expected, atol=1e-6, rtol=1e-4)
    text.begin()
    for place, token in enumerate([4, 6, 8, 11]):
        last = text.read([token], [place - 1])[1]
    torch.testing.assert_close(last, q, atol=1e-6, rtol=1e-4)


def test_a_draft_vocabulary_has_no_other_tokens() -> None:
    """Guards reduced vocabularies: q is 0 outside, and logits stand at the target's own ids."""
    kept = states()
    head: Any = kept.head
    text = begun(kept, PROMPT, 7)
    [whole] = text.begin()
    ids = torch.tensor([3, 8, 40])
    head.ids = ids
    narrow = text.distributions(whole.log()[None, ids])[0]
    torch.testing.assert_close(narrow[ids], whole[ids] / whole[ids].sum())
    assert narrow.count_nonzero() == 3
    assert len(narrow) == VOCABULARY


def test_q_is_warped_as_the_target_is() -> None:
    """Guards sampled drafts: temperature and cuts are those of the request."""
    kept = states()
    [q] = begun(kept, PROMPT, 7).begin()
    text = HeadText(
        kept, SessionRequest(prompt=np.array(PROMPT, np.int32), sampling=Sampling(temperature=0.5, top_k=4))
    )
    text.observe(
        Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=np.array([7], np.int32), hidden=hidden_of(PROMPT))
    )
    [warped] = text.begin()
    best = q.topk(4).indices
    torch.testing.assert_close(warped[best], (q[best] ** 2) / (q[best] ** 2).sum())
    assert warped.count_nonzero() == 4


def test_a_next_turn_finds_the_rows_of_the_last() -> None:
    """Guards conversations: rows of cached tokens are found by the text, and equal those computed anew."""
    kept = states()
    first = begun(kept, PROMPT, 7)
    committed(first, DraftTree.empty(), [], 12)
    ended(first)
    first.release()
    assert len(kept) == 1
    longer = [*PROMPT, 7, 12, 30, 31]
    second, anew = begun(kept, longer, 33, cached=6), begun(states(), longer, 33)
    assert not len(kept)
    torch.testing.assert_close(second.begin(), anew.begin(), atol=1e-6, rtol=1e-4)


def test_another_text_does_not_find_them() -> None:
    """Guards against rows of another conversation: the text lacks them, and drafts from what it has."""
    kept = states()
    ended(begun(kept, PROMPT, 7))
    other = begun(kept, [5, 9, 14, 4, 8, 20], 7, cached=4)
    assert len(kept) == 1
    assert other.begin().shape == (1, VOCABULARY)
    assert other.known_state.length == 6


def test_rows_that_are_missing_stay_missing() -> None:
    """Guards positions: a kept state that lacks more rows than the turn's cache is not used for it."""
    kept = states()
    ended(begun(kept, [*PROMPT, 20, 21], 7, cached=5))
    text = begun(kept, [*PROMPT, 20, 21], 7, cached=2)
    torch.testing.assert_close(text.begin(), begun(states(), [*PROMPT, 20, 21], 7, cached=2).begin())
    assert text.known_state.length == 7


@pytest.mark.parametrize("together", [True, False])
def test_a_text_begins_anew_after_a_pause(together: bool) -> None:
    """Guards resting heads: of what was committed without states there are no rows, and later ones stay in place."""
    text = begun(states(), PROMPT, 7)
    text.begin()
    if together:
        text.follow([12, 30])
    else:
        for token in (12, 30):
            tokens = np.array([token], np.int32)
            text.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=tokens))
    committed(text, DraftTree.empty(), [], 31)
    expected = begun(states(), [*PROMPT, 7, 12, 30], 31, cached=7)
    torch.testing.assert_close(text.begin(), expected.begin())
    assert text.known_state.length == expected.known_state.length == 8


def test_a_text_without_drafts_is_not_read() -> None:
    """Guards resting heads: a request for which no draft was asked costs no pass of the head, nor is it kept."""
    kept = states()
    text = begun(kept, PROMPT, 7)
    committed(text, DraftTree.empty(), [], 12)
    assert text.known_state.length == 0
    text.release()
    assert not len(kept)


@pytest.mark.parametrize("together", [True, False])
def test_a_head_that_reads_the_text_rests_without_passes(together: bool) -> None:
    """Guards resting heads: rounds without drafts wait, and are then read in one pass, as if read at once."""
    kept = text_states()
    text = begin_text(kept, PROMPT, 7)
    if together:
        text.follow([4, 6, 11])
    else:
        for token in (4, 6, 11):
            commit_plainly(text, token)
    assert text.known_state.length == 0
    torch.testing.assert_close(text.begin(), begin_text(kept, [*PROMPT, 7, 4, 6], 11).begin(), atol=1e-5, rtol=1e-4)
    assert text.known_state.length == len(text.tokens) - 1


def test_a_head_that_reads_the_text_reads_nothing_for_nobody() -> None:
    """Guards "never slower": neither pauses nor the end of a request cost a pass of a head whose states are dropped."""
    kept = text_states()
    assert head_needs(kept.head).rests(2)
    text = begin_text(kept, PROMPT, 7)
    text.begin()
    state = text.known_state
    commit_plainly(text, 4)
    text.release()
    assert state.length == len(PROMPT)
    assert not len(kept)


def text_states() -> KeptStates:
    """Return the states of a random head that reads the text."""
    head = random_head(tiny_model("llama"), "specdec")
    return KeptStates(head.head, head.target)


def begin_text(kept: KeptStates, prompt: list[int], root: int) -> HeadText:
    """Return a text whose prompt was observed."""
    text = HeadText(kept, SessionRequest(prompt=np.array(prompt, np.int32)))
    commit_plainly(text, root)
    return text


def commit_plainly(text: HeadText, token: int) -> None:
    """Let a text observe a round without a draft and without states."""
    text.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=np.array([token], np.int32)))


def test_states_that_wait_for_long_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards memory: those of a long prompt wait for one draft; without it they are given up, and drafts go on."""
    monkeypatch.setattr("speculant.drafters.heads.text._UNREAD", 4)
    text = begun(states(), PROMPT, 7)
    assert text.unread == len(PROMPT)
    committed(text, DraftTree.empty(), [], 12)
    assert text.unread == 1
    expected = begun(states(), [*PROMPT, 7], 12, cached=len(PROMPT))
    torch.testing.assert_close(text.begin(), expected.begin())


def test_states_that_wait_hold_no_others() -> None:
    """Guards memory in batches, whose passes return the states of all texts in one tensor."""
    text, rows = begun(states(), PROMPT, 7), hidden_of([*range(40)])
    for token in (12, 13):
        tokens = np.array([token], np.int32)
        text.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=tokens, hidden=rows[token : token + 1]))
    held = [part.untyped_storage().nbytes() for part in text._hidden]
    assert held[:2] == [rows[: len(PROMPT)].nbytes, rows[:1].nbytes]


def test_states_of_interrupted_texts_are_dropped() -> None:
    """Guards Ctrl-C between the state and the text: rows that may hold anything are not kept."""
    kept = states()
    text = begun(kept, PROMPT, 7)
    text.begin()
    with torch.inference_mode():
        text.known_state.extend(hidden_of([7])[-1:], torch.tensor([9]))
    text.release()
    assert not len(kept)


def test_only_the_last_states_are_kept() -> None:
    """Guards memory in servers."""
    kept = states()
    for token in range(KEPT + 3):
        ended(begun(kept, [*PROMPT, token], 7))
    assert len(kept) == KEPT
