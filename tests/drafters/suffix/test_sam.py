"""SAM-Decoding: whose match drafts, and what is remembered."""

from __future__ import annotations

from pathlib import Path
from weakref import ref

import numpy as np
import pytest

from rounds import budget, commit, start
from speculant.core.errors import CorruptMemoryError, ForeignMemoryError
from speculant.drafters.suffix.sam import SamDrafter, SamSettings
from tables import ids


def drafter(**options: object) -> SamDrafter:
    """Return an empty drafter."""
    return SamDrafter(**{"vocabulary": 1000, "tokenizer": "t", **options})


def request(held: SamDrafter, prompt: list[int], output: list[int]) -> None:
    """Play a whole request."""
    session = held.open(start(ids(prompt)))
    commit(session, *output)
    session.close()


def test_the_latest_occurrence_is_continued() -> None:
    """The draft is the chain behind the last place where the longest suffix stood."""
    session = drafter().open(start([1, 2, 3, 1, 2, 4, 1, 2]))
    tree = session.propose(budget(64))
    assert tree.tokens.tolist() == [4, 1, 2]
    assert tree.parents.tolist() == [-1, 0, 1]
    commit(session, 3)
    assert session.propose(budget(1)).tokens.tolist() == [1], "the longer match, though it is older"
    assert len(session.propose(budget(0))) == 0


def test_weights_follow_the_rule_of_succession() -> None:
    """A match of L tokens goes on for i more with probability L / (L + i)."""
    session = drafter().open(start([1, 2, 3, 4, 5, 1, 2]))
    assert session.propose(budget(3)).weights.tolist() == pytest.approx([2 / 3, 2 / 4, 2 / 5])


def test_past_requests_are_continued() -> None:
    """Prompt and output of a closed request are known, across the seam between them too."""
    held = drafter()
    request(held, [1, 2, 3], [4, 5])
    assert held.open(start([9, 2, 3])).propose(budget(8)).tokens.tolist() == [4, 5]
    assert len(held.open(start([9])).propose(budget(8))) == 0


def test_a_request_that_waits_keeps_no_dropped_generation() -> None:
    """Else requests that stay open would each hold up to the limit; this one goes on with what is remembered now."""
    random = np.random.default_rng(0)
    held = drafter(memory_limit=100_000)
    waiting = held.open(start([7]))
    generation = ref(held._history.young)
    for _ in range(40):
        request(held, random.integers(0, 1000, 100).tolist(), [1, 2, 3, 4])
    assert generation() is None
    assert len(waiting.propose(budget(8))) == 0
    commit(waiting, 1, 2, 3)
    assert waiting.propose(budget(1)).tokens.tolist() == [4]


def test_the_request_is_preferred_by_the_bias() -> None:
    """Past text must match by more than five tokens longer."""
    held = drafter()
    request(held, [10, 11, 12, 13, 14, 15, 16], [20])
    own = [16, 30]
    assert held.open(start([*own, 11, 12, 13, 14, 15, 16])).propose(budget(1)).tokens.tolist() == [30]
    assert held.open(start([*own, 10, 11, 12, 13, 14, 15, 16])).propose(budget(1)).tokens.tolist() == [20]
    free = drafter(settings=SamSettings(bias=0))
    request(free, [15, 16], [20])
    assert free.open(start([*own, 15, 16])).propose(budget(1)).tokens.tolist() == [20]


def test_a_session_follows_past_text_as_it_grows() -> None:
    """Requests that end while another runs help it from their end on, whatever generation they are in."""
    held = drafter()
    session = held.open(start([1, 2, 3]))
    request(held, [2, 3], [4, 5, 6])
    commit(session, 2, 3)
    assert session.propose(budget(1)).tokens.tolist() == [2], "its own text is preferred"
    other = held.open(start([7, 4]))
    request(held, [7, 4], [8])
    commit(other, 5)
    assert other.propose(budget(1)).tokens.tolist() == [6]


def test_the_draft_is_no_longer_than_published() -> None:
    """Forty tokens at the most."""
    held = drafter()
    request(held, list(range(100, 200)), [1])
    assert held.open(start([100])).propose(budget(64)).tokens.tolist() == list(range(101, 141))


@pytest.mark.parametrize("prompt", [[], [5]])
def test_short_prompts(prompt: list[int]) -> None:
    """Nothing is known yet, and nothing breaks."""
    session = drafter().open(start(ids(prompt)))
    assert len(session.propose(budget(8))) == 0
    commit(session, 5, 6, 5)
    assert session.propose(budget(1)).tokens.tolist() == [6]


def test_the_limit_holds_in_use() -> None:
    """Through many generations the memory stays below the user's number, and running requests go on."""
    held = drafter(memory_limit=100_000)
    random = np.random.default_rng(0)
    running = held.open(start([1, 2]))
    for _ in range(30):
        request(held, [0], random.integers(0, 1000, 200).tolist())
        assert held.memory_bytes <= 100_000
        running.propose(budget(8))
        commit(running, int(random.integers(0, 1000)))
    request(held, [0], [1, 2, 3, 4])
    assert held.open(start([1, 2])).propose(budget(2)).tokens.tolist() == [3, 4]


def test_saving_and_loading(tmp_path: Path) -> None:
    """A loaded drafter drafts what the saved one did; a damaged or foreign file leaves what there was."""
    held = drafter()
    request(held, [0], [1, 2, 3, 4])
    held.save(tmp_path / "m")
    again = drafter()
    running = again.open(start([1]))
    again.load(tmp_path / "m")
    assert again.open(start([8, 1, 2])).propose(budget(8)).tokens.tolist() == [3, 4]
    commit(running, 2)
    assert running.propose(budget(8)).tokens.tolist() == [3, 4]
    with pytest.raises(ForeignMemoryError):
        drafter(tokenizer="other").load(tmp_path / "m")
    data = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(data[:-60])
    with pytest.raises(CorruptMemoryError):
        again.load(tmp_path / "m")
    assert again.open(start([8, 1, 2])).propose(budget(8)).tokens.tolist() == [3, 4]
