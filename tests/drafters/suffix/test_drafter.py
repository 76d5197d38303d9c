"""SuffixDecoding: what is drafted from the request and from past outputs, and what is remembered."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from rounds import budget, commit, start
from speculant.core.errors import CorruptMemoryError, ForeignMemoryError
from speculant.drafters.suffix.drafter import SuffixDrafter, SuffixSettings
from tables import ids


def drafter(**options: object) -> SuffixDrafter:
    """Return an empty drafter."""
    return SuffixDrafter(**{"vocabulary": 1000, "tokenizer": "t", **options})


def request(held: SuffixDrafter, prompt: list[int], output: list[int]) -> None:
    """Play a whole request."""
    session = held.open(start(ids(prompt)))
    commit(session, *output)
    session.close()


def test_the_prompt_and_the_output_are_searched() -> None:
    """Within a request a repeated context is continued, by four nodes per token that matches."""
    session = drafter().open(start([1, 2, 3, 4, 5, 6, 7, 8, 9, 1]))
    assert session.propose(budget(64)).tokens.tolist() == [2, 3, 4, 5]
    commit(session, 2)
    assert session.propose(budget(64)).tokens.tolist() == [3, 4, 5, 6, 7, 8, 9, 1]
    assert session.propose(budget(3)).tokens.tolist() == [3, 4, 5]
    assert len(session.propose(budget(0))) == 0


def test_outputs_are_remembered_and_prompts_are_not() -> None:
    """The shared tree learns what was put out, when the request is closed."""
    held = drafter()
    request(held, [100, 101, 102, 103], [1, 2, 3, 4])
    assert held.open(start([9, 2])).propose(budget(8)).tokens.tolist() == [3, 4]
    assert len(held.open(start([9, 101])).propose(budget(8))) == 0


def test_the_better_score_wins() -> None:
    """What past outputs did often counts for more than what the request did once."""
    held = drafter()
    for _ in range(3):
        request(held, [0], [1, 2, 3, 4])
    assert held.open(start([1, 7, 8, 9, 1])).propose(budget(3)).tokens.tolist() == [2, 3, 4]
    held = drafter()
    assert held.open(start([1, 7, 8, 9, 1])).propose(budget(3)).tokens.tolist() == [7, 8, 9]


def test_estimates_leave_room_for_the_unseen() -> None:
    """A context seen once before is an even chance, twice before two in three, wherever it was seen."""
    held = drafter()
    request(held, [0], [1, 2])
    assert held.open(start([1])).propose(budget(1)).weights.tolist() == [0.5]
    request(held, [0], [1, 2])
    assert held.open(start([1])).propose(budget(1)).weights[0] == np.float32(2 / 3)
    assert drafter().open(start([1, 2, 1, 2, 1])).propose(budget(1)).weights[0] == np.float32(2 / 3)


def test_settings_bound_the_draft() -> None:
    """Factor, depth, size and least probability each limit the draft."""
    text = ids([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])

    def drafted(**settings: float) -> list[int]:
        return drafter(settings=SuffixSettings(**settings)).open(start(text)).propose(budget(64)).tokens.tolist()

    assert drafted(factor=1.0) == [3, 4]
    assert drafted(depth=4) == [3, 4, 5]
    assert drafted(max_nodes=3) == [3, 4, 5]
    assert drafted(min_probability=0.5) == []


def test_a_request_is_learned_once() -> None:
    """Closing twice, as a stream that is dropped and collected does, must not count twice."""
    held = drafter()
    session = held.open(start([0]))
    commit(session, 1, 2)
    session.close()
    session.close()
    assert held.open(start([1])).propose(budget(1)).weights.tolist() == [0.5]


@pytest.mark.parametrize("prompt", [[], [5]])
def test_short_prompts(prompt: list[int]) -> None:
    """Nothing is known yet, and nothing breaks."""
    session = drafter().open(start(ids(prompt)))
    assert len(session.propose(budget(8))) == 0
    commit(session, 5, 6, 5)
    assert session.propose(budget(1)).tokens.tolist() == [6]


def test_the_limit_holds_in_use() -> None:
    """However much is put out, the memory stays below the user's number and goes on drafting."""
    held = drafter(memory_limit=100_000)
    random = np.random.default_rng(0)
    for _ in range(30):
        request(held, [0], random.integers(0, 1000, 200).tolist())
        assert held.memory_bytes <= 100_000
    request(held, [0], [1, 2, 3, 4])
    assert held.open(start([1, 2])).propose(budget(2)).tokens.tolist() == [3, 4]


def test_saving_and_loading(tmp_path: Path) -> None:
    """A loaded drafter drafts what the saved one did; a damaged or foreign file leaves what there was."""
    held = drafter()
    request(held, [0], [1, 2, 3, 4])
    held.save(tmp_path / "m")
    again = drafter()
    again.load(tmp_path / "m")
    before, after = (d.open(start([8, 1, 2])).propose(budget(8)) for d in (held, again))
    assert before.tokens.tolist() == after.tokens.tolist() == [3, 4]
    assert before.weights.tolist() == after.weights.tolist()
    with pytest.raises(ForeignMemoryError):
        drafter(tokenizer="other").load(tmp_path / "m")
    data = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(data[:-60])
    with pytest.raises(CorruptMemoryError):
        again.load(tmp_path / "m")
    assert again.open(start([8, 1, 2])).propose(budget(8)).tokens.tolist() == [3, 4]


@pytest.mark.slow  # replays a whole recording
def test_it_reaches_the_authors_package() -> None:
    """On a recorded file it gets what the published implementation got there, within two per cent."""
    if "SPECULANT_DATA" not in os.environ:
        pytest.skip("SPECULANT_DATA names no folder with recorded outputs")
    from speculant.bench.replay.player import replay
    from speculant.bench.replay.traces import read_recordings

    path = Path(os.environ["SPECULANT_DATA"]) / "traces" / "llama31-8b-gsm8k.jsonl"
    played = replay(SuffixDrafter(vocabulary=128_256), list(read_recordings(path)), nodes=64)
    assert played.mat > 0.98 * 1.80
