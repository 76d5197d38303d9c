"""Requests recognised by their tokens, in batches as vLLM shows them."""

from __future__ import annotations

import numpy as np
import pytest

from batches import Recorder, drafted, row, row_drafter, texts_of
from speculant.integrations.rows import MISSED, EngineRow, KnownRequests


def test_a_request_is_followed() -> None:
    """One session for a request: opened with its prompt, then shown every token once."""
    drafter = Recorder()
    rows = row_drafter(drafter)
    assert drafted(rows.step([row([1, 2, 3, 10])])) == [[11, 12]]
    rows.step([row([1, 2, 3, 10, 11, 12, 13], fresh=3)])
    (session,) = drafter.sessions
    assert session.start.prompt.tolist() == [1, 2, 3]
    assert [seen.tokens.tolist() for seen in session.seen] == [[10], [11, 12, 13]]


def test_acceptance_is_recovered() -> None:
    """The accepted path is what committed tokens and draft share, without the target's own last token."""
    drafter = Recorder()
    rows = row_drafter(drafter)
    rows.step([row([1, 10])])
    rows.step([row([1, 10, 11, 50], fresh=2)])
    rows.step([row([1, 10, 11, 50, 51, 52, 53], fresh=3)])
    rows.step([row([1, 10, 11, 50, 51, 52, 53, 9])])
    assert [seen.path.tolist() for seen in drafter.sessions[0].seen] == [[], [0], [0, 1], []]
    assert [len(seen.tree) for seen in drafter.sessions[0].seen] == [0, 2, 2, 2]


def test_rows_move() -> None:
    """Rows that trade places keep their sessions."""
    drafter = Recorder()
    rows = row_drafter(drafter)
    rows.step([row([1, 10]), row([2, 20]), row([3, 30])])
    rows.step([row([3, 30, 31]), row([1, 10, 11]), row([2, 20, 21])])
    assert len(drafter.sessions) == 3
    assert texts_of(drafter) == [[1, 10, 11], [2, 20, 21], [3, 30, 31]]


def test_rows_join_and_leave() -> None:
    """A row that is gone is forgotten after a while and closed once; a new one gets a session of its own."""
    drafter = Recorder()
    rows = row_drafter(drafter, patience=3)
    rows.step([row([1, 10]), row([2, 20])])
    for step in range(5):
        text = [2, 20, *range(21, 22 + step)]
        rows.step([row(text), row([3, 30, *range(31, 32 + step)])])
    assert [session.closed for session in drafter.sessions] == [1, 0, 0]
    assert len(rows) == 2


def test_a_preempted_request_comes_back() -> None:
    """It is not shown for some steps, then its text is read again in parts, then it goes on in its old session."""
    drafter = Recorder()
    rows = row_drafter(drafter, patience=4)
    rows.step([row([1, 10]), row([2, 20])])
    for step in range(3):
        rows.step([row([1, 10, *range(11, 12 + step)])])
    rows.step([row([1, 10, 11, 12, 13, 14]), row([2, 20], fresh=0)])
    for _ in range(6):  # shown, so not forgotten
        assert drafted(rows.step([row([1, 10], fresh=0), row([2, 20], fresh=0)]))[1] == []
    assert drafted(rows.step([row([2, 20, 21])])) == [[22, 23]]
    assert drafter.sessions[1].text == [2, 20, 21]


def test_one_that_comes_back_too_late_is_new() -> None:
    """A request whose session was closed gets another one, opened with all its text."""
    drafter = Recorder()
    rows = row_drafter(drafter, patience=1)
    rows.step([row([1, 10]), row([2, 20])])
    for step in range(3):
        rows.step([row([1, 10, *range(11, 12 + step)])])
    rows.step([row([2, 20, 21])])
    assert [session.start.prompt.tolist() for session in drafter.sessions] == [[1], [2], [2, 20]]


def test_two_identical_prompts() -> None:
    """Two requests with one text have two sessions, whichever row is which, also after they part."""
    drafter = Recorder()
    rows = row_drafter(drafter)
    rows.step([row([1, 10]), row([1, 10])])
    rows.step([row([1, 10, 11]), row([1, 10, 11])])
    rows.step([row([1, 10, 11, 12]), row([1, 10, 11, 99])])
    rows.step([row([1, 10, 11, 99, 100]), row([1, 10, 11, 12, 13])])
    assert texts_of(drafter) == [[1, 10, 11, 12, 13], [1, 10, 11, 99, 100]]


def test_partial_prompts_are_left_alone() -> None:
    """A row whose prompt is still being read opens nothing and gets no draft."""
    drafter = Recorder()
    rows = row_drafter(drafter)
    assert drafted(rows.step([row([1, 2, 3], fresh=0), row([2, 20])])) == [[], [21, 22]]
    assert len(drafter.sessions) == 1


