"""Tiny checkpoints with MTP modules in every layout, and the formula of such modules written out."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from speculant.engines.hf.probe import tiny

FULL = "full_attention"


@dataclass(frozen=True, kw_only=True)
class Family:
    """How a family names and orders what its modules have, as its own code does.

    Attributes:
        kind: `model_type` of the target.
        around: where a module has its norms and projection: embedding, hidden, projection, output ("" for none).
        layers: prefix, kind of attention and index of the target's layer that is of the same form.
        hidden_first: the order of the projection's input.
        modules: how many.
        renamed: what the class calls parts of names, and the checkpoint.
        changes: of the target's config.
    """

    kind: str
    around: tuple[str, str, str, str]
    layers: tuple[tuple[str, str, int], ...]
    hidden_first: bool = False
    modules: int = 1
    renamed: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)


def behind(kind: str, norm: str = "shared_head.norm", **options: Any) -> Family:
    """Return a family whose modules are called as further layers."""
    layer = "model.layers.{L}."
    around = (layer + "enorm", layer + "hnorm", layer + "eh_proj", layer + norm)
    return Family(kind=kind, around=around, layers=((layer, FULL, -1),), **options)


QWEN = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
QWEN_LAYER = (("mtp.layers.{n}.", FULL, -1),)
MIMO = "model.mtp_layers.{n}."
MIMO_2 = "model.mtp.layers.{n}."
ERNIE = ("model.mtp_emb_norm.{n}", "model.mtp_hidden_norm.{n}", "model.mtp_linear_proj.{n}", "")
FAMILIES = {
    "qwen3_next": Family(kind="qwen3_next", around=QWEN, layers=QWEN_LAYER),
    "qwen3_5": Family(kind="qwen3_5_text", around=QWEN, layers=QWEN_LAYER),
    "qwen3_5_moe": Family(kind="qwen3_5_moe_text", around=QWEN, layers=QWEN_LAYER),
    "mellum": Family(
        kind="mellum",
        around=QWEN,
        layers=(("mtp.layers.{n}.", "sliding_attention", -1),),
        changes={"num_hidden_layers": 2, "layer_types": [FULL, "sliding_attention"], "sliding_window": 4},
    ),
    "deepseek_v3": behind("deepseek_v3"),
    "deepseek_v3 of two": behind("deepseek_v3", modules=2),
    "deepseek_v32": behind("deepseek_v32"),
    "glm4_moe": behind("glm4_moe"),
    "glm4_moe_lite": behind("glm4_moe_lite"),
    "glm_moe_dsa": behind("glm_moe_dsa"),
    "bailing_hybrid": behind(
        "bailing_hybrid",
        "final_layernorm",
        renamed={
            "self_attn.o_proj.": "attention.dense.",
            "self_attn.": "attention.",
            "mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias",
        },
    ),
    "mimo": Family(
        kind="qwen2",
        around=(MIMO + "token_layernorm", MIMO + "hidden_layernorm", MIMO + "input_proj", MIMO + "final_layernorm"),
        layers=((MIMO, FULL, -1),),
        hidden_first=True,
    ),
    "mimo of three": Family(
        kind="qwen2",
        around=(MIMO + "token_layernorm", MIMO + "hidden_layernorm", MIMO + "input_proj", MIMO + "final_layernorm"),
        layers=((MIMO, FULL, -1),),
        hidden_first=True,
        modules=3,
    ),
    "mimo_v2": Family(
        kind="mimo_v2_flash",
        around=(MIMO_2 + "enorm", MIMO_2 + "hnorm", MIMO_2 + "eh_proj", MIMO_2 + "final_layernorm"),
        layers=((MIMO_2, "sliding_attention", 0),),
        modules=2,
        renamed={"post_attention_layernorm": "pre_mlp_layernorm", "self_attn.sinks": "self_attn.attention_sink_bias"},
    ),
    "ernie4_5": Family(kind="ernie4_5", around=ERNIE, layers=(("model.mtp_block.{n}.", FULL, -1),)),
    "ernie4_5_moe": Family(kind="ernie4_5_moe", around=ERNIE, layers=(("model.mtp_block.{n}.", FULL, 0),)),
    "nemotron_h": Family(
        kind="nemotron_h",
        around=("mtp.layers.0.enorm", "mtp.layers.0.hnorm", "mtp.layers.0.eh_proj", "mtp.layers.1.final_layernorm"),
        layers=(("mtp.layers.0.", FULL, -1), ("mtp.layers.1.", "moe", -1)),
    ),
}


def family_model(family: Family) -> Any:
    """Return a random target."""
    if family.kind not in CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {family.kind}")
    config = tiny.tiny_config(AutoConfig.for_model(family.kind, **family.changes))
    for name in ("num_mtp_layers", "num_nextn_predict_layers"):
        if hasattr(config, name):
            setattr(config, name, family.modules)
    found = AutoModelForCausalLM._model_mapping[type(config)]
    model = tiny.tiny_model(found, config, attention="sdpa" if found._supports_sdpa else "eager")
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        model.lm_head.weight.mul_(0.25)  # logits of a size at which 1e-5 is far above their rounding
    return model


class Module:
    """One module: its layers, of the target's class, and what stands around them."""

    def __init__(self, family: Family, model: Any) -> None:
        self.family, self.model = family, model
        size = model.config.hidden_size
        self.norms = {
            place: copy.deepcopy(model.model.norm if hasattr(model.model, "norm") else model.model.norm_f)
            for place in (0, 1, 3)
        }
        self.projection = nn.Linear(2 * size, size, bias=False)
        self.layers = [layer_like(model, kind, index) for _, kind, index in family.layers]
        for module in (*self.norms.values(), self.projection, *self.layers):
            for parameter in module.parameters():
                spread = 1.5 * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3
                parameter.data = torch.randn_like(parameter) * spread + (parameter.ndim == 1)

    def tensors(self, number: int) -> dict[str, Tensor]:
        """Return its tensors by the names of the checkpoint."""
        places = {"n": number, "L": self.model.config.num_hidden_layers + number}
        found = {}
        for part, name in enumerate(self.family.around):
            if name:
                weight = self.projection.weight if part == 2 else self.norms[part].weight
                found[f"{name.format(**places)}.weight"] = weight.data
        for layer, (prefix, _, _) in zip(self.layers, self.family.layers, strict=True):
            for name, tensor in unfused(layer).items():
                for own, public in self.family.renamed.items():
                    name = name.replace(own, public) if own in name else name
                found[prefix.format(**places) + name] = tensor
        return found

    def run(self, ids: Tensor, hidden: Tensor, first: int) -> Tensor:
        """Return the outputs [n, D] of rows that read tokens Int64[n] and states [n, D], all at once."""
        embedded, hidden = self.norms[0](self.model.get_input_embeddings()(ids)), self.norms[1](hidden)
        parts = (hidden, embedded) if self.family.hidden_first else (embedded, hidden)
        x, places = self.projection(torch.cat(parts, -1))[None], torch.arange(first, first + len(ids))
        apart = places[:, None] - places
        for layer, (_, kind, _) in zip(self.layers, self.family.layers, strict=True):
            window = self.model.config.sliding_window if kind == "sliding_attention" else len(ids)
            hides = (apart < 0) | (apart >= window)
            mask = torch.zeros(hides.shape).masked_fill(hides, torch.finfo(torch.float32).min)[None, None]
            given: dict[str, Any] = {"attention_mask": mask, "position_ids": places[None]}
            if rotary := getattr(self.model.model, "rotary_emb", None):
                typed = (kind,) if self.family.kind in ("mellum", "mimo_v2_flash") else ()
                given["position_embeddings"] = rotary(x, places[None], *typed)
            found = layer(x, **given)
            x = found[0] if isinstance(found, tuple) else found
        return self.norms[3](x[0]) if self.family.around[3] else x[0]


