"""SpecDec's drafter: an encoder of the text and a block of masks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from block_heads import check_greedy, check_histories, rms, rope, target_of
from models import VOCABULARY
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import read_checkpoint
from speculant.drafters.heads.checkpoints.formats import FORMATS, load_head
from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.specdec.checkpoint import save
from speculant.drafters.heads.specdec.head import SpecDecHead
from text_heads import specdec_head

TEXT = torch.tensor([5, 7, 9, 11, 13, 8, 4, 6, 10])


def formula(head: SpecDecHead, text: torch.Tensor) -> torch.Tensor:
    """Return the logits [K, V] of the block behind a text."""
    w = dict(head.named_parameters())

    def layer(of: str, x: torch.Tensor, memory: torch.Tensor | None) -> torch.Tensor:
        given = rms(x, w[of + "input_layernorm.weight"])
        both = given if memory is None else torch.cat([memory, given])
        first = 0 if memory is None else len(memory)

        def heads(y: torch.Tensor, name: str) -> torch.Tensor:
            return (y @ w[f"{of}self_attn.{name}.weight"].T).reshape(len(y), -1, 8).transpose(0, 1)

        q = rope(heads(given, "q_proj"), torch.arange(first, first + len(x)))
        k, v = rope(heads(both, "k_proj"), torch.arange(len(both))), heads(both, "v_proj")
        scores = q @ k.transpose(1, 2) / 8**0.5
        if memory is None:
            scores = scores.masked_fill(~torch.ones(len(x), len(x)).tril().bool(), -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        x = x + mixed @ w[of + "self_attn.o_proj.weight"].T
        y = rms(x, w[of + "post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(y @ w[of + "mlp.gate_proj.weight"].T)
        return x + (gate * (y @ w[of + "mlp.up_proj.weight"].T)) @ w[of + "mlp.down_proj.weight"].T

    x = w["embed_tokens.weight"][text]
    for index in range(2):
        x = layer(f"encoder.{index}.", x, None)
    memory = rms(x, w["encoder_norm.weight"])
    x = w["embed_tokens.weight"][VOCABULARY].repeat(4, 1)
    for index in range(2):
        x = layer(f"decoder.{index}.", x, memory)
    return rms(x, w["norm.weight"]) @ w["lm_head.weight"].T


def test_is_the_formula() -> None:
    """Guards both kinds of layers, their masks and positions."""
    _, parts = target_of()
    head = specdec_head()
    state = head.open_text(TEXT[:1].tolist(), parts, None)
    with torch.no_grad():
        state.extend(torch.empty(8, 0, 0), TEXT[1:])
        got = torch.cat([state.start(), *(state.grow([9], [row]) for row in (-1, 0, 1))])
        torch.testing.assert_close(got, formula(head, TEXT), atol=2e-5, rtol=1e-5)


def test_cached_is_uncached() -> None:
    """Guards the rows of both over rounds, rejected drafts and crops."""
    _, parts = target_of()
    head = specdec_head()
    check_histories(lambda: head.open_text(TEXT[:1].tolist(), parts, None), torch.empty(8, 0, 0), TEXT, depth=3)


@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_greedy_text_is_the_target_s(tree: str) -> None:
    """Guards losslessness with any drafter."""
    model, parts = target_of()
    check_greedy(model, LoadedHead(specdec_head(), parts, "specdec", "specdec"), settings={"tree": tree})


def test_checkpoint(tmp_path: Path) -> None:
    """Guards the layout: found, loaded and saved; a weight that is missing is named."""
    _, parts = target_of()
    head = specdec_head()
    save(head, tmp_path, parts)
    assert [each.kind for each in FORMATS if each.matches(read_checkpoint(tmp_path))] == ["specdec"]
    loaded = load_head(tmp_path, parts).head
    assert isinstance(loaded, SpecDecHead)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in head.state_dict().items())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["decoder.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"decoder\.1\.mlp\.up_proj\.weight"):
        load_head(tmp_path, parts)
