"""Drafts through text: alignment, the draft model's cache, and the ends of drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models import tiny_model
from speculant.core.drafter import Budget, SessionRequest, Verified
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.models.token_bytes import TokenBytes
from speculant.drafters.models.translation import Translation
from speculant.drafters.models.uag import UniversalDrafter, UniversalSession, UniversalSettings
from speculant.drafters.models.vocabulary import share_vocabulary
from speculant.engines.hf.engine import HFEngine
from vocabularies import byte_level, sentencepiece

OURS, THEIRS = 320, 340


class Scripted:
    """A draft model's engine whose greedy text is given, and a record of what its caches hold."""

    def __init__(self, text: str, *, end: int | None = 2, positions: int = 10**6) -> None:
        draft = TokenBytes(sentencepiece())
        self.script = [*draft.begin(text.encode()), *([end] if end is not None else [])]
        self.positions = positions
        self.passes = list[int]()

    def open(self, prompt: np.ndarray) -> ScriptedCache:
        """Return a cache."""
        return ScriptedCache(self, prompt.tolist())


class ScriptedCache:
    """A chain whose next token is the script's at the position, whatever stands before it."""

    def __init__(self, engine: Scripted, prompt: list[int]) -> None:
        self.engine, self.committed, self.rows = engine, prompt, list[int]()
        self.prompt, self.read = list(prompt), False

    @property
    def depth(self) -> int:
        """What positions have room for."""
        return max(0, self.engine.positions - 1 - len(self.committed))

    @property
    def unread(self) -> int:
        """Tokens of the prompt until it is read."""
        return 0 if self.read else len(self.prompt)

    def prefill(self) -> None:
        """Read the prompt."""
        self.read = True

    def forward(self, tokens: np.ndarray, parents: np.ndarray) -> Any:
        """Append a chain."""
        assert parents.tolist() == list(range(len(self.rows) - 1, len(self.rows) + len(tokens) - 1))
        self.rows += tokens.tolist()
        assert len(self.rows) <= self.depth + 1
        self.engine.passes.append(len(tokens))
        place = len(self.committed) + len(self.rows)
        script = self.engine.script
        logits = torch.zeros(len(tokens), THEIRS)
        logits[-1, script[place] if place < len(script) else 2] = 9.0
        return type("Pass", (), {"logits": logits})

    def keep(self, rows: range) -> None:
        """Commit the first rows."""
        assert list(rows) == list(range(len(rows)))
        self.committed, self.rows = self.committed + self.rows[: len(rows)], []

    def rollback(self) -> None:
        """Drop all rows."""
        self.rows = []

    def release(self) -> None:
        """Free nothing."""


@pytest.fixture(scope="module")
def translation() -> Translation:
    """From a byte-level vocabulary to one of SentencePiece."""
    target, draft = TokenBytes(byte_level()), TokenBytes(sentencepiece())
    shared = share_vocabulary(target, draft, target_size=OURS, draft_size=THEIRS)
    return Translation(target, draft, shared, draft_size=THEIRS)


def ids(text: str) -> list[int]:
    """Return a text in the target's tokens."""
    return list(byte_level()(text)["input_ids"])


def opened(engine: Any, translation: Translation, prompt: str, **settings: int) -> Any:
    """Return a session after a prompt."""
    drafter = UniversalDrafter(engine.open, translation=translation, settings=UniversalSettings(**settings))
    return drafter.open(SessionRequest(prompt=np.array(ids(prompt), np.int32)))


def commit(session: UniversalSession, tokens: list[int]) -> None:
    """Let a session see committed tokens, none of them drafted."""
    tree = DraftTree.empty()
    session.observe(Verified(tree=tree, path=np.empty(0, np.int32), tokens=np.array(tokens, np.int32)))


BUDGET = Budget(nodes=30, depth=30)
STORY = "Once upon a time there was a little girl who liked the dog. The bird sang, and the girl ran home."


def test_drafts_are_the_texts_own_tokens(translation: Translation) -> None:
    """Guards both encodings: after every beginning of a text the draft is the target's encoding of what follows."""
    text, prompt = ids(STORY), ids("Once upon")
    assert text[: len(prompt)] == prompt
    session = opened(Scripted(STORY), translation, "Once upon", length=64)
    assert len(session.propose(BUDGET)) == 0
    place = len(prompt)
    for step in (1, 2, 3, 1, 5, 1, 1, 2, 7, 4):
        commit(session, text[place : place + step])
        place += step
        tree = session.propose(BUDGET)
        rest = [*text[place:], translation.target.specials["<|end|>"]]
        assert tree.tokens.tolist() == rest[: len(tree)]
        assert len(tree) == min(30, len(rest))
        assert tree.parents.tolist() == list(range(-1, len(tree) - 1))
        assert tree.proposal is None
        again = session.propose(BUDGET)
        assert np.array_equal(again.tokens, tree.tokens)


