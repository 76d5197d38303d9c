"""A draft model's cache in the target's tokens: rows, logits, positions, and q."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from models import tiny_model
from speculant.core.drafter import Budget, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sampler import Sampling
from speculant.core.tree import DraftTree
from speculant.drafters.models.draft_model import DraftModelDrafter
from speculant.drafters.models.token_bytes import TokenBytes
from speculant.drafters.models.translated_cache import TranslatedCache
from speculant.drafters.models.translation import Translation
from speculant.drafters.models.vocabulary import share_vocabulary
from speculant.engines.hf.engine import HFEngine
from vocabularies import byte_level, sentencepiece

OURS, THEIRS = 320, 340
TEXT = "The little dog ran"


@pytest.fixture(scope="module")
def translation() -> Translation:
    """From a byte-level vocabulary to one of SentencePiece."""
    target, draft = TokenBytes(byte_level()), TokenBytes(sentencepiece())
    shared = share_vocabulary(target, draft, target_size=OURS, draft_size=THEIRS)
    return Translation(target, draft, shared, draft_size=THEIRS)


@pytest.fixture(scope="module")
def draft() -> Any:
    """A random draft model."""
    return tiny_model("llama", vocab_size=THEIRS)


def opener(model: Any) -> Any:
    """Return what opens caches of a model."""
    engine = HFEngine(model)
    return lambda prompt: engine.open(torch.from_numpy(prompt).long()[None])


def prompt_ids(text: str = TEXT) -> np.ndarray:
    """Return a text in the target's tokens."""
    return np.array(byte_level()(text)["input_ids"], np.int32)


def expected(draft: Any, translation: Translation, prompt: np.ndarray, tokens: list[int]) -> torch.Tensor:
    """Return the restricted logits [V] after a prompt and tokens, from one pass over the draft model's own tokens."""
    text = [*translation.prompt(prompt).tolist(), *(piece for token in tokens for piece in translation.pieces(token))]
    with torch.no_grad():
        return translation.shared.restrict(draft(torch.tensor([text])).logits[0, -1:])[0]


def unshared(translation: Translation) -> tuple[int, int]:
    """Return a token of the target with several pieces, and one with none."""
    several = next(i for i in range(OURS) if len(translation.pieces(i)) > 2)
    end = translation.target.specials["<|end|>"]
    return several, end


def test_prompts_are_encoded_as_text(translation: Translation) -> None:
    """Guards prompts: the draft model reads what its own tokenizer makes of the text, special tokens once."""
    own = sentencepiece()(TEXT)["input_ids"]
    assert translation.prompt(prompt_ids()).tolist() == own
    end = translation.target.specials["<|end|>"]
    both = translation.prompt(np.array([*prompt_ids(), end, *prompt_ids(" dog")], np.int32)).tolist()
    assert both == [*own, 2, *sentencepiece()("dog", add_special_tokens=False)["input_ids"]]
    assert translation.prompt(np.array([], np.int32)).tolist() == [1]


def test_prompts_of_sentencepiece_lose_the_space_that_it_put_there() -> None:
    """Guards the other direction: no space is doubled, none begins the text."""
    target, draft = TokenBytes(sentencepiece()), TokenBytes(byte_level())
    shared = share_vocabulary(target, draft, target_size=THEIRS, draft_size=OURS)
    back = Translation(target, draft, shared, draft_size=OURS)
    found = back.prompt(np.array(sentencepiece()(TEXT)["input_ids"], np.int32)).tolist()
    assert found == byte_level()(TEXT)["input_ids"]


def test_a_token_is_its_partner_or_its_text(translation: Translation) -> None:
    """Guards tokens without a partner: their bytes in several tokens, or none."""
    for token in range(len(translation.target.names)):
        pieces, partner = translation.pieces(token), translation.shared.to_draft().get(token)
        assert pieces == (partner,) if partner is not None else len(pieces) != 1
        assert translation.draft.join(list(pieces)) == translation.target.read(token)


