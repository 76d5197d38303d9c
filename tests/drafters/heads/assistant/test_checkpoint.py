"""Gemma 4 assistants in the published layout: found, loaded, and refused where they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoConfig

from gemmas import FULL, SLIDING, TARGETS, assistant_config, assistant_tensors, gemma, save_assistant
from models import tiny_model
from pairwise import in_turn
from speculant import Speculator
from speculant.api.heads import open_head
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, read_checkpoint
from speculant.drafters.heads.checkpoints.formats import FORMATS, load_head
from speculant.drafters.heads.checkpoints.read_layers import read_layers
from speculant.drafters.heads.drafter import LoadedHead
from speculant.engines.hf.views.target_parts import HFTargetParts

Change = Callable[[dict[str, Any]], Any]


def opened(model: Any, config: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> LoadedHead:
    """Return the assistant of a checkpoint."""
    return open_head(Checkpoint("memory", config, tensors or assistant_tensors(config)), model)


@pytest.mark.parametrize(("name", "clusters"), in_turn(TARGETS, [0, 12]))
def test_the_published_layout(name: str, clusters: int, tmp_path: Path) -> None:
    """Guards folders: the format is found, every tensor is where its name says, and the head drafts by its method."""
    model = gemma(name, vocab_size=60)
    config = assistant_config(model, clusters=clusters)
    tensors = assistant_tensors(config)
    save_assistant(tmp_path, config, tensors)
    assert [each.kind for each in FORMATS if each.matches(read_checkpoint(tmp_path))] == ["assistant"]
    loaded = open_head(tmp_path, model)
    assert isinstance(loaded.head, torch.nn.Module)
    found = loaded.head.state_dict()
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    speculator = Speculator.from_transformers(model, head=tmp_path, nodes=4)
    assert speculator.method == "mix-head"
    assert speculator.generate([5, 7, 9], max_new_tokens=6, temperature=0).stats.drafted > 0


@pytest.mark.parametrize(
    ("target", "draft", "read"),
    [  # of E2B, E4B, 26B-A4B, 31B and 12B: layers, period, shared, keys; queries; the layers read
        ((1536, 35, 5, 20, 1, None), (4, 512), (13, 14)),
        ((2560, 42, 6, 18, 2, None), (4, 512), (22, 23)),
        ((2816, 30, 6, 0, 8, 2), (16, 1024), (28, 29)),
        ((5376, 60, 6, 0, 16, 4), (32, 1024), (58, 59)),
        ((3840, 48, 6, 0, 8, 1), (16, 1024), (46, 47)),
    ],
)
def test_published_sizes(
    target: tuple[int, int, int, int, int, int | None], draft: tuple[int, int], read: tuple[int, int]
) -> None:
    """Guards the layers that each published pair shares, by the fields of its configs."""
    hidden, layers, period, shared, kv_heads, wide = target
    heads, window = draft
    own: dict[str, Any] = {"num_key_value_heads": kv_heads, "attention_k_eq_v": wide is not None}
    own |= {"num_global_key_value_heads": wide, "head_dim": 256, "global_head_dim": 512, "sliding_window": window}
    kinds = [FULL if (layer + 1) % period == 0 else SLIDING for layer in range(layers)]
    kind = "gemma4_unified_text" if hidden == 3840 else "gemma4_text"
    if kind not in CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {kind}")
    config = AutoConfig.for_model(kind, num_hidden_layers=layers, num_kv_shared_layers=shared, layer_types=kinds, **own)
    parts: Any = SimpleNamespace(
        config=config, layers=layers, positions=131072, frequencies=partial(HFTargetParts.frequencies, None)
    )
    text = own | {"layer_types": [SLIDING] * 3 + [FULL], "rope_parameters": config.rope_parameters}
    found = read_layers(Checkpoint("memory", {}, {}), text, parts, heads)
    assert (found[SLIDING].layer, found[FULL].layer) == read
    assert (found[SLIDING].kv_heads, found[FULL].kv_heads) == (kv_heads, wide or kv_heads)
    assert (found[SLIDING].head_dim, found[FULL].head_dim) == (256, 512)
    assert (found[SLIDING].window, found[FULL].window) == (window, None)
    assert found[FULL].frequencies.count_nonzero() == 64


def test_both_forms_of_configs() -> None:
    """Guards sizes by layer: as the fields of published files, and as transformers writes them since it has both."""
    model = gemma("own")
    config = assistant_config(model)
    for name in ("global_head_dim", "num_global_key_value_heads"):
        del config["text_config"][name]
    config["text_config"]["per_layer_config"] = {"3": {"head_dim": 16, "num_key_value_heads": 1}}
    tensors = assistant_tensors(assistant_config(model))
    assert opened(model, config, tensors).kind == "assistant"
    config["text_config"]["per_layer_config"]["3"]["sliding_window"] = 4
    with pytest.raises(UnsupportedError, match="sets sliding_window for a single layer"):
        opened(model, config, tensors)


def test_tensors_that_say_nothing_new() -> None:
    """Guards copies of the tied embeddings, and projections of layers that have no keys: both may be there."""
    model = gemma("own")
    config = assistant_config(model)
    tensors = assistant_tensors(config)
    more = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    more["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(16, 24)
    assert opened(model, config, tensors | more).kind == "assistant"
    with pytest.raises(UnsupportedError, match=r"lm_head\.weight that differs"):
        opened(model, config, tensors | {"lm_head.weight": more["lm_head.weight"] + 1})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(backbone_hidden_size=64), "hidden states of size 64, but the target's have 32"),
        (lambda c: c["text_config"].update(vocab_size=62), "vocabulary of 62 tokens, but the target's has 60"),
        (lambda c: c["text_config"].update(head_dim=16), "keys of size 16 in sliding_attention.* 2 of size 8"),
        (lambda c: c["text_config"].update(global_head_dim=32), "keys of size 32 in full_attention.* 1 of size 16"),
        (lambda c: c["text_config"].update(num_key_value_heads=4), "4 keys of size 8 in sliding_attention.* caches 2"),
        (lambda c: c["text_config"].pop("head_dim"), "size or the number of keys"),
        (lambda c: c["text_config"].update(rope_parameters={}), "no rope_parameters for sliding_attention"),
        (
            lambda c: c["text_config"]["rope_parameters"][FULL].update(rope_theta=10.0),
            "rotates queries of full_attention differently",
        ),
        (lambda c: c["text_config"].update(num_kv_shared_layers=2), "of which 2 read the target's keys"),
        (lambda c: c["text_config"].update(layer_types=[SLIDING] * 3), "4 layers of the kinds"),
        (lambda c: c["text_config"].update(layer_types=["linear_attention"] * 4), "4 layers of the kinds linear"),
        (lambda c: c["text_config"].update(hidden_size_per_layer_input=8), "'hidden_size_per_layer_input' to 8"),
        (lambda c: c["text_config"].update(enable_moe_block=True), "'enable_moe_block' to True"),
        (lambda c: c["text_config"].update(attn_logit_softcapping=50.0), "'attn_logit_softcapping' to 50.0"),
        (lambda c: c["text_config"].update(hidden_activation="silu"), "'hidden_activation' to 'silu'"),
        (lambda c: c.update(tie_word_embeddings=False), "'tie_word_embeddings' to False"),
        (lambda c: c.update(position_embedding_scale=2.0), "'position_embedding_scale' to 2.0"),
        (lambda c: c.update(num_centroids=7), "60 tokens into 7 clusters"),
        (lambda c: c.update(centroid_intermediate_top_k=13), "12 clusters, of which it reads 13"),
        (lambda c: c.pop("text_config"), "no 'text_config'"),
        (lambda c: c["text_config"].pop("intermediate_size"), "no 'intermediate_size'"),
        (lambda c: c["text_config"].update(intermediate_size=41), "of shape .* where its config gives"),
    ],
)
def test_configs_that_do_not_fit(change: Change, words: str) -> None:
    """Guards assistants of other targets, and fields that change the forward pass: each is refused by name."""
    model = gemma("own", vocab_size=60)
    config = assistant_config(model, clusters=12)
    tensors = assistant_tensors(config)
    assert opened(model, config | {"id2label": {"0": "x"}, "unsloth_fixed": True}, tensors).kind == "assistant"
    change(config)
    with pytest.raises(UnsupportedError, match=words):
        opened(model, config, tensors)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("post_projection.weight"), "lacks post_projection.weight"),
        (lambda t: t.pop("model.layers.2.layer_scalar"), "lacks model.layers.2.layer_scalar"),
        (lambda t: t.pop("masked_embedding.centroids.weight"), "lacks masked_embedding.centroids.weight"),
        (
            lambda t: t.update({"model.layers.0.router.weight": torch.zeros(2)}),
            "unexpected model.layers.0.router.weight",
        ),
        (
            lambda t: t.update({"pre_projection.weight": torch.zeros(24, 32)}),
            r"pre_projection.weight of shape \[24, 32\]",
        ),
        (lambda t: t["masked_embedding.token_ordering"].fill_(3), "does not name each token once"),
    ],
)
def test_tensors_that_do_not_fit(change: Change, words: str) -> None:
    """Guards truncated and damaged files: a weight that is missing, left over or of another shape is named."""
    model = gemma("own", vocab_size=60)
    config = assistant_config(model, clusters=12)
    tensors = assistant_tensors(config)
    change(tensors)
    with pytest.raises(UnsupportedError, match=words):
        opened(model, config, tensors)


def test_other_targets() -> None:
    """Guards targets that are no Gemma 4, and those without a layer of a kind that has keys of its own."""
    config = assistant_config(gemma("own"))
    for name in ("llama", "gemma3"):
        with pytest.raises(UnsupportedError, match=f"is a Gemma 4 assistant.* target is a {name}"):
            load_head(Checkpoint("memory", config, {}), HFTargetParts(tiny_model(name)))
    with pytest.raises(UnsupportedError, match="no such layer with keys of its own"):
        opened(gemma("own", layer_types=[FULL] * 4), config)