def test_the_prompt_is_read_with_the_first_draft(translation: Translation) -> None:
    """Guards "never slower": a text for which no draft is asked costs no pass over its prompt."""
    session, text = opened(Scripted(STORY), translation, "Once upon"), ids(STORY)
    unread = session.unread()
    assert unread > 0
    commit(session, text[len(ids("Once upon")) :][:1])
    assert session.unread() == unread
    assert len(session.propose(BUDGET))
    assert session.unread() == 0


def test_rows_before_the_window_are_committed(translation: Translation) -> None:
    """Guards the cost of long texts: only the window and what was not drafted is read again."""
    engine, text = Scripted(STORY), ids(STORY)
    session = opened(engine, translation, "Once upon", lookback=3)
    place = len(ids("Once upon"))
    while place < len(text):
        commit(session, text[place : place + 2])
        place += 2
        session.propose(Budget(nodes=2, depth=2))
    cache = session._cache
    whole = translation.draft.join(cache.committed) + session._text
    assert whole == b" " + STORY.encode()
    assert len(session._text) < len(STORY) // 3
    assert max(engine.passes) < 20


def test_drafts_keep_to_their_limits(translation: Translation) -> None:
    """Guards budgets, the number of passes, and the draft model's positions."""
    text, begin = ids(STORY), len(ids("Once upon"))
    session = opened(Scripted(STORY), translation, "Once upon", length=3)
    commit(session, text[begin : begin + 1])
    assert 0 < len(session.propose(BUDGET)) <= 3
    assert len(session.propose(Budget(nodes=2, depth=9))) == 2
    assert len(session.propose(Budget(nodes=9, depth=1))) == 1
    assert len(session.propose(Budget(nodes=0, depth=9))) == 0
    engine = Scripted(STORY, positions=len(Scripted(STORY).script) // 2)
    session = opened(engine, translation, "Once upon")
    lengths = []
    for place in range(begin, len(text)):
        commit(session, text[place : place + 1])
        lengths.append(len(session.propose(BUDGET)))
    assert lengths[0] > 0
    assert lengths[-5:] == [0] * 5


def test_texts_that_end_inside_a_character(translation: Translation) -> None:
    """Guards bytes of a character: no draft after half of one, and none that ends in half of one."""
    story = "A café, a naïve 犬 and 12 birds"
    text = ids(story)
    parts = [translation.target.read(token) for token in text]
    session = opened(Scripted(story, end=None), translation, "A")
    place, seen = 1, 0
    while place < len(text):
        commit(session, [text[place]])
        place += 1
        tree, inside = session.propose(BUDGET), False
        try:
            b"".join(parts[:place]).decode()
        except UnicodeDecodeError:
            inside = True
        assert not (inside and len(tree))
        seen += inside
        translation.target.join(tree.tokens.tolist()).decode()
    assert seen


def test_a_word_that_the_target_encodes_otherwise(translation: Translation) -> None:
    """Guards disagreement at the seam: where the text's last token would grow, the drafted text stands alone."""
    session = opened(Scripted("the", end=None), translation, "")
    session._tokens, drafted = ids(" th"), b"e"
    window = session._window()
    found = session._encode_draft(window, drafted)
    assert [translation.target.read(token) for token, _ in found] == [b"e"]


def test_weights_are_joint_probabilities(translation: Translation) -> None:
    """Guards what sizing reads: weights fall along the chain and follow from the draft model's."""
    drafter = UniversalDrafter(
        lambda prompt: HFEngine(tiny_model("llama", vocab_size=THEIRS)).open(torch.from_numpy(prompt).long()[None]),
        translation=translation,
    )
    session = drafter.open(SessionRequest(prompt=np.array(ids("The dog"), np.int32)))
    assert isinstance(session, UniversalSession)
    commit(session, ids(" ran"))
    tree = session.propose(Budget(nodes=8, depth=8))
    assert 0 < len(tree) <= 8
    assert (np.diff(tree.weights) <= 0).all()
    assert 0 < tree.weights[0] < 1
    session.close()


@pytest.mark.parametrize(("settings", "reason"), [({"length": 0}, "length"), ({"lookback": 0}, "lookback")])
def test_bad_settings_are_refused(settings: dict[str, int], reason: str) -> None:
    """Guards against drafts that never begin."""
    with pytest.raises(UsageError, match=reason):
        UniversalSettings(**settings)
