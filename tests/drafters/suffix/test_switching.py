"""SAM-Decoding beside another method: who drafts, and that both stay in step with the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models import tiny_model
from rounds import budget, commit, start
from speculant import Speculator
from speculant.core.errors import UsageError
from speculant.drafters.suffix.sam import SamDrafter
from speculant.drafters.suffix.switching import SwitchingDrafter, SwitchingSession
from speculant.registry import BuildContext, build_drafter

REPEATING = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5]


def drafter(**settings: Any) -> SwitchingDrafter:
    """Return `sam` beside `lookup`, whose matches may be shorter."""
    found = build_drafter("sam", BuildContext(vocabulary=61, settings={"auxiliary": "lookup", **settings}))
    assert isinstance(found, SwitchingDrafter)
    return found


def test_a_match_is_continued_from_the_threshold_on() -> None:
    """Guards the switch: five tokens match, so a threshold of 5 continues them and one of 6 asks the other method."""
    for threshold, continued in ((5, True), (6, False)):
        session = drafter(threshold=threshold).open(start(REPEATING))
        assert isinstance(session, SwitchingSession)
        assert session.propose(budget(2)).tokens.tolist() == [6, 7]
        assert session.continued == continued
        assert session.forecast(4) is None
        commit(session, 6, 9)
        assert len(session.propose(budget(2))) == 0
        assert not session.continued
        session.close()


def test_drafts_of_a_batch_come_from_both() -> None:
    """Guards batches: the other method is asked once, for those without a long match."""
    held = drafter(threshold=5)
    asked = list[int]()
    propose = held.auxiliary.propose
    held.auxiliary.propose = lambda sessions, budgets: asked.append(len(sessions)) or propose(sessions, budgets)  # type: ignore
    sessions = [held.open(start(prompt)) for prompt in (REPEATING, [1, 2, 3, 9, 1, 2, 3], [4, 4, 8, 4, 4])]
    drafts = held.propose(sessions, [budget(1)] * 3)
    assert [draft.tokens.tolist() for draft in drafts] == [[6], [9], [8]]
    assert asked == [2]


def test_memories_are_those_of_sam(tmp_path: Path) -> None:
    """Guards memory files: what is saved are the automata, and requests of both are learned."""
    held = drafter()
    session = held.open(start(REPEATING))
    commit(session, 6, 7)
    session.close()
    held.save(tmp_path / "memory")
    alone = SamDrafter(vocabulary=61)
    alone.load(tmp_path / "memory")
    assert alone.tokens == len(REPEATING) + 2
    other = drafter()
    other.load(tmp_path / "memory")
    assert other.memory_bytes >= alone.memory_bytes


@pytest.mark.parametrize("auxiliary", ["recycling", "mix", "logitspec"])
def test_texts_are_the_targets(auxiliary: str) -> None:
    """Guards what each method needs of the target's passes, alone and in batches, with automatic sizes too."""
    target = tiny_model("llama", num_hidden_layers=1)
    prompts = [REPEATING, [7, 8, 9]]
    plain = [
        target.generate(torch.tensor([each]), max_new_tokens=24, do_sample=False)[0, len(each) :].tolist()
        for each in prompts
    ]
    for nodes in (8, "auto"):
        speculator = Speculator.from_transformers(
            target, method="sam", nodes=nodes, settings={"auxiliary": auxiliary, "threshold": 2}
        )
        assert [speculator.generate(each, max_new_tokens=24, temperature=0).ids for each in prompts] == plain
        found = speculator.generate_batch(prompts, size=2, max_new_tokens=24, temperature=0)
        assert [each.ids for each in found] == plain


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"auxiliary": "draft-model"}, "sam-head"),
        ({"auxiliary": "none"}, "cannot be combined"),
        ({"auxiliary": "eagle"}, "sam-head"),
        ({"auxiliary": "mix", "threshold": 0}, "at least 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], reason: str) -> None:
    """Guards against methods that need what `sam` has not, before the first request."""
    with pytest.raises(UsageError, match=reason):
        build_drafter("sam", BuildContext(vocabulary=61, settings=settings))
