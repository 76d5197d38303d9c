"""Kangaroo's adapter: its formula, its checkpoints, and drafts of both codes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models import tiny_model
from pairwise import in_turn
from speculant import Speculator
from speculant.api.heads import open_head
from speculant.api.loading import bundled_heads, load_model
from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, read_checkpoint
from speculant.drafters.heads.checkpoints.formats import find_format
from speculant.drafters.heads.exit.checkpoint import load, save
from speculant.drafters.heads.exit.head import ExitHead, ExitState
from speculant.drafters.heads.exit.recipe import ExitRecipe, new_exit
from speculant.drafters.heads.training.recipe import TrainBatch
from speculant.engines.hf.cpu.build import BuildError, load_native
from speculant.engines.hf.views.target_parts import HFTargetParts

NAMES = {  # of the authors' adapter
    "norm.weight",
    "layers.0.input_layernorm.weight",
    *(f"layers.0.self_attn.{each}_proj.weight" for each in "qkvo"),
}


def adapter(target: HFTargetParts) -> ExitHead:
    torch.manual_seed(3)
    head = new_exit(target, layer=1)
    for each in head.parameters():
        torch.nn.init.normal_(each, std=0.3)
    return head.eval().requires_grad_(False)


def by_formula(head: ExitHead, x: Tensor) -> Tensor:
    """Return norm(x + attention(norm(x))) of rows [T, D], as the authors' adapter computes it."""

    def norm(rows: Tensor, weight: Tensor) -> Tensor:
        return rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + head.shape.eps) * weight

    own, shape, count = head.layer, head.shape, len(x)
    given = norm(x, own.input_layernorm.weight)
    angles = torch.arange(count)[:, None] * shape.theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    half = shape.head_dim // 2

    def split(rows: Tensor, heads: int) -> Tensor:
        return rows.view(count, heads, shape.head_dim).transpose(0, 1)

    def turn(rows: Tensor) -> Tensor:
        return rows * cos + torch.cat([-rows[..., half:], rows[..., :half]], -1) * sin

    queries = turn(split(own.self_attn.q_proj(given), shape.heads))
    keys = turn(split(own.self_attn.k_proj(given), shape.kv_heads))
    values = split(own.self_attn.v_proj(given), shape.kv_heads)
    groups = shape.heads // shape.kv_heads
    scores = queries @ keys.repeat_interleave(groups, 0).transpose(1, 2) / shape.head_dim**0.5
    scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
    attended = (scores.softmax(-1) @ values.repeat_interleave(groups, 0)).transpose(0, 1).flatten(1)
    return norm(x + own.self_attn.o_proj(attended), head.norm.weight)


