"""Text marked by the source of its tokens."""

from __future__ import annotations

import numpy as np

from scripted import Scripted, recording
from speculant.api.loading import load_tokenizer
from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import Recording
from speculant.bench.report.excerpts import MAX_TOKENS, last_excerpt
from speculant.core.tree import DraftTree


def test_the_last_request_by_ids() -> None:
    """Drafted tokens and the target's own alternate as the rounds did."""
    recordings = [recording([9]), recording([4, 5, 6, 4, 5])]
    result = replay(Scripted(DraftTree.from_paths([[4, 5]])), recordings, nodes=4)
    pieces = last_excerpt(result, recordings)
    assert [piece.text for piece in pieces] == ["4 ", "5 ", "6 ", "4 ", "5 "]
    assert [piece.drafted for piece in pieces] == [True, True, False, True, False]
    assert [piece.begins for piece in pieces] == [True, False, False, True, False]


def test_text_joins_to_the_whole() -> None:
    """With a tokenizer the pieces are the text."""
    tokenizer = load_tokenizer()
    prompt, output = (np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)
                      for text in ("Once upon", " a time there was"))  # fmt: skip
    recordings = [Recording(prompt, output)]
    pieces = last_excerpt(replay(Scripted(DraftTree.empty()), recordings, nodes=0), recordings, tokenizer)
    assert "".join(piece.text for piece in pieces).strip() == "a time there was"


def test_long_answers_are_cut() -> None:
    """The page stays small."""
    recordings = [recording([4] * 1000)]
    assert len(last_excerpt(replay(Scripted(DraftTree.empty()), recordings, nodes=0), recordings)) == MAX_TOKENS
