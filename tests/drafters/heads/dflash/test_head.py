"""DFlash and DSpark heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from block_heads import check_greedy, check_histories, rms, rope, states, target_of
from dflash_heads import BLOCKS, PLAIN, PROMPT, SHAPE, dflash_head
from models import VOCABULARY
from pairwise import in_turn
from speculant import Speculator
from speculant.core.errors import UsageError
from speculant.drafters.heads.dflash.head import DFlashHead, DFlashState
from speculant.drafters.heads.drafter import LoadedHead

KEPT = ("anchored", "own_embeddings", "own_output")  # what is left of a block where its other flags are off
TREE = [(9, 7, 4), (5, 7, 4), (5, 8, 6)]
PATH = [7, 5, 7, 9]  # drafted below the root


def convolved(w: dict[str, Tensor], of: str, side: int, x: Tensor, given: Tensor) -> Tensor:
    """Return x [b, D] after DFlash 2's convolution, whose kernels come from `given`, number by number."""
    base, found = w[of + "base_kernel"][side], torch.zeros_like(x)
    taps, groups = len(base), x.shape[1] // 8
    kernels = (given @ w[of + "kernel_projection.weight"].T).reshape(len(x), 2, taps, groups)[:, side]
    for i in range(len(x)):
        for c in range(x.shape[1]):
            for t in range(min(taps, i + 1)):
                found[i, c] += (base[t, c] + kernels[i, t, c // 8]) * x[i - t, c]
    return found


def corrected(head: DFlashHead, parts: Any, outputs: Tensor, logits: Tensor, before: list[int]) -> Tensor:
    """Return the logits [K, V'] of slots given the tokens before them, by the published formulas."""
    w, block, found = dict(head.named_parameters()), head.block, []
    state = torch.zeros(1, 6)
    gru = torch.nn.GRU(32, 6, bias=False, batch_first=True)
    for k, (h, u, token) in enumerate(zip(outputs, logits, before, strict=True)):
        if block.markov:
            e = w["markov_head.markov_w1.weight"][token]
            if block.markov_kind == "gated":
                gate = torch.cat([h, e]) @ w["markov_head.gate_proj.weight"].T + w["markov_head.gate_proj.bias"]
                e = gate.sigmoid() * e
            if block.markov_kind == "rnn":
                joint = torch.cat([state[0], e, h]) @ w["markov_head.joint_proj.weight"].T
                g, c, o = (joint + w["markov_head.joint_proj.bias"]).chunk(3)
                state = (g.sigmoid() * state[0] + (1 - g.sigmoid()) * c.tanh())[None]
                e = o.tanh()
            u = u + w["markov_head.markov_w2.weight"] @ e
        if block.domino is not None:
            gru.load_state_dict({name: w[f"domino_head.prefix_gru.{name}"] for name in gru.state_dict()})
            _, last = gru(parts.embed(torch.tensor([before[: k + 1]])))  # over all tokens so far, at once
            inner = torch.nn.functional.silu(w["domino_head.embed_proj.0.weight"] @ torch.cat([h, last[0, 0]]))
            if k >= block.domino.plain:
                u = u + w["domino_head.embed_proj.2.weight"] @ inner
        if block.selector is not None:
            of = "candidate_selector."
            state_of = w[of + "predecessor_codebook"][token] * (w[of + "hidden_projection.weight"] @ h)
            best = u.topk(block.selector.candidates).indices.tolist()
            every = u + w[of + "successor_codebook"] @ state_of
            u = torch.tensor([float(every[b]) if b in best else -torch.inf for b in range(len(u))])
        found.append(u)
    return torch.stack(found)


def formula(head: DFlashHead, parts: Any, hidden: Tensor, root: int) -> tuple[Tensor, Tensor]:
    """Return outputs [K, D] and logits [K, V'] of a block by the papers' formula, before any correction."""
    w, block = dict(head.named_parameters()), head.block
    count, slots = len(hidden), block.size
    context = rms(hidden.flatten(1) @ w["fc.weight"].T, w["hidden_norm.weight"])
    ids = torch.tensor([root] + [block.mask] * (slots - 1))
    x = w["embed_tokens.weight"][ids] if block.own_embeddings else parts.embed(ids) * (block.scale or 1.0)
    positions = torch.arange(count + slots)
    for i in range(block.layers):
        of = f"layers.{i}."
        given = rms(x, w[of + "input_layernorm.weight"])
        entered = given
        if block.convolution is not None:
            given = convolved(w, of + "attention_conv.", 0, given, entered)
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
        attended = mixed.flatten(1) @ w[of + "self_attn.o_proj.weight"].T
        if block.convolution is not None:
            attended = convolved(w, of + "attention_conv.", 1, attended, entered)
        x = x + attended
        y = entered = rms(x, w[of + "post_attention_layernorm.weight"])
        if block.convolution is not None:
            y = convolved(w, of + "mlp_conv.", 0, y, entered)
        gate = torch.nn.functional.silu(y @ w[of + "mlp.gate_proj.weight"].T)
        y = (gate * (y @ w[of + "mlp.up_proj.weight"].T)) @ w[of + "mlp.down_proj.weight"].T
        x = x + (y if block.convolution is None else convolved(w, of + "mlp_conv.", 1, y, entered))
    x = rms(x, w["norm.weight"])
    x = x if block.anchored else x[1:]
    logits = (x @ w["lm_head.weight"].T if block.own_output else parts.project(x)) * block.multiplier
    return x, torch.tanh(logits / block.softcap) * block.softcap if block.softcap else logits


@pytest.mark.parametrize("name", BLOCKS)
def test_block_is_the_formula(name: str) -> None:
    """Guards the block's attention, positions, norms and slots under every flag; each flag must have an effect."""
    model, parts = target_of()
    head = dflash_head(BLOCKS[name])
    ids = torch.tensor([PROMPT])
    hidden = states(model, parts, head.taps, ids)[0][0]
    state = head.open(0, parts)
    with torch.no_grad():
        state.extend(hidden[:-1], ids[0, 1:])
        outputs, want = formula(head, parts, hidden[:-1], PROMPT[-1])
        path = PATH[: len(want) - 1]
        want = corrected(head, parts, outputs, want, [PROMPT[-1], *path])
        got = [state.start()] + [state.grow([token], [row - 1]) for row, token in enumerate(path)]
    torch.testing.assert_close(torch.cat(got), want, atol=2e-5, rtol=1e-5)
    assert head.depth == len(want) == (5 if head.block.anchored else 4)
    if name != "z-lab":
        changed = replace(PLAIN, **{name: getattr(head.block, name) for name in KEPT})
        if changed != head.block:
            other = DFlashHead(SHAPE, changed, head.taps)
            other.load_state_dict(head.state_dict(), strict=False)
            plain = other.open(0, parts)
            with torch.no_grad():
                plain.extend(hidden[:-1], ids[0, 1:])
                assert not torch.allclose(torch.cat([plain.start(), plain.grow([7], [-1])]), torch.cat(got[:2]))


@pytest.mark.parametrize("name", ["rnn", "domino", "DFlash 2"])
def test_corrections_follow_the_paths_of_a_tree(name: str) -> None:
    """Guards what rows hand down: each node of a tree has the logits of a chain along its own path."""
    model, parts = target_of()
    head, ids = dflash_head(BLOCKS[name]), torch.tensor([PROMPT])
    hidden = states(model, parts, head.taps, ids)[0][0, :-1]
    state = head.open(0, parts)
    with torch.no_grad():
        state.extend(hidden, ids[0, 1:])
        outputs, logits = formula(head, parts, hidden, PROMPT[-1])
        state.start()
        state.grow([5, 9], [-1, -1])
        state.grow([7, 8, 7], [1, 0, 0])
        got = state.grow([4, 4, 6], [2, 4, 3])
        want = [corrected(head, parts, outputs, logits, [PROMPT[-1], *path, 5][: len(logits)])[3] for path in TREE]
    torch.testing.assert_close(got, torch.stack(want), atol=2e-5, rtol=1e-5)


def test_selector_drafts_its_candidates_alone() -> None:
    """Guards q of DFlash 2: no other token has any probability, so drawn chains stay exact."""
    model, parts = target_of()
    head = dflash_head(BLOCKS["DFlash 2"])
    hidden = states(model, parts, head.taps, torch.tensor([PROMPT]))[0][0, :-1]
    state = head.open(0, parts)
    with torch.no_grad():
        state.extend(hidden, torch.tensor(PROMPT[1:]))
        assert int(state.start().isfinite().sum()) == 9
    loaded = LoadedHead(head, parts, "dflash", "dflash")
    speculator = Speculator.from_transformers(model, head=loaded, verifier="speculative-sampling", nodes=4, fast=False)
    assert speculator.generate(PROMPT, max_new_tokens=20, temperature=1.0, seed=1).stats.drafted > 0


@pytest.mark.parametrize("name", BLOCKS)
def test_cached_is_uncached(name: str) -> None:
    """Guards the context rows over rounds, rejected drafts and earlier turns."""
    model, parts = target_of()
    head = dflash_head(BLOCKS[name])
    ids = torch.randint(3, VOCABULARY, (1, 20), generator=torch.Generator().manual_seed(1))
    hidden = states(model, parts, head.taps, ids)[0][0]
    check_histories(lambda: head.open(0, parts), hidden[:-1], ids[0], depth=3)


@pytest.mark.parametrize(("name", "tree"), in_turn(BLOCKS, ["chain", "dynamic"], every=2))
def test_greedy_text_is_the_target_s(name: str, tree: str) -> None:
    """Guards losslessness with any head: chains and trees, a second turn, several at once."""
    model, parts = target_of()
    check_greedy(model, LoadedHead(dflash_head(BLOCKS[name]), parts, "dflash", "dflash"), settings={"tree": tree})


def test_sampled_chains_go_with_rules_that_compare_probabilities() -> None:
    """Guards q of drawn chains: the Markov head's is conditioned on the token drawn before."""
    model, parts = target_of()
    head = LoadedHead(dflash_head(BLOCKS["dspark"]), parts, "dflash", "dflash")
    speculator = Speculator.from_transformers(model, head=head, verifier="speculative-sampling", nodes=4, fast=False)
    assert speculator.generate(PROMPT, max_new_tokens=20, temperature=1.0, seed=1).stats.drafted > 0


def test_confidence_ends_chains() -> None:
    """Guards the confidence head: a chain ends where the product of its predictions is too small."""
    model, parts = target_of()
    head = dflash_head(BLOCKS["dspark"])
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
