"""REST: what is retrieved from a corpus and from past requests, and what a file keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rounds import budget, commit, start
from speculant.core.errors import CorruptMemoryError, ForeignMemoryError, UnsupportedError
from speculant.drafters.suffix.array import SuffixArrayBuilder
from speculant.drafters.suffix.rest import RestDrafter, RestSettings, load_corpus, save_corpus
from tables import ids


def drafter(**options: object) -> RestDrafter:
    """Return a drafter without a corpus."""
    return RestDrafter(**{"vocabulary": 1000, "tokenizer": "t", **options})


def request(held: RestDrafter, prompt: list[int], output: list[int]) -> None:
    """Play a whole request."""
    session = held.open(start(ids(prompt)))
    commit(session, *output)
    session.close()


def corpus(folder: Path, *documents: list[int], block: int = 1 << 10) -> Path:
    """Write a corpus file."""
    builder = SuffixArrayBuilder(1000, folder, block=block)
    for document in documents:
        builder.add(document)
    save_corpus(folder / "corpus", builder.blocks(), tokenizer="t")
    return folder / "corpus"


def test_past_requests_are_searched() -> None:
    """Two tokens must match; prompt and output are known, the running request is not."""
    held = drafter()
    request(held, [1, 2, 3], [4, 5])
    session = held.open(start([9, 2, 3]))
    assert session.propose(budget(8)).tokens.tolist() == [4, 5]
    assert len(session.propose(budget(0))) == 0
    assert len(held.open(start([9, 3])).propose(budget(8))) == 0, "one token is too few"
    assert len(held.open(start([6, 7, 8, 6, 7])).propose(budget(8))) == 0


def test_shares_of_the_longest_match() -> None:
    """Only the continuations of the longest match count, and a weight is their share."""
    held = drafter()
    for last in (5, 5, 5, 6):
        request(held, [1, 2, 3], [last])
    for _ in range(9):
        request(held, [8, 2, 3], [7])
    tree = held.open(start([1, 2, 3])).propose(budget(8))
    assert dict(zip(tree.tokens.tolist(), tree.weights.tolist(), strict=True)) == {5: 0.75, 6: 0.25}


def test_a_corpus_drafts_the_same(tmp_path: Path) -> None:
    """The suffix array and the tree over requests are two ways to one draft, in one block or several."""
    random = np.random.default_rng(0)
    documents = [random.integers(0, 5, 40).tolist() for _ in range(20)]
    learned = drafter()
    for document in documents:
        request(learned, document, [])
    for block in (1 << 10, 200):
        mapped = drafter()
        mapped.load(corpus(tmp_path, *documents, block=block))
        assert len(mapped._corpus) == (1 if block == 1 << 10 else 5)
        for seed in range(30):
            context = np.random.default_rng(seed).integers(0, 5, 3).astype(np.int32)
            trees = [held.search(context, budget(500)) for held in (learned, mapped)]
            drafts = [
                {tuple(tree.tokens[tree.path(i)].tolist()): float(tree.weights[i]) for i in range(len(tree))}
                for tree in trees
            ]
            if block == 1 << 10:
                assert drafts[0] == pytest.approx(drafts[1], abs=1e-6)
            else:
                assert {path for path in drafts[1] if len(path) == 1} <= {path for path in drafts[0] if len(path) == 1}


def test_the_longer_match_drafts(tmp_path: Path) -> None:
    """Of corpus and requests the longer match wins, the requests' among equals."""
    held = drafter()
    held.load(corpus(tmp_path, [1, 2, 3, 4], [7, 8, 10]))
    request(held, [9, 2, 3, 5, 7, 8], [11])
    assert held.search(ids([1, 2, 3]), budget(1)).tokens.tolist() == [4]
    assert held.search(ids([9, 2, 3]), budget(1)).tokens.tolist() == [5]
    assert held.search(ids([7, 8]), budget(1)).tokens.tolist() == [11]


def test_many_matches_are_thinned_out(tmp_path: Path) -> None:
    """Of more matches than wanted, evenly chosen ones stand for all."""
    held = drafter(settings=RestSettings(max_matches=100))
    held.load(corpus(tmp_path, *[[1, 2, token] for token in [3] * 600 + [4] * 300], block=900))
    tree = held.search(ids([1, 2]), budget(4))
    assert tree.tokens.tolist() == [3, 4]
    assert tree.weights.tolist() == pytest.approx([2 / 3, 1 / 3], abs=0.03)


def test_a_draft_has_ten_levels(tmp_path: Path) -> None:
    """The published length of a continuation, from either source."""
    text = list(range(100, 200))
    held = drafter()
    held.load(corpus(tmp_path, text))
    assert held.search(ids(text[:30]), budget(64)).tokens.tolist() == text[30:40]
    held = drafter()
    request(held, text, [])
    assert held.search(ids(text[:30]), budget(64)).tokens.tolist() == text[30:40]


def test_a_file_keeps_corpus_and_requests(tmp_path: Path) -> None:
    """What was saved drafts again, and saving what was loaded changes nothing."""
    held = drafter()
    held.load(corpus(tmp_path, [1, 2, 3, 4]))
    request(held, [5, 6], [7])
    held.save(tmp_path / "m")
    again = drafter()
    again.load(tmp_path / "m")
    assert again.search(ids([1, 2]), budget(8)).tokens.tolist() == [3, 4]
    assert again.search(ids([5, 6]), budget(8)).tokens.tolist() == [7]
    again.save(tmp_path / "m2")
    assert (tmp_path / "m").read_bytes() == (tmp_path / "m2").read_bytes()


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """A damaged, foreign or too large file is refused and leaves what there was."""
    path = corpus(tmp_path, list(range(900)))
    held = drafter(memory_limit=5000)
    request(held, [1, 2, 3], [])
    with pytest.raises(UnsupportedError, match="Raise the limit"):
        held.load(path)
    with pytest.raises(ForeignMemoryError):
        drafter(tokenizer="other").load(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(CorruptMemoryError):
        drafter().load(path)


def test_a_corpus_counts_against_the_limit(tmp_path: Path) -> None:
    """What it takes is not there for requests."""
    path = corpus(tmp_path, list(range(900)))
    blocks, text = load_corpus(path, tokenizer="t")
    assert (len(blocks), len(text)) == (1, 0)
    limit = blocks[0].nbytes + 60_000
    held = drafter(memory_limit=limit)
    held.load(path)
    random = np.random.default_rng(0)
    for _ in range(20):
        request(held, random.integers(0, 1000, 100).tolist(), [])
        assert blocks[0].nbytes < held.memory_bytes <= limit


def test_settings_that_no_search_could_honour() -> None:
    """Suffixes are sorted by 24 tokens and no further."""
    with pytest.raises(ValueError, match="at most 24"):
        drafter(settings=RestSettings(longest=25))
    with pytest.raises(UnsupportedError):
        drafter(vocabulary=1 << 25)


@pytest.mark.parametrize("prompt", [[], [5]])
def test_short_prompts(prompt: list[int]) -> None:
    """Nothing matches, and nothing breaks."""
    held = drafter()
    session = held.open(start(ids(prompt)))
    assert len(session.propose(budget(8))) == 0
    commit(session, 5, 6)
    session.close()
    session.close()
    assert len(held._history.text) == len(prompt) + 3
