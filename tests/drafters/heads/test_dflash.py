"""DFlash and DSpark heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.block_heads import check_greedy, check_histories, random_weights, rms, rope, states, target_of
from tests.models import VOCABULARY
from torch import Tensor

from speculant import Speculator
from speculant.core.errors import UsageError
from speculant.drafters.heads.dflash import BlockShape, DFlashHead, DFlashState
from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.layers import LayerShape

SHAPE = LayerShape(hidden=32, inner=48, heads=4, kv_heads=2, head_dim=8, norms=True)
PLAIN = BlockShape(layers=2, size=5, mask=3, vocabulary=VOCABULARY)
BLOCKS = {
    "z-lab": PLAIN,
    "deepspec": replace(PLAIN, anchored=True, own_embeddings=True, own_output=True),
    "dspark": replace(PLAIN, anchored=True, markov=6, confidence=True),
    "sliding": replace(PLAIN, windows=(None, 4), causal=(False, True)),
    "sliding both ways": replace(PLAIN, windows=(3, None)),
    "capped": replace(PLAIN, multiplier=0.5, softcap=2.0),
}
PROMPT = [5, 7, 9, 11, 13, 8, 4, 6]


def made(block: BlockShape, **changes: Any) -> DFlashHead:
    head = DFlashHead(SHAPE, block, (0, 1), **changes)
    random_weights(head)
    return head.eval()


def formula(head: DFlashHead, parts: Any, hidden: Tensor, root: int) -> Tensor:
    """Return the logits [K, V'] of a block by the papers' formula, without the Markov head."""
    w, block = dict(head.named_parameters()), head.block
    count, slots = len(hidden), block.size
    context = rms(hidden.flatten(1) @ w["fc.weight"].T, w["hidden_norm.weight"])
    ids = torch.tensor([root] + [block.mask] * (slots - 1))
    x = w["embed_tokens.weight"][ids] if block.own_embeddings else parts.embed(ids)
    positions = torch.arange(count + slots)
    for i in range(block.layers):
        of = f"layers.{i}."
        given = rms(x, w[of + "input_layernorm.weight"])
        both = torch.cat([context, given])

        def heads(y: Tensor, name: str, of: str = of) -> Tensor:
            return (y @ w[of + f"self_attn.{name}_proj.weight"].T).reshape(len(y), -1, 8).transpose(0, 1)

        q = rope(rms(heads(given, "q"), w[of + "self_attn.q_norm.weight"]), positions[count:])
        k = rope(rms(heads(both, "k"), w[of + "self_attn.k_norm.weight"]), positions)
        v = heads(both, "v")
        mixed = torch.zeros(slots, 4, 8)
        for slot in range(slots):
            for h in range(4):
                scores = (k[h // 2] @ q[h, slot]) / 8**0.5
                for j in range(count + slots):
                    far = bool(block.windows) and block.windows[i] is not None
                    if far and abs(count + slot - j) >= (block.windows[i] or 0):
                        scores[j] = -torch.inf
                    if block.causal and block.causal[i] and j > count + slot:
                        scores[j] = -torch.inf
                mixed[slot, h] = scores.softmax(-1) @ v[h // 2]
        x = x + mixed.flatten(1) @ w[of + "self_attn.o_proj.weight"].T
        y = rms(x, w[of + "post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(y @ w[of + "mlp.gate_proj.weight"].T)
        x = x + (gate * (y @ w[of + "mlp.up_proj.weight"].T)) @ w[of + "mlp.down_proj.weight"].T
    x = rms(x, w["norm.weight"])
    x = x if block.anchored else x[1:]
    logits = (x @ w["lm_head.weight"].T if block.own_output else parts.project(x)) * block.multiplier
    return torch.tanh(logits / block.softcap) * block.softcap if block.softcap else logits


@pytest.mark.parametrize("name", BLOCKS)
def test_block_is_the_formula(name: str) -> None:
    """Guards the block's attention, positions, norms and slots under every flag; each flag must have an effect."""
    model, parts = target_of()
    head = made(BLOCKS[name])
    ids = torch.tensor([PROMPT])
    hidden = states(model, parts, head.taps, ids)[0][0]
    state = head.open(0, parts)
    with torch.no_grad():
        state.extend(hidden[:-1], ids[0, 1:])
        want = formula(head, parts, hidden[:-1], PROMPT[-1])
        got = [state.start()] + [state.grow([7], [row]) for row in range(-1, len(want) - 2)]
        if head.block.markov:
            w1, w2 = head.markov_head.markov_w1.weight, head.markov_head.markov_w2.weight
            want = want + torch.stack([w2 @ w1[token] for token in [PROMPT[-1]] + [7] * (len(want) - 1)])
    torch.testing.assert_close(torch.cat(got), want, atol=2e-5, rtol=1e-5)
    assert head.depth == len(want) == (5 if head.block.anchored else 4)
    if name != "z-lab":
        changed = replace(head.block, windows=(), causal=(), multiplier=1.0, softcap=0.0, markov=0, confidence=False)
        if changed != head.block:
            other = DFlashHead(SHAPE, changed, head.taps)
            other.load_state_dict(head.state_dict(), strict=False)
            plain = other.open(0, parts)
            with torch.no_grad():
                plain.extend(hidden[:-1], ids[0, 1:])
                assert not torch.allclose(torch.cat([plain.start(), plain.grow([7], [-1])]), torch.cat(got[:2]))


@pytest.mark.parametrize("name", BLOCKS)
def test_cached_is_uncached(name: str) -> None:
    """Guards the context rows over rounds, rejected drafts and earlier turns."""
    model, parts = target_of()
    head = made(BLOCKS[name])
    ids = torch.randint(3, VOCABULARY, (1, 20), generator=torch.Generator().manual_seed(1))
    hidden = states(model, parts, head.taps, ids)[0][0]
    check_histories(lambda: head.open(0, parts), hidden[:-1], ids[0], depth=3)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_greedy_text_is_the_target_s(name: str, tree: str) -> None:
    """Guards losslessness with any head: chains and trees, a second turn, several at once."""
    model, parts = target_of()
    check_greedy(model, LoadedHead(made(BLOCKS[name]), parts, "dflash", "dflash"), settings={"tree": tree})


def test_sampled_chains_go_with_rules_that_compare_probabilities() -> None:
    """Guards q of drawn chains: the Markov head's is conditioned on the token drawn before."""
    model, parts = target_of()
    head = LoadedHead(made(BLOCKS["dspark"]), parts, "dflash", "dflash")
    speculator = Speculator.from_transformers(model, head=head, verifier="speculative-sampling", nodes=4, fast=False)
    assert speculator.generate(PROMPT, max_new_tokens=20, temperature=1.0, seed=1).stats.drafted > 0


def test_confidence_ends_chains() -> None:
    """Guards the confidence head: a chain ends where the product of its predictions is too small."""
    model, parts = target_of()
    head = made(BLOCKS["dspark"])
    loaded = LoadedHead(head, parts, "dflash", "dflash")
    drafted = {}
    for bias in (-9.0, 9.0):
        with torch.no_grad():
            head.confidence_head.proj.weight.zero_()
            head.confidence_head.proj.bias.fill_(bias)
        settings = {"confidence": 0.3}
        speculator = Speculator.from_transformers(model, head=loaded, settings=settings, nodes=5, fast=False)
        stats = speculator.generate(PROMPT, max_new_tokens=12, temperature=0).stats
        drafted[bias] = stats.drafted / stats.rounds
    assert drafted[-9.0] <= 1 < drafted[9.0]
    state = head.open(0, parts)
    assert isinstance(state, DFlashState)
    with pytest.raises(UsageError, match="confidence"):
        Speculator.from_transformers(model, head=loaded, settings={"confidence": 1.5})