def layer_like(model: Any, kind: str, index: int) -> Any:
    """Return a new layer of the target's class: of a kind of attention, and else as the target's layer at an index."""
    config = copy.deepcopy(model.config)
    if getattr(config, "layer_types", None):
        config.layer_types = [kind] * len(config.layer_types)
    if getattr(config, "indexer_types", None):
        config.indexer_types = ["full"] * len(config.indexer_types)
    layers = model.model.layers
    return type(layers[0])(config, index % len(layers)).eval()


def unfused(layer: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a layer, those of experts one by one, as checkpoints have them."""
    found = {}
    for name, tensor in layer.state_dict().items():
        base, _, last = name.rpartition(".")
        if not base.endswith("experts") or tensor.ndim != 3:
            found[name] = tensor
            continue
        for expert, weights in enumerate(tensor):
            parts = dict(zip(("gate_proj", "up_proj"), weights.chunk(2), strict=True))
            for part, weight in (parts if last == "gate_up_proj" else {last: weights}).items():
                found[f"{base}.{expert}.{part}.weight"] = weight.clone()
    return found


def modules_of(family: Family, model: Any, seed: int = 0) -> list[Module]:
    """Return random modules for a target."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        return [Module(family, model) for _ in range(family.modules)]


def all_tensors(modules: Sequence[Module]) -> dict[str, Tensor]:
    """Return the tensors of modules by the names of the checkpoint."""
    return {name: each.contiguous() for n, module in enumerate(modules) for name, each in module.tensors(n).items()}


def write_checkpoint(folder: Path, model: Any, tensors: Mapping[str, Tensor], *, shards: bool = False) -> None:
    """Write a model with further tensors: in its file, or in a second one beside an index."""
    model.save_pretrained(folder)
    whole = folder / "model.safetensors"
    held = load_file(whole)
    if not shards:
        save_file(held | dict(tensors), whole, metadata={"format": "pt"})
        return
    whole.unlink()
    files = {"model-00001-of-00002.safetensors": held, "model-00002-of-00002.safetensors": dict(tensors)}
    for name, content in files.items():
        save_file(content, folder / name, metadata={"format": "pt"})
    places = {tensor: name for name, content in files.items() for tensor in content}
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def formula(modules: Sequence[Module], hidden: Tensor, following: Tensor, path: Sequence[int]) -> Tensor:
    """Return the logits [V] after a path of drafted tokens, computed without any cache.

    Args:
        modules: of a model.
        hidden: [n, D], the target's states after the final norm.
        following: Int64[n], the token after each; the last one is the root.
        path: of the tokens drafted so far.
    """
    tokens, serving = torch.cat([following, torch.tensor(path, dtype=torch.long)]), min(len(path), len(modules) - 1)
    given = hidden
    for k in range(serving):  # row by row, each reads the token after that of the module before
        given = modules[k].run(tokens[k : k + len(given)], given, k)
    passed = modules[serving].run(tokens[serving : serving + len(given)], given, serving)
    for _ in path[serving:]:
        given = torch.cat([given, passed[-1:]])
        passed = modules[serving].run(tokens[serving : serving + len(given)], given, serving)
    logits: Tensor = modules[0].model.lm_head(passed[-1])
    return logits
