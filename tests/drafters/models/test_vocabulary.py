"""The tokens that two vocabularies share."""

from __future__ import annotations

import pytest
import torch

from speculant.drafters.models.token_bytes import TokenBytes
from speculant.drafters.models.vocabulary import SharedVocabulary, same_ids, share_vocabulary
from vocabularies import byte_level, sentencepiece, unigram


def shared(target: TokenBytes, draft: TokenBytes, **sizes: int) -> SharedVocabulary:
    """Return what two tokenizers share."""
    return share_vocabulary(target, draft, **({"target_size": 10**6, "draft_size": 10**6} | sizes))


@pytest.mark.parametrize("target", [byte_level, sentencepiece, unigram])
@pytest.mark.parametrize("draft", [byte_level, sentencepiece, unigram])
def test_pairs_stand_for_the_same_bytes(target: object, draft: object) -> None:
    """Guards the map between spellings: equal bytes, no token twice, nothing missing that both have."""
    ours, theirs = TokenBytes(target()), TokenBytes(draft())  # type: ignore[operator]
    found = shared(ours, theirs)
    pairs = found.to_draft()
    assert len(set(pairs.values())) == len(pairs) == len(found) > 30
    assert found.to_target() == {other: mine for mine, other in pairs.items()}
    for mine, other in pairs.items():
        assert ours.read(mine) == theirs.read(other)
    both = {text for text in ours.texts if text} & {text for text in theirs.texts if text}
    assert both == {ours.read(mine) for mine in pairs if ours.read(mine)}


def test_spaces_are_shared_across_spellings() -> None:
    """Guards Ġ against ▁: the words of both are paired."""
    ours, theirs = TokenBytes(byte_level()), TokenBytes(sentencepiece())
    pairs = shared(ours, theirs).to_draft()
    assert pairs[ours.names["Ġthe"]] == theirs.names["▁the"]
    assert pairs[ours.names["Ċ"]] == theirs.names["<0x0A>"]


def test_duplicates_are_paired_by_name() -> None:
    """Guards "a" and the byte <0x61>, which are the same text: each has its own partner."""
    ours, theirs = TokenBytes(sentencepiece()), TokenBytes(sentencepiece(330))
    pairs = shared(ours, theirs).to_draft()
    assert pairs[ours.names["a"]] == theirs.names["a"]
    assert pairs[ours.names["<0x61>"]] == theirs.names["<0x61>"]


def test_special_tokens_are_paired_by_name_then_by_role() -> None:
    """Guards ends of texts: equal names are paired, and ends whose names differ."""
    ours, theirs = TokenBytes(sentencepiece()), TokenBytes(unigram())
    pairs = shared(ours, theirs).to_draft()
    assert [pairs[ours.specials[name]] for name in ("<unk>", "<s>", "</s>")] == [
        theirs.specials[name] for name in ("<unk>", "<s>", "</s>")
    ]
    other = TokenBytes(byte_level())
    assert other.eos is not None
    assert shared(ours, other).to_draft()[ours.specials["</s>"]] == other.eos
    assert ours.specials["<s>"] not in shared(ours, other).to_draft()


def test_tokens_without_logits_are_left_out() -> None:
    """Guards vocabularies that are larger than the model's logits."""
    ours, theirs = TokenBytes(byte_level()), TokenBytes(sentencepiece())
    found = shared(ours, theirs, target_size=100, draft_size=90)
    assert found.target_ids.max() < 100
    assert found.draft_ids.max() < 90
    assert found.target_tokens == len(ours.names)
    assert found.share == len(found) / len(ours.names)


def test_logits_are_restricted() -> None:
    """Guards the formula: shared tokens keep their logits, others have none, so softmax is q renormalised."""
    found = shared(TokenBytes(byte_level()), TokenBytes(sentencepiece()), target_size=330, draft_size=350)
    logits = torch.randn(2, 350, generator=torch.Generator().manual_seed(1))
    over = found.restrict(logits)
    assert over.shape == (2, 330)
    assert int(over.isfinite().sum()) == 2 * len(found)
    q = logits.softmax(-1)[:, found.draft_ids]
    torch.testing.assert_close(over.softmax(-1)[:, found.target_ids], q / q.sum(-1, keepdim=True))


def test_same_ids() -> None:
    """Guards equal sizes with other tokens, padding, and tokens that the draft model cannot read."""
    ours = {"a": 0, "b": 1, "c": 2}
    assert same_ids(ours, ours, draft_size=3)
    assert same_ids(ours, {"a": 0, "b": 1}, draft_size=8)
    assert same_ids(ours, {**ours, "d": 3}, draft_size=4)
    assert not same_ids(ours, {"a": 0, "c": 1, "b": 2}, draft_size=3)
    assert not same_ids(ours, {"a": 0, "b": 1}, draft_size=2)
