"""Checkpoints of DFlash and DSpark heads, in each public layout."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from block_heads import states, target_of
from dflash_heads import BLOCKS, PROMPT, SHAPE, SIZES, block_config, dflash_head
from models import VOCABULARY
from pairwise import in_turn
from speculant import Speculator
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import read_checkpoint
from speculant.drafters.heads.checkpoints.formats import FORMATS, load_head
from speculant.drafters.heads.dflash.checkpoint import save
from speculant.drafters.heads.dflash.head import DFlashHead
from speculant.drafters.heads.dflash.shape import BlockShape
from speculant.engines.hf.views.target_parts import HFTargetParts

IDS = torch.arange(0, 40, 2)
RENAMED = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}


def modelopt(name: str) -> str:
    """Return the name that ModelOpt gives a tensor of a DSpark head."""
    return name.removeprefix("markov_head.").replace("confidence_head.proj", "confidence_proj")


@cache
def layouts() -> dict[str, tuple[DFlashHead, dict[str, Any], dict[str, Tensor]]]:
    """Return a head in each layout: the head, its config, and its tensors as the authors' programs write them."""
    zlab, deepspec, spark = dflash_head(BLOCKS["z-lab"]), dflash_head(BLOCKS["deepspec"]), dflash_head(BLOCKS["dspark"])
    sliding = dflash_head(BLOCKS["sliding"])
    both_ways = dflash_head(replace(BLOCKS["z-lab"], windows=(4, 4)))
    reduced = replace(BLOCKS["z-lab"], own_output=True, own_embeddings=True, windows=(None, 4), causal=(False, True))
    speculators = dflash_head(reduced, ids=IDS)
    gated, rnn = dflash_head(BLOCKS["gated"]), dflash_head(BLOCKS["rnn"])
    after, places = dflash_head(BLOCKS["domino"]), dflash_head(BLOCKS["domino, own places"])
    jetspec, windows = dflash_head(BLOCKS["JetSpec"]), dflash_head(replace(BLOCKS["z-lab"], windows=(4, 4)))
    raw = dflash_head(replace(BLOCKS["DFlash 2"], scale=1.0))
    whole = dflash_head(replace(BLOCKS["DFlash 2"], own_embeddings=True, own_output=True, windows=(4, 4), scale=1.0))
    domino = {"projector_type": "domino", "emb_dim": 5, "gru_hidden_dim": 6}
    selector = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 9}
    own = {"block_size": 5, "mask_token_id": 3, "target_layer_ids": [0, 1]}
    types = ["full_attention", "sliding_attention"]
    maps = {"d2t": IDS - torch.arange(20), "t2d": torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, IDS, True)}
    return {
        "SpecForge DSpark": (
            gated,
            SIZES
            | {"architectures": ["DSparkDraftModel"], "block_size": 5}
            | block_config(
                projector_type="dspark",
                attention_mode="gqa",
                markov_rank=6,
                markov_head_type="gated",
                enable_confidence_head=True,
                confidence_head_alpha=1.0,
                confidence_head_with_markov=False,
            ),
            {},
        ),
        "ModelOpt DSpark": (
            spark,
            SIZES
            | {"architectures": ["DFlashDraftModel"], "block_size": 5}
            | block_config(
                projector_type="dspark",
                shift_label=True,
                markov_rank=6,
                markov_head_type="vanilla",
                use_confidence_head=True,
            ),
            {modelopt(name): tensor for name, tensor in spark.state_dict().items()},
        ),
        "speculators DSpark": (
            rnn,
            {
                "speculators_model_type": "dspark",
                "transformer_layer_config": SIZES,
                "aux_hidden_state_layer_ids": [1, 2],
                "block_size": 5,
                "mask_token_id": 3,
                "draft_vocab_size": VOCABULARY,
                "sample_from_anchor": False,
                "markov_rank": 6,
                "markov_head_type": "rnn",
                "enable_confidence_head": False,
                "confidence_head_with_markov": True,
            },
            {**rnn.state_dict(), "verifier_norm.weight": torch.ones(32)},
        ),
        "Domino": (
            after,
            SIZES
            | {"architectures": ["DominoDraftModel"], "block_size": 5, "emb_dim": 5}
            | block_config(**domino, pure_draft_prefix_len=1, shift_label=True),
            {name.removeprefix("domino_head."): tensor for name, tensor in after.state_dict().items()},
        ),
        "Domino, early": (
            places,
            SIZES | {"architectures": ["DominoDraftModel"], "block_size": 5} | block_config(**domino),
            {name.replace("domino_head.", "logit_head."): tensor for name, tensor in places.state_dict().items()},
        ),
        "DFlash 2": (
            raw,
            SIZES
            | {"architectures": ["DFlash2DraftModel"], "is_causal": False}
            | block_config(block_size=5, **selector),
            {},
        ),
        "DFlash 2, speculators": (
            whole,
            {
                "speculators_model_type": "dflash2",
                "transformer_layer_config": SIZES | {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4},
                "aux_hidden_state_layer_ids": [1, 2],
                "block_size": 5,
                "mask_token_id": 3,
                "draft_vocab_size": VOCABULARY,
                "draft_ffn_type": "dense",
                "num_experts": 256,
                **selector,
            },
            {},
        ),
        "JetSpec": (jetspec, SIZES | {"block_size": 5} | block_config(causal_head=True), {}),
        "ModelOpt windows": (
            windows,
            SIZES
            | {"layer_types": ["full_attention"] * 2, "sliding_window": 4, "block_size": 5}
            | block_config(use_swa=True, swa_window_size=4, causal=False),
            {},
        ),
        "z-lab": (zlab, SIZES | {"architectures": ["DFlashDraftModel"], "block_size": 5} | block_config(), {}),
        "z-lab sliding": (
            sliding,
            SIZES | {"block_size": 5} | block_config() | {"layer_types": types, "sliding_window": 4},
            {},
        ),
        "deepspec": (deepspec, SIZES | own | {"architectures": ["Qwen3DSparkModel"], "markov_rank": 0}, {}),
        "dspark": (spark, SIZES | own | {"markov_rank": 6, "markov_head_type": "vanilla"}, {}),
        "transformers": (
            both_ways,
            SIZES | own | {"layer_types": ["sliding_attention"] * 2, "sliding_window": 3},
            {RENAMED.get(name, name): tensor for name, tensor in both_ways.state_dict().items()},
        ),
        "speculators": (
            speculators,
            {
                "speculators_model_type": "dflash",
                "transformer_layer_config": SIZES | {"layer_types": types, "sliding_window": 4},
                "aux_hidden_state_layer_ids": [1, 2],
                "block_size": 5,
                "mask_token_id": 3,
                "draft_vocab_size": 20,
                "sample_from_anchor": False,
            },
            {**speculators.state_dict(), **maps},
        ),
    }