@pytest.mark.parametrize("steps", [1, 3])
def test_rows_are_those_of_the_text(translation: Translation, draft: Any, steps: int) -> None:
    """Guards forward, keep and rollback: tokens of several rows and of none, in trees, level by level."""
    prompt = prompt_ids()
    cache = TranslatedCache(prompt, translation=translation, open_cache=opener(draft))
    assert (cache.length, cache.unread) == (0, len(prompt))
    first = cache.prefill()
    assert first is not None
    assert (cache.length, cache.unread) == (len(prompt), 0)
    torch.testing.assert_close(first.logits[0], expected(draft, translation, prompt, []), atol=1e-4, rtol=1e-4)
    several, end = unshared(translation)
    random = np.random.default_rng(steps)
    committed: list[int] = []
    for turn in range(6):
        tokens = [end, several, 40, several, end, 50, end, 60, several]
        tokens[int(random.integers(9))] = int(random.integers(1, OURS - 10))
        parents = [-1, -1, 0, 1, 3, 4, -1, 6, 7]
        for part in np.array_split(np.arange(9), steps):
            result = cache.forward(np.array(tokens, np.int32)[part], np.array(parents, np.int32)[part])
            for row, logits in zip(part.tolist(), result.logits, strict=True):
                path, at = list[int](), row
                while at >= 0:
                    path, at = [tokens[at], *path], parents[at]
                right = expected(draft, translation, prompt, [*committed, *path])
                torch.testing.assert_close(logits, right, atol=1e-3, rtol=1e-3)
        kept = [[1, 3, 4, 5], [], [0, 2], [6], [6, 7, 8], [0]][turn]
        if turn == 1:
            cache.rollback()
        else:
            cache.keep(kept)
        committed += [tokens[row] for row in kept]
        assert cache.length == len(prompt) + len(committed)
    cache.restart()
    assert cache.unread == len(prompt)
    cache.release()


def test_q_is_the_restricted_distribution(translation: Translation, draft: Any) -> None:
    """Guards losslessness: what tokens are drawn from is the draft model's distribution on shared tokens, warped."""
    sampling = Sampling(temperature=0.7)
    open_cache = partial(TranslatedCache, translation=translation, open_cache=opener(draft))
    drafter = DraftModelDrafter(open_cache, vocabulary=OURS)
    session = drafter.open(SessionRequest(prompt=prompt_ids(), sampling=sampling))
    several, _ = unshared(translation)
    session.observe(Verified(tree=DraftTree.empty(), path=np.empty(0, np.int32), tokens=np.array([several], np.int32)))
    tree = session.propose(Budget(nodes=5, depth=5, trees=False))
    assert len(tree) == 5
    assert tree.proposal is not None
    shared = set(translation.shared.target_ids.tolist())
    assert set(tree.tokens.tolist()) <= shared
    for row in range(5):
        logits = expected(draft, translation, prompt_ids(), [several, *tree.tokens[:row].tolist()])
        q = torch.as_tensor(tree.proposal.q)[row]
        torch.testing.assert_close(q, (logits / 0.7).softmax(-1), atol=1e-4, rtol=1e-3)
        assert float(q.sum()) == pytest.approx(1, abs=1e-5)
    session.close()


def test_positions_of_the_draft_model_end(translation: Translation) -> None:
    """Guards text that takes more tokens in the draft model than it has positions for: no draft, no error."""
    short = tiny_model("gpt2", vocab_size=THEIRS, n_positions=24)
    short = type(short)(type(short.config)(**{**short.config.to_dict(), "n_positions": 24})).eval()
    prompt = prompt_ids()
    cache = TranslatedCache(prompt, translation=translation, open_cache=opener(short))
    cache.prefill()
    several, _ = unshared(translation)
    room = cache.depth
    tokens = np.full(room, several, np.int32)
    result = cache.forward(tokens, np.arange(-1, room - 1, dtype=np.int32))
    assert result.logits.shape == (room, OURS)
    cache.keep(range(room))
    assert cache.depth == 0
    assert cache.length == len(prompt) + room


def test_what_cannot_be_done_is_refused(translation: Translation, draft: Any) -> None:
    """Guards hidden states, tokens that do not exist, and passes before the prompt."""
    cache = TranslatedCache(prompt_ids(), translation=translation, open_cache=opener(draft))
    one = np.array([3], np.int32), np.array([-1], np.int32)
    with pytest.raises(UsageError, match="prefill"):
        cache.forward(*one)
    with pytest.raises(UnsupportedError, match="hidden states"):
        cache.prefill(needs=RequestedOutputs(top_k=2))
    cache.prefill()
    with pytest.raises(UnsupportedError, match="cannot be run on this engine"):
        cache.reread(one[0], [0])
    with pytest.raises(ValueError, match="token 320"):
        cache.forward(np.array([OURS], np.int32), one[1])
    with pytest.raises(ValueError, match="token -1"):
        cache.check(DraftTree.from_paths([[-1]]))