def test_steps_that_were_not_shown() -> None:
    """An engine may skip asking for drafts; what was committed meanwhile is observed as one piece."""
    drafter = Recorder()
    rows = row_drafter(drafter)
    rows.step([row([1, 10])])
    rows.step([row([1, 10, 11, 12, 13, 14], fresh=2)])
    seen = drafter.sessions[0].seen[-1]
    assert seen.tokens.tolist() == [11, 12, 13, 14]
    assert len(seen.tree) == 0
    rows.step([row([1, 10, 11, 12, 13, 14, *[5] * (MISSED + 2)])])
    assert len(drafter.sessions) == 2


def test_the_next_turn_is_a_new_request() -> None:
    """A prompt that begins with a former text and much more is a request of its own."""
    drafter = Recorder()
    rows = row_drafter(drafter)
    rows.step([row([1, 10])])
    rows.step([row([1, 10, *[7] * 300, 8])])
    assert len(drafter.sessions) == 2


def test_long_texts() -> None:
    """Texts of which not every token is compared are still distinguished by their ends and spread over the rest."""
    random = np.random.default_rng(0)
    texts = [random.integers(0, 900, 5000).tolist() for _ in range(3)]
    texts.append([*texts[0][:2500], *texts[1][2500:4800], *texts[0][4800:]])
    drafter = Recorder()
    rows = row_drafter(drafter)
    for step in range(4):
        order = [(i + step) % 4 for i in range(4)]
        rows.step([row([*texts[i], *range(100, 101 + step)]) for i in order])
    assert len(drafter.sessions) == 4
    assert [session.start.prompt.tolist() for session in drafter.sessions] == texts


def test_engines_that_name_requests() -> None:
    """A key is taken before the text; a request that was started over begins again."""
    drafter = Recorder()
    rows = row_drafter(drafter)
    rows.step([row([1, 10], key="a"), row([1, 10], key="b")])
    rows.step([row([1, 10, 12], key="b"), row([1, 10, 11], key="a")])
    assert texts_of(drafter) == [[1, 10, 11], [1, 10, 12]]
    rows.step([row([1, 9], key="a")])
    assert len(drafter.sessions) == 3


def test_absent_requests_are_bounded() -> None:
    """However many requests end at once, only so many are kept."""
    drafter = Recorder()
    rows = row_drafter(drafter, max_absent=5)
    rows.step([row([1000 + i, i]) for i in range(50)])
    rows.step([row([1, 2])])
    assert len(rows) == 6
    assert sum(session.closed for session in drafter.sessions) == 45


def test_an_ended_text_is_not_waited_for() -> None:
    """A request that is gone and ended with an end token is closed at once, so that others learn from it."""
    drafter = Recorder()
    rows = row_drafter(drafter, ends=frozenset({2}))
    rows.step([row([1, 10]), row([3, 30])])
    rows.step([row([1, 10, 2]), row([3, 30, 31])])
    rows.step([row([3, 30, 31, 32])])
    assert [session.closed for session in drafter.sessions] == [1, 0]


@pytest.mark.parametrize("seed", range(6))
def test_random_schedules(seed: int) -> None:
    """Whatever joins, leaves, moves, is preempted or skipped: every session holds exactly the text of one request."""
    random = np.random.default_rng(seed)
    drafter = Recorder(lambda text: [(text[-1] * 7 + j) % 50 for j in range(3)])
    rows = row_drafter(drafter, patience=1000, max_absent=1000)
    texts: dict[int, list[int]] = {}
    paused: set[int] = set()
    for step in range(80):
        if step < 60 and random.random() < 0.4:
            texts[step] = random.integers(0, 4, random.integers(1, 6)).tolist()
        running = [i for i in texts if i not in paused]
        random.shuffle(running)
        shown = []
        for i in running:
            fresh = int(random.integers(0, 4)) if random.random() < 0.9 else 0
            texts[i] += random.integers(0, 4, fresh).tolist()
            shown.append(row(texts[i], fresh=fresh))
        rows.step(shown)
        for i in list(texts):
            if random.random() < 0.1:
                paused ^= {i}
    started = [text for i, text in texts.items() if any(session.text == text for session in drafter.sessions)]
    assert len(drafter.sessions) <= len(texts)
    assert len(started) >= 0.9 * len(drafter.sessions)


def test_the_engines_memory_is_not_kept() -> None:
    """Rows are views of memory that the engine overwrites; the text must not change with it."""
    known = KnownRequests[None]()
    memory = np.array([1, 2, 3, 4], np.int32)
    kept = known.add(EngineRow(memory[:3], 1, 8), 0, None)
    memory[:] = 9
    assert kept.text.tolist() == [1, 2, 3]