@pytest.fixture(scope="module")
def parts() -> HFTargetParts:
    """The parts of a target."""
    return target_of()[1]


def write(folder: Path, name: str) -> DFlashHead:
    head, config, tensors = layouts()[name]
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors or head.state_dict()), folder / "model.safetensors")
    return head


@pytest.mark.parametrize("name", layouts())
def test_loads_and_saves(name: str, parts: HFTargetParts, tmp_path: Path) -> None:
    """Guards every layout: the same head, of one format alone, before and after it is written again."""
    want = write(tmp_path, name)
    assert [each.kind for each in FORMATS if each.matches(read_checkpoint(tmp_path))] == ["dflash"]
    again = tmp_path / "again"
    again.mkdir()
    for folder in (tmp_path, again):
        loaded = load_head(folder, parts)
        assert isinstance(loaded.head, DFlashHead)
        assert loaded.method == ("jetspec" if name == "JetSpec" else "dflash")
        assert loaded.head.taps == want.taps
        assert replace(loaded.head.block, vocabulary=0) == replace(want.block, vocabulary=0)
        assert (loaded.head.ids is None) == (want.ids is None)
        assert want.ids is None or torch.equal(loaded.head.ids, want.ids)
        for key, tensor in want.state_dict().items():
            assert torch.equal(loaded.head.state_dict()[key], tensor), key
        if folder is tmp_path:
            save(loaded.head, again, parts)


