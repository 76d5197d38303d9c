"""Contrastive decoding: exact for its own distribution, which is not the target's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from distributions import Model, distribution_of_drafts, drafts, model, own_distribution
from models import deep_model, endless, perturbed
from outcomes import Outcomes
from speculant import Speculator
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree
from speculant.verifiers.contrastive import ContrastiveDecoding, contrast

ALPHA, BETA = 0.3, 0.8


def contrast_models(p: Model, q: Model) -> Model:
    """Return the model that contrasts two."""
    return lambda text: contrast(torch.tensor(p(text))[None], torch.tensor(q(text))[None], ALPHA, BETA)[0].numpy()


@pytest.mark.parametrize("seed", range(3))
def test_texts_have_the_contrasted_distribution(seed: int) -> None:
    """Guards exactness for p': every draft from q and every outcome, to 1e-9; p itself is not what is sampled."""
    p, q = model(seed), model(seed + 10)
    listed = drafts(q, [-1, 0], "iid")
    found, _ = distribution_of_drafts(ContrastiveDecoding(alpha=ALPHA, beta=BETA).rule, contrast_models(p, q), listed)
    wanted = own_distribution(contrast_models(p, q), 3)
    assert found == pytest.approx(wanted, abs=1e-9)
    assert max(abs(wanted[text] - chance) for text, chance in own_distribution(p, 3).items()) > 0.01


def test_greedy_text_is_the_argmax_of_the_contrast() -> None:
    """Guards the pass over every row, the last one too: tokens equal those computed one by one."""
    target, draft = deep_model("llama"), perturbed(deep_model("llama"), 0.05)
    speculator = Speculator.from_transformers(target, method="contrastive", draft_model=draft, lossy=True, nodes=3)
    text = [5, 9, 14, 3, 8]
    found = speculator.generate(text, max_new_tokens=20, temperature=0)
    with torch.no_grad():
        while len(text) < 5 + len(found.ids):
            p, q = (each(torch.tensor([text])).logits[0, -1:].softmax(-1) for each in (target, draft))
            text.append(int(contrast(p, q, 0.1, 0.5).argmax()))
    assert found.ids == text[5:]
    assert found.stats.accepted > 0
    sampled = speculator.generate(text[:5], max_new_tokens=12, temperature=0.9, seed=1)
    assert sampled.ids


def test_every_token_follows_the_contrast_through_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the distributions of the first token, which precedes any draft, and of the last, which needs none.

    Every outcome of every random choice is decoded.
    """
    shape: dict[str, Any] = {"vocab_size": 8, "num_hidden_layers": 1}  # outcomes are few
    target, draft = endless("llama", **shape), perturbed(endless("llama", **shape), 0.3)
    speculator = Speculator.from_transformers(target, method="contrastive", draft_model=draft, lossy=True, nodes=3)
    prompt, temperature = [5, 1, 4, 3, 2], 0.45

    def distribution(text: list[int]) -> np.ndarray:
        with torch.no_grad():
            p, q = ((each(torch.tensor([text])).logits[0, -1:] / temperature).softmax(-1) for each in (target, draft))
        return contrast(p, q, 0.1, 0.5)[0].double().numpy()

    found, outcomes = Counter[tuple[int, ...]](), Outcomes()
    speculator.generate(prompt, max_new_tokens=2, temperature=0)  # the model is probed, which may draw
    outcomes.patch(monkeypatch)
    for outcome in outcomes:
        result = speculator.generate(prompt, max_new_tokens=2, temperature=temperature, top_k=0, top_p=1.0)
        found[tuple(result.ids)] += outcome.probability
    first = distribution(prompt)
    wanted = {
        (a, b): first[a] * second[b]
        for a in np.flatnonzero(first).tolist()
        for second in [distribution([*prompt, a])]
        for b in np.flatnonzero(second).tolist()
    }
    assert 4 < len(wanted) < 64
    assert dict(found) == pytest.approx(wanted, abs=1e-5)
    with torch.no_grad():
        own = (target(torch.tensor([prompt])).logits[0, -1].double() / temperature).softmax(-1).numpy()
    assert np.abs(own - first).max() > 0.01


def test_texts_without_the_draft_model_are_refused() -> None:
    """Guards the word: a text that is decoded without drafts would follow p, silently."""
    with pytest.raises(UnsupportedError, match="compares both models"):
        ContrastiveDecoding().prepare(DraftTree.empty(), None, None)  # type: ignore[arg-type]


def test_another_distribution_needs_consent() -> None:
    """Guards against a silent change of the output."""
    with pytest.raises(UnsupportedError, match="lossy"):
        Speculator.from_transformers(deep_model("llama"), method="contrastive", draft_model=deep_model("llama"))


def test_implausible_tokens_are_out() -> None:
    """Guards the plausibility constraint: the draft model's weakness alone makes no token likely."""
    p, q = torch.tensor([[0.9, 0.08, 0.02]]), torch.tensor([[0.5, 0.5 - 1e-9, 1e-9]])
    assert np.count_nonzero(contrast(p, q, 0.05, 0.5)[0]) == 2