def test_training_computes_the_formula() -> None:
    """Guards pairing: the row of a token gives the target's distribution of the next one."""
    model = tiny_model("llama")
    target = HFTargetParts(model)
    head = adapter(target)
    ids = torch.randint(5, 50, (1, 12), generator=torch.Generator().manual_seed(0))
    states = model(input_ids=ids, output_hidden_states=True).hidden_states
    anchors = torch.tensor([[0, 2], [0, 5]])
    hidden, final = states[1].detach()[:, :, None], states[-1].detach()
    batch = TrainBatch(ids=ids, lengths=torch.tensor([12]), hidden=hidden, final=final, anchors=anchors)
    first, second = ExitRecipe(head, 2).run(batch, target)
    expected = target.project(by_formula(head, hidden[0, :, 0]))
    for output, depth in ((first, 1), (second, 2)):
        torch.testing.assert_close(output.logits, expected[[2 + depth, 5 + depth]], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(output.target, target.project(final[0, [2 + depth, 5 + depth]]).detach())
        assert output.tokens.tolist() == ids[0, [3 + depth, 6 + depth]].tolist()


def test_checkpoints(tmp_path: Path) -> None:
    """Guards the authors' names and our own config: saved, told apart and loaded with equal weights."""
    target = HFTargetParts(tiny_model("llama"))
    head = adapter(target)
    save(head, tmp_path, target)
    checkpoint = read_checkpoint(tmp_path)
    assert set(checkpoint.tensors) == NAMES
    assert find_format(checkpoint).kind == "exit"
    found = load(checkpoint, target)
    assert (found.exit_layer, found.taps) == (1, (0,))
    assert all(torch.equal(found.state_dict()[name], each) for name, each in head.state_dict().items())


def test_checkpoints_of_the_authors() -> None:
    """Guards the exit, which their files do not name: that of their scripts, by the target's layers; else refused."""
    target: Any = HFTargetParts(tiny_model("llama"))
    head = adapter(target)
    config = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": target.vocabulary}
    config |= {"head_dim": head.shape.head_dim}
    tensors = {name: each.clone() for name, each in head.state_dict().items()}
    tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    with pytest.raises(UnsupportedError, match='"exit_layer"'):
        load(Checkpoint("theirs", config, tensors), target)
    target.layers = 32
    assert load(Checkpoint("theirs", config, tensors), target).exit_layer == 2
    with pytest.raises(UnsupportedError, match="after 40 layers"):
        load(Checkpoint("theirs", config | {"exit_layer": 40}, tensors), target)
    with pytest.raises(UsageError, match="from 1 to"):
        new_exit(HFTargetParts(tiny_model("llama")), layer=9)


def test_both_codes_draft_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards compiled drafts on the target's own cache: the same chains as layer by layer, and the target's text."""
    model, tokenizer = load_model(None, dtype="float32", device="cpu")
    folder = next(each for each in bundled_heads() if each.name == "exit")
    asked: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0.0}
    text = "Once upon a time there was a"
    plain = Speculator.from_transformers(model, tokenizer, method="none").generate(text, **asked)
    found, whole = list[Any](), list[bool]()
    draft = ExitState.draft

    def counted(state: ExitState, *given: Any) -> Any:
        grown = draft(state, *given)
        whole.append(grown is not None)
        return grown

    monkeypatch.setattr(ExitState, "draft", counted)
    for fast in (True, False):
        whole.clear()
        given = {"method": "kangaroo", "head": folder, "nodes": 3, "fast": fast}
        found.append(Speculator.from_transformers(model, tokenizer, **given).generate(text, **asked))
        assert any(whole) == (fast and native_available())
    assert [each.ids for each in found] == [plain.ids, plain.ids]
    assert found[0].stats.rounds == found[1].stats.rounds < 25


def test_views_of_layers_are_made_once() -> None:
    """Guards short requests: the view of the first layers is another one only where the model's weights are."""
    model = tiny_model("llama")
    target = HFTargetParts(model)
    views = [target.first_layers(1), target.first_layers(1)]
    attention = model.model.layers[0].self_attn
    attention.o_proj.weight = torch.nn.Parameter(attention.o_proj.weight.detach().clone())
    views.append(target.first_layers(1))
    first, same, other = (view[0][0] for view in views if view is not None)
    assert first is same is not other
    assert other.self_attn.o_proj.weight is attention.o_proj.weight


@pytest.mark.parametrize(("tree", "temperature"), in_turn(["sure", "chain", "dynamic"], [0.0, 1.0]))
def test_text_is_the_targets(tree: str, temperature: float) -> None:
    """Guards losslessness end to end, alone and in batches, with chosen and drawn drafts on a random adapter."""
    model = tiny_model("llama")
    head = open_head_of(model)
    asked: dict[str, Any] = {"max_new_tokens": 12, "temperature": temperature, "seed": 4}
    prompts = [[5, 9, 14], [7, 21, 30, 8]]
    plain = Speculator.from_transformers(model, method="none")
    expected = [plain.generate(prompt, **asked).ids for prompt in prompts]
    together = [each.ids for each in plain.generate_batch(prompts, **asked)]
    own = Speculator.from_transformers(model, method="kangaroo", head=head, nodes=4, settings={"tree": tree})
    assert [own.generate(prompt, **asked).ids for prompt in prompts] == expected
    assert [each.ids for each in own.generate_batch(prompts, **asked)] == together


def native_available() -> bool:
    try:
        load_native()
    except BuildError:
        return False
    return True


def open_head_of(model: Any) -> Any:
    """Return a random adapter as `open_head` returns heads."""
    target = HFTargetParts(model)
    with tempfile.TemporaryDirectory() as folder:
        save(adapter(target), Path(folder), target)
        return open_head(folder, model)