@pytest.mark.parametrize(("name", "damage"), in_turn(layouts(), ["missing", "extra", "shape"]))
def test_strict(name: str, damage: str, parts: HFTargetParts, tmp_path: Path) -> None:
    """Guards damaged files: the tensor that is missing, left over or mis-shaped is named."""
    write(tmp_path, name)
    tensors, key = load_file(tmp_path / "model.safetensors"), "layers.1.mlp.up_proj.weight"
    if damage == "missing":
        del tensors[key]
    elif damage == "extra":
        key = "layers.1.mlp.other.weight"
        tensors[key] = torch.zeros(2)
    else:
        tensors[key] = torch.zeros(47, 32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match=key):
        load_head(tmp_path, parts)


# layout, config, tensors (None: left out), words of the message
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Tensor | None], str]] = {
    "another hidden size": ("z-lab", {}, {"fc.weight": torch.zeros(16, 32)}, "hidden states"),
    "too many layers": ("z-lab", block_config(target_layer_ids=[0, 9]), {}, "3 layers"),
    "last layer": ("z-lab", block_config(target_layer_ids=[0, 2]), {}, "final norm"),
    "embeddings": ("speculators", {"aux_hidden_state_layer_ids": [0, 2]}, {}, "embeddings"),
    "layer ids and fc": ("z-lab", block_config(target_layer_ids=[0]), {}, "names 1 layers"),
    "mask": ("z-lab", block_config(mask_token_id=999), {}, "token 999"),
    "vocabulary": ("speculators", {}, {"d2t": None}, "d2t"),
    "foreign tokens": ("speculators", {}, {"d2t": IDS + 50}, "maps its tokens"),
    "kind of Markov head": ("dspark", {"markov_head_type": "other"}, {}, "'other'"),
    "Markov head left out": ("z-lab", {"markov_rank": 4}, {}, "markov_head.markov_w1"),
    "confidence head left out": ("z-lab", block_config(use_confidence_head=True), {}, "confidence_head.proj"),
    "gate left out": ("SpecForge DSpark", {}, {"markov_head.gate_proj.bias": None}, "gate_proj.bias"),
    "GRU left out": ("Domino", {}, {"prefix_gru.weight_hh_l0": None}, "prefix_gru.weight_hh_l0"),
    "GRU with biases": ("Domino", {}, {"prefix_gru.bias_ih_l0": torch.zeros(18)}, "prefix_gru.bias_ih_l0"),
    "GRU of another size": ("Domino", {}, {"prefix_gru.weight_hh_l0": torch.zeros(9, 3)}, "prefix_gru.weight_hh_l0"),
    "Domino without sizes": ("Domino", block_config(projector_type="domino"), {}, "gru_hidden_dim"),
    "projector": ("Domino", block_config(projector_type="causal_v5"), {}, "causal_v5"),
    "selector without sizes": ("DFlash 2", block_config(block_size=5), {}, "conv_kernel_size"),
    "codebook left out": ("DFlash 2", {}, {"candidate_selector.successor_codebook": None}, "successor_codebook"),
    "convolution left out": ("DFlash 2", {}, {"layers.1.mlp_conv.base_kernel": None}, "mlp_conv.base_kernel"),
    "groups": ("DFlash 2, speculators", {"conv_group_size": 5}, {}, "conv_group_size"),
    "experts": ("DFlash 2, speculators", {"draft_ffn_type": "moe"}, {}, "draft_ffn_type"),
    "sinks": ("z-lab", block_config(attention_sink_bias=True), {}, "attention_sink_bias"),
    "unknown field of dflash_config": ("z-lab", block_config(zigzag=3), {}, "'zigzag'"),
    "unknown factor": ("z-lab", {"residual_multiplier": 0.5}, {}, "residual_multiplier"),
    "rotation in pairs": ("z-lab", {"is_neox_style": False}, {}, "is_neox_style"),
    "layers of Gemma 4": ("deepspec", {"hidden_activation": "gelu_pytorch_tanh"}, {}, "hidden_activation"),
    "contradiction": ("JetSpec", {"is_causal": False}, {}, "'is_causal' False, 'causal_head' True"),
    "kind of layer": ("z-lab", {"layer_types": ["full_attention", "linear_attention"]}, {}, "linear_attention"),
    "truncated": ("z-lab sliding", {"layer_types": ["full_attention"] * 3}, {}, "truncated"),
    "no mask": ("deepspec", {"mask_token_id": None}, {}, "mask_token_id"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, parts: HFTargetParts, tmp_path: Path) -> None:
    """Guards heads of other targets and variants with other formulas: the reason is in the message."""
    name, changes, others, words = REFUSED[case]
    write(tmp_path, name)
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    tensors = load_file(tmp_path / "model.safetensors") | others
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({key: tensor for key, tensor in tensors.items() if tensor is not None}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match=words):
        load_head(tmp_path, parts)


def test_public_ids_are_the_layers_whose_outputs_are_read(tmp_path: Path) -> None:
    """Guards both conventions of layer ids, which name the same layers: drafts from a folder are those of the head."""
    model, _ = target_of()
    head = write(tmp_path, "z-lab")
    speculator = Speculator.from_transformers(model, method="dflash", head=str(tmp_path), nodes=4, fast=False)
    assert speculator.drafter.needs.hidden_layers == head.taps == (0, 1)
    assert speculator.generate(PROMPT, max_new_tokens=6, temperature=0).stats.drafted > 0


def test_transformers_own_model(tmp_path: Path) -> None:
    """Guards transformers' layout against transformers' code: the same logits, with windows that cut the context."""
    module = pytest.importorskip("transformers.models.muse_glimmer_assistant")
    torch.manual_seed(0)
    sizes = {key: value for key, value in SIZES.items() if key not in ("vocab_size", "rope_theta")}
    config = module.MuseGlimmerAssistantConfig(
        **sizes,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        block_size=5,
        mask_token_id=3,
        target_layer_ids=[0, 1],
    )
    theirs = module.MuseGlimmerAssistantModel(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(torch.randn(weight.shape) * 0.3 + (weight.ndim == 1))
    theirs.save_pretrained(tmp_path)
    model, parts = target_of()
    head = load_head(tmp_path, parts).head
    assert isinstance(head, DFlashHead)
    hidden = states(model, parts, head.taps, torch.tensor([PROMPT]))[0][0, :-1]
    with torch.no_grad():
        noise = parts.embed(torch.tensor([[PROMPT[-1], 3, 3, 3, 3]]))
        positions = torch.arange(len(hidden) + 5)[None]
        cache = transformers.cache_utils.DFlashCache(config=config)
        cache.set_previous_accepted_tokens(len(hidden))
        output = theirs(noise, hidden.flatten(1)[None], position_ids=positions, past_key_values=cache)
        want = output.last_hidden_state[0, 1:]
        state = head.open(0, parts)
        state.extend(hidden, torch.tensor(PROMPT[1:]))
        got = torch.cat([state.start(), *(state.grow([4], [row]) for row in (-1, 0, 1))])
    torch.testing.assert_close(got, parts.project(want), atol=1e-4, rtol=1e-4)


def test_block_shape_counts_drafts() -> None:
    """Guards the two conventions of slots: b - 1 tokens in z-lab's, b in DeepSpec's."""
    assert BlockShape(layers=1, size=8, mask=0).drafted == 7
    assert BlockShape(layers=1, size=7, mask=0, anchored=True).drafted == 7
    assert SHAPE.norms


@pytest.mark.parametrize("name", ["z-lab", "z-lab sliding", "transformers", "speculators"])
@pytest.mark.parametrize("causal", [True, False])
def test_dflash_configs_causal_is_for_all_layers(name: str, causal: bool, parts: HFTargetParts, tmp_path: Path) -> None:
    """Guards heads of JetSpec and ModelOpt: drafted with another mask than they were trained with, they accept less.

    It comes before what the layers' types imply, and it is written again.
    """
    write(tmp_path, name)
    config = json.loads((tmp_path / "config.json").read_text())
    config["dflash_config"] = config.get("dflash_config", {}) | {"causal": causal}
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = tmp_path / "again"
    again.mkdir()
    for folder in (tmp_path, again):
        head = load_head(folder, parts).head
        assert isinstance(head, DFlashHead)
        assert head.block.causal == ((True, True) if causal else ())
        if folder is tmp_path:
            save(head, again, parts)
    implied = tuple(window is not None for window in head.block.windows or (None, None))
    written = json.loads((again / "config.json").read_text())["dflash_config"]
    assert written.get("causal") == (None if implied == (causal, causal) else causal)
