"""Heads as their authors' own packages compute and write them: EAGLE-1, Medusa, and SpecForge's EAGLE-3 and DFlash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from eagles import IDS, replayed, spread, states, target_model
from models import VOCABULARY
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.engines.hf.views.target_parts import HFTargetParts

pytestmark = pytest.mark.peers
CLOSE = {"atol": 1e-5, "rtol": 1e-4}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
}


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Run what these packages compile as it is: a compiler is not what is tested."""
    with torch._dynamo.config.patch(disable=True):
        yield


@pytest.mark.parametrize("bias", [True, False])
def test_eagle(target: HFTargetParts, tmp_path: Path, *, bias: bool) -> None:
    """Guards EAGLE-1: the states that are passed on and the logits, over a text and a drafted token."""
    cnets = pytest.importorskip("eagle.model.cnets")
    config = SimpleNamespace(**SIZES, pad_token_id=0, pretraining_tp=1, rope_scaling=None, hidden_act="silu")
    torch.manual_seed(0)
    model = spread(cnets.Model(config, bias=bias))
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.embed(torch.arange(VOCABULARY)))
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(SIZES | {"architectures": ["LlamaForCausalLM"], "bias": bias}))
    head = load_head(tmp_path, target).head
    hidden, following = states(7, 1)
    with torch.inference_mode():
        passed, cache = model(target.norm(hidden[:, 0])[None], following[None], use_cache=True)
        state = replayed(head, target, hidden, following)
        assert torch.allclose(state.start()[0], target.project(passed[0, -1]), **CLOSE)
        drafted, _ = model(passed[:, -1:], torch.tensor([[17]]), past_key_values=cache, use_cache=True)
        assert torch.allclose(state.grow([17], [-1])[0], target.project(drafted[0, -1]), **CLOSE)


@pytest.mark.parametrize("layers", [1, 2])
def test_medusa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: int) -> None:
    """Guards Medusa: every head's logits over the target's own hidden states, from a published `medusa_lm_head.pt`."""
    package = pytest.importorskip("medusa.model.medusa_model")
    monkeypatch.setattr(package, "AutoTokenizer", SimpleNamespace(from_pretrained=lambda _: None))
    base = target_model()
    torch.manual_seed(0)
    model = package.MedusaModel(base, medusa_num_heads=3, medusa_num_layers=layers)
    with torch.no_grad():
        for weight in model.medusa_head.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2)
    torch.save(model.medusa_head.state_dict(), tmp_path / "medusa_lm_head.pt")
    config = {"medusa_num_heads": 3, "medusa_num_layers": layers, "base_model_name_or_path": "vicuna"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    target = HFTargetParts(base)
    head = load_head(tmp_path, target).head
    ids = torch.tensor([[5, 7, 9, 11]])
    wanted = model(ids)[:, 0, -1]
    with torch.inference_mode():
        hidden = []
        hook = base.model.layers[-1].register_forward_hook(
            lambda _, __, output: hidden.append(output[0] if isinstance(output, tuple) else output)
        )
        base(ids)
        hook.remove()
        state = replayed(head, target, hidden[0].reshape(4, 1, -1), torch.tensor([7, 9, 11, 3]))
        found = torch.cat([state.start(), state.grow([11], [-1]), state.grow([12], [0])])
    assert torch.allclose(found, wanted, **CLOSE)


@pytest.mark.parametrize("fc_norm", [False, True])
def test_specforge_eagle3(target: HFTargetParts, tmp_path: Path, *, fc_norm: bool) -> None:
    """Guards EAGLE-3 of SpecForge: two steps of its training, the second on the output of the first."""
    draft = pytest.importorskip("specforge.modeling.draft.llama3_eagle")
    from transformers import LlamaConfig

    layers = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    config = LlamaConfig(**SIZES, draft_vocab_size=len(IDS), fc_norm=fc_norm, eagle_config=layers, pad_token_id=0)
    torch.manual_seed(0)
    model = spread(draft.LlamaForCausalLMEagle3(config))
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.randn_like(model.lm_head.weight))
        model.d2t.copy_(IDS - torch.arange(len(IDS)))
        model.t2d.zero_()[IDS] = True
    model.save_pretrained(tmp_path)
    head = load_head(tmp_path, target).head
    hidden, following = states(7)
    mask = model.prepare_decoder_attention_mask(torch.ones(1, 7, dtype=torch.bool), torch.zeros(1, 7, 32), 1, 7, 0)
    feature, cache, found = model.project_hidden_states(hidden.flatten(1)[None]), [[], []], []
    with torch.inference_mode():
        for step in range(2):
            feature = model.backbone(
                input_embeds=model.embed_input_ids(following.roll(-step)[None]),
                hidden_states=feature,
                cache_hidden=cache,
                attention_mask=mask,
                position_ids=torch.arange(7)[None],
            )
            found.append(model.compute_logits(feature)[0])
        for row in range(6):
            state = replayed(head, target, hidden[: row + 1], following[: row + 1])
            assert torch.allclose(state.start()[0], found[0][row], **CLOSE)
            assert torch.allclose(state.grow([int(following[row + 1])], [-1])[0], found[1][row], **CLOSE)


def test_specforge_dflash(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards DFlash of SpecForge: the slots of a block behind a text."""
    draft = pytest.importorskip("specforge.modeling.draft.dflash")
    from transformers import Qwen3Config

    sizes = SIZES | {"num_hidden_layers": 2, "head_dim": 8}
    inner = {"mask_token_id": 3, "target_layer_ids": [1, 3, 4]}
    config = Qwen3Config(
        **sizes, dflash_config=inner, block_size=4, num_target_layers=8, layer_types=["full_attention"] * 2
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    model = spread(draft.DFlashDraftModel(config))
    model.save_pretrained(tmp_path)
    head = load_head(tmp_path, target).head
    hidden, tokens = states(7)
    root = int(tokens[-1])
    with torch.inference_mode():
        block = target.embed(torch.tensor([[root, 3, 3, 3]]))
        wanted = model(
            position_ids=torch.arange(11)[None], noise_embedding=block, target_hidden=hidden.flatten(1)[None]
        )
        state = replayed(head, target, hidden, tokens)
        found = torch.cat([state.start(), state.grow([11], [-1]), state.grow([12], [0])])
        assert torch.allclose(found, target.project(wanted[0, 1:]), **CLOSE)
