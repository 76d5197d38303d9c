"""EAGLE-3: its formula under every flag, its cache, its vocabulary, and texts drafted with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eagles import (
    IDS,
    compare_histories,
    eagle3_features,
    eagle3_formula,
    eagle3_head,
    plain_text,
    replayed,
    started,
    states,
    target_model,
)
from models import VOCABULARY, deep_model
from pairwise import in_turn
from speculant import Speculator
from speculant.core.drafter import SessionRequest
from speculant.drafters.heads.drafter import HeadDrafter, LoadedHead
from speculant.drafters.heads.eagle3 import checkpoint as eagle3
from speculant.engines.hf.views.target_parts import HFTargetParts

PROMPTS = [[5, 7, 9, 11, 13], [20, 3, 20, 3], [42], [8, 8, 30, 31, 32, 33, 8]]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"norm_output": True},
    {"draft_vocabulary": 0},
    {"draft_vocabulary": 0, "own_output": False},
    {"own_embeddings": True},
    {"layers": 3},
    {"layers": 2, "wide": 2, "norm_before_residual": True},
    {"layer": {"bias": True}},
    {"layer": {"norms": True}},
    {"layers": 2, "fc_norm": True, "norm_output": True, "own_embeddings": True},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_logits_are_the_formula(target: HFTargetParts, changes: dict[str, Any]) -> None:
    """Guards every variant: committed rows, and two drafted ones that read what the row above passes on."""
    head = eagle3_head(**changes)
    weights, (hidden, following) = head.state_dict(), states(7)
    state = replayed(head, target, hidden, following)
    close = {"atol": 1e-5, "rtol": 1e-4}
    with torch.inference_mode():
        features, seen = eagle3_features(weights, head.shape, hidden), torch.ones(9, 9, dtype=torch.bool).tril()
        logits, passed = eagle3_formula(weights, head.shape, target, features, following, range(7), seen[:7, :7])
        assert torch.allclose(state.start()[0], logits[-1], **close)
        for row, token in enumerate([17, 4]):
            features = torch.cat([features, passed[-1:]])
            following = torch.cat([following, torch.tensor([token])])
            count = 8 + row
            found = state.grow([token], [row - 1])
            logits, passed = eagle3_formula(
                weights, head.shape, target, features, following, range(count), seen[:count, :count]
            )
            assert torch.allclose(found[0], logits[-1], **close)


@pytest.mark.parametrize("flag", ["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"])
def test_every_flag_changes_the_output(target: HFTargetParts, flag: str) -> None:
    """Guards flags against being read and ignored."""
    plain, changed = eagle3_head(), eagle3_head(**{flag: True})
    changed.load_state_dict(plain.state_dict(), strict=False)
    hidden, following = states(5)
    found = []
    for head in (plain, changed):
        state = replayed(head, target, hidden, following)
        with torch.inference_mode():
            found.append(torch.cat([state.start(), state.grow([5], [-1])]))
    assert (found[0] - found[1]).abs().max() > 1e-3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("layers", [1, 3])
def test_cached_rows_equal_rows_read_at_once(target: HFTargetParts, layers: int, seed: int) -> None:
    """Guards the cache after drafts, rollbacks and second turns, in every layer."""
    compare_histories(eagle3_head(layers=layers, norm_output=True), target, 3, seed)


def test_siblings_do_not_see_each_other(target: HFTargetParts) -> None:
    """Guards tree attention: a node's logits are those that it has as a chain."""
    head, (hidden, following) = eagle3_head(layers=2), states(5)
    with torch.inference_mode():
        tree = replayed(head, target, hidden, following)
        tree.grow([5, 6], [-1, -1])
        found = tree.grow([7, 8], [1, 0])
        for row, tokens in enumerate([(6, 7), (5, 8)]):
            chain = replayed(head, target, hidden, following)
            chain.grow([tokens[0]], [-1])
            assert torch.allclose(found[row], chain.grow([tokens[1]], [0])[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "settings"), in_turn(["llama", "qwen3", "gemma3"], [{}, {"tree": "chain", "depth": 3}], every=2)
)
def test_greedy_text_is_the_targets(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    """Guards losslessness with a random head of a reduced vocabulary: alone, in a batch, and in a second turn."""
    model = deep_model(name)
    eagle3.save(eagle3_head(taps=(0, 1, 2)), tmp_path, HFTargetParts(model))
    plain = [plain_text(model, prompt, 10) for prompt in PROMPTS]
    longer = [*PROMPTS[0], *plain[0], 3, 4]
    second = plain_text(model, longer, 8)
    speculator = Speculator.from_transformers(model, method="eagle3", head=str(tmp_path), nodes=6, settings=settings)
    results = speculator.generate_batch(PROMPTS, size=3, max_new_tokens=10, temperature=0)
    assert [list(result.ids) for result in results] == plain
    assert list(speculator.generate(PROMPTS[0], max_new_tokens=10, temperature=0).ids) == plain[0]
    assert list(speculator.generate(longer, max_new_tokens=8, temperature=0).ids) == second


def test_half_precision(tmp_path: Path) -> None:
    """Guards dtypes: target and head in bfloat16, drafted with and sampled from."""
    model = deep_model("llama").to(torch.bfloat16)
    eagle3.save(eagle3_head(taps=(0, 1, 2), own_embeddings=True), tmp_path, HFTargetParts(model))
    speculator = Speculator.from_transformers(model, head=str(tmp_path), verifier="speculative-sampling", nodes=4)
    assert len(speculator.generate(PROMPTS[0], max_new_tokens=12, temperature=1.0, seed=3).ids) == 12


def test_tokens_outside_the_draft_vocabulary_have_no_probability(target: HFTargetParts) -> None:
    """Guards the reduced vocabulary: q is 0 outside it and sums to 1, and logit i belongs to the token ids[i]."""
    head = eagle3_head()
    drafter = HeadDrafter(LoadedHead(head, target, "eagle3", "eagle3"))
    hidden, following = states(5)
    text = drafter.open_text(SessionRequest(prompt=following.numpy().astype("int32")))
    text.state = replayed(head, target, hidden, following)
    q = text.begin()[0]
    outside = torch.ones(VOCABULARY, dtype=torch.bool)
    outside[IDS] = False
    assert q.sum() == pytest.approx(1)
    assert not q[outside].any()
    assert torch.allclose(q[IDS], started(head, target, hidden, following)[0].softmax(-1), atol=1e-6)


def test_it_reads_the_layers_that_it_names() -> None:
    """Guards the taps in decoding: the states that reach the head are the outputs of its layers, low to high."""
    model = target_model()
    head, seen, wanted = eagle3_head(taps=(1, 3, 4)), list[torch.Tensor](), dict[int, torch.Tensor]()
    fused = head.fuse_states
    head.fuse_states = lambda states: (seen.append(states), fused(states))[1]  # type: ignore[method-assign]
    loaded = LoadedHead(head, HFTargetParts(model), "eagle3", "eagle3")
    speculator = Speculator.from_transformers(model, head=loaded, nodes=2)
    speculator.generate(PROMPTS[0], max_new_tokens=8, temperature=0)
    hooks = [
        model.model.layers[layer + 1].register_forward_pre_hook(
            lambda _, given, layer=layer: wanted.__setitem__(layer, given[0])
        )
        for layer in head.taps
    ]
    with torch.no_grad():
        model(torch.tensor([PROMPTS[0]]))
    for hook in hooks:
        hook.remove()
    assert torch.allclose(
        seen[0][: len(PROMPTS[0])], torch.cat([wanted[layer][0] for layer in head.taps], -1), atol=1e-5
    )
