"""GLIDE: cross-attention to the target's last keys and values, and widths by confidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from block_heads import check_greedy, draft_logits, lent_cache, rms, rope, target_of
from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.heads.checkpoints.checkpoint import read_checkpoint
from speculant.drafters.heads.checkpoints.formats import FORMATS, load_head
from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.glide.checkpoint import save
from speculant.drafters.heads.glide.cross import target_cross_shape
from speculant.drafters.heads.glide.drafter import ConfidenceWidths
from speculant.drafters.heads.glide.head import GlideHead
from speculant.drafters.models.shapes import Level
from speculant.drafters.models.tree_acceptance import LevelAcceptance
from text_heads import glide_head

TEXT = torch.tensor([5, 7, 9, 11, 13, 8, 4, 6, 10])


def formula(head: GlideHead, model: Any, committed: int, text: torch.Tensor) -> torch.Tensor:
    """Return the logits after the last token of a text, of which the target has cached the first tokens."""
    w = dict(head.named_parameters())
    with torch.no_grad():
        held = model(text[None, :committed], use_cache=True).past_key_values.layers[-1]
    x, positions = w["embed_tokens.weight"][text], torch.arange(len(text))
    given = rms(x, w["layers.0.input_layernorm.weight"])

    def heads(y: torch.Tensor, name: str) -> torch.Tensor:
        return (y @ w[f"layers.0.{name}.weight"].T).reshape(len(y), -1, 8).transpose(0, 1)

    q, k = rope(heads(given, "self_attn.q_proj"), positions), rope(heads(given, "self_attn.k_proj"), positions)
    v = heads(given, "self_attn.v_proj")
    mixed = torch.cat([((k[h] @ q[h, -1]) / 8**0.5).softmax(-1) @ v[h] for h in range(3)])
    x = x[-1] + mixed @ w["layers.0.self_attn.o_proj.weight"].T
    q = rope(heads(x[None], "cross_attn.q_proj"), positions[-1:])
    keys, values = held.keys[0], held.values[0]
    mixed = torch.cat([((keys[h // 2] @ q[h, 0]) / 8**0.5).softmax(-1) @ values[h // 2] for h in range(4)])
    x = x + mixed @ w["layers.0.cross_attn.o_proj.weight"].T
    y = rms(x, w["layers.0.post_attention_layernorm.weight"])
    gate = torch.nn.functional.silu(y @ w["layers.0.mlp.gate_proj.weight"].T)
    x = x + (gate * (y @ w["layers.0.mlp.up_proj.weight"].T)) @ w["layers.0.mlp.down_proj.weight"].T
    return rms(x, w["norm.weight"]) @ w["lm_head.weight"].T


def test_is_the_formula() -> None:
    """Guards positions, masks and the target's rotated keys, after the root and after drafted tokens."""
    model, parts = target_of()
    head, committed = glide_head(parts), len(TEXT) - 1
    state = head.open_text(TEXT[:1].tolist(), parts, lent_cache(model, TEXT[:-1]))
    with torch.no_grad():
        state.extend(torch.empty(committed, 0, 0), TEXT[1:])
        got = [state.start()[0], state.grow([5, 9], [-1, -1])[1], state.grow([7], [1])[0]]
        branch = [TEXT, torch.cat([TEXT, torch.tensor([9])]), torch.cat([TEXT, torch.tensor([9, 7])])]
        want = [formula(head, model, committed, text) for text in branch]
    torch.testing.assert_close(torch.stack(got), torch.stack(want), atol=2e-5, rtol=1e-5)


def test_cached_is_uncached() -> None:
    """Guards the head's own rows over rounds and crops: those of drafted tokens are computed anew."""
    model, parts = target_of()
    head = glide_head(parts)
    state = head.open_text(TEXT[:1].tolist(), parts, lent_cache(model, TEXT[:-1]))
    fresh = head.open_text(TEXT[:1].tolist(), parts, lent_cache(model, TEXT[:-1]))
    with torch.inference_mode():
        state.extend(torch.empty(2, 0, 0), TEXT[1:3])
        draft_logits(state, 3)
        state.drop()
        state.extend(torch.empty(4, 0, 0), TEXT[3:7])
        draft_logits(state, 3)
        state.crop(4)
        assert state.length == 4
        state.extend(torch.empty(4, 0, 0), TEXT[5:])
        fresh.extend(torch.empty(8, 0, 0), TEXT[1:])
        torch.testing.assert_close(draft_logits(state, 3), draft_logits(fresh, 3), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tree", ["cape", "chain", "dynamic"])
def test_greedy_text_is_the_target_s(tree: str) -> None:
    """Guards losslessness and the order of commits: the target's cache holds what the head has read."""
    model, parts = target_of()
    check_greedy(model, LoadedHead(glide_head(parts), parts, "glide", "glide"), settings={"tree": tree})


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "gemma3"])
def test_targets(name: str) -> None:
    """Guards targets: those with one rotary embedding work, the others are refused with the reason."""
    model, parts = target_of(name)
    if name == "qwen3":
        check_greedy(model, LoadedHead(glide_head(parts), parts, "glide", "glide"))
    else:
        with pytest.raises(UnsupportedError, match="rotary"):
            target_cross_shape(parts)


@pytest.mark.parametrize(("best", "width"), [(0.2, 7), (0.5, 5), (0.7, 3), (0.95, 1)])
def test_widths_follow_confidence(best: float, width: int) -> None:
    """Guards CaPE's table of widths, and that the chain goes on from the most probable token alone."""
    shape = ConfidenceWidths(LevelAcceptance(), 5)
    q = torch.full((1, 20), (1 - best) / 19)
    q[0, 4] = best
    level = Level(1, q, [1.0], 64, 5, True, False, torch.Generator())
    found = shape.expand(level)
    assert len(found) == width
    assert found[0].token == 4
    assert shape.select([each.probability for each in found]) == [0]
    with pytest.raises(UsageError, match="depth"):
        ConfidenceWidths(LevelAcceptance(), 0)


def test_checkpoint(tmp_path: Path) -> None:
    """Guards the authors' layout: it is found, loaded and saved, with every name."""
    _, parts = target_of()
    head = glide_head(parts)
    save(head, tmp_path, parts)
    assert "model.layers.0.cross_attn.q_proj.weight" in load_file(tmp_path / "model.safetensors")
    assert [each.kind for each in FORMATS if each.matches(read_checkpoint(tmp_path))] == ["glide"]
    loaded = load_head(tmp_path, parts).head
    assert isinstance(loaded, GlideHead)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in head.state_dict().items())


@pytest.mark.parametrize(
    ("change", "drop", "words"),
    [
        ({"large_hidden_size": 64}, None, "hidden states of size 64"),
        ({"large_num_attention_heads": 8}, None, "8 attention heads"),
        ({"use_remap": True}, None, "use_remap"),
        ({}, "model.layers.0.cross_attn.o_proj.weight", "cross_attn.o_proj.weight"),
        ({"vocab_size": 61}, "model.embed_tokens.weight", "embed_tokens.weight"),
    ],
)
def test_refusals(change: dict[str, Any], drop: str | None, words: str, tmp_path: Path) -> None:
    """Guards heads of other targets and damaged files."""
    _, parts = target_of()
    save(glide_head(parts), tmp_path, parts)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {k: v for k, v in load_file(tmp_path / "model.safetensors").items() if k != drop}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match=words):
        load_head(tmp_path, parts)
