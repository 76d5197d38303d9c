"""Checkpoints of feed-forward heads: every public layout is found, loaded as it is, and refused where it is wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from feed_forward_heads import (
    HIDDEN,
    PREFIX,
    heads,
    new_blockwise,
    new_hydra,
    new_medusa,
    new_mlp,
    tiny_target,
)
from models import VOCABULARY
from speculant.core.errors import ModelNotFoundError, UnsupportedError
from speculant.drafters.heads.blockwise import checkpoint as blockwise
from speculant.drafters.heads.checkpoints.checkpoint import read_checkpoint
from speculant.drafters.heads.checkpoints.formats import FORMATS, load_head
from speculant.drafters.heads.hydra import checkpoint as hydra
from speculant.drafters.heads.medusa import checkpoint as medusa
from speculant.drafters.heads.mlp import checkpoint as mlp
from speculant.drafters.heads.published_trees import find_published_tree

SAVES: dict[str, Callable[..., None]] = {
    "medusa": medusa.save,
    "hydra": hydra.save,
    "mlp": mlp.save,
    "blockwise": blockwise.save,
}
FILES = {"medusa": "medusa_lm_head.safetensors", "hydra": "hydra_lm_head.safetensors"}
NAMES = tuple(heads())


def saved(name: str, folder: Path) -> tuple[nn.Module, str, Path]:
    """Save one of the heads; return it, its kind and the file of its weights."""
    head, kind = heads()[name], name.split("-")[0]
    method = kind.removesuffix("++")
    SAVES[method](head, folder, tiny_target())
    return head, kind, folder / FILES.get(method, "model.safetensors")


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], file: str = "model.safetensors") -> Path:
    """Write a checkpoint as others do."""
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    torch.save(tensors, folder / file) if file.endswith(".pt") else save_file(tensors, folder / file)
    return folder


def assert_equal_heads(found: Any, wanted: nn.Module) -> None:
    """Compare all weights and sizes of two heads."""
    assert found.depth == wanted.depth
    assert found.taps == wanted.taps
    weights, others = found.state_dict(), wanted.state_dict()
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        assert tensor.equal(others[name]), name


@pytest.mark.parametrize("name", NAMES)
def test_saved_heads_load_as_they_were(name: str, tmp_path: Path) -> None:
    """Guards the round trip of every kind and variant, the kind and method it is found as, and how many weights."""
    head, kind, _ = saved(name, tmp_path)
    loaded = load_head(tmp_path, tiny_target())
    assert (loaded.kind, loaded.method) == (kind, kind.removesuffix("++"))
    assert_equal_heads(loaded.head, head)
    assert isinstance(loaded.head, nn.Module)
    if name != "medusa-shared":
        assert sum(p.numel() for p in loaded.head.parameters()) == sum(p.numel() for p in head.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_each_checkpoint_is_of_one_format(name: str, tmp_path: Path) -> None:
    """Guards the table: a second format that matches would depend on its order."""
    saved(name, tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert sum(each.matches(checkpoint) for each in FORMATS) == 1


@pytest.mark.parametrize("name", NAMES)
def test_missing_extra_and_misshapen_weights_are_named(name: str, tmp_path: Path) -> None:
    """Guards strictness, for every single weight."""
    _, _, file = saved(name, tmp_path)
    tensors, target = load_file(file), tiny_target()
    for lost in tensors:
        save_file({each: tensor for each, tensor in tensors.items() if each != lost}, file)
        with pytest.raises(UnsupportedError, match=lost.replace(".", r"\.")):
            load_head(tmp_path, target)
    save_file(tensors | {"speculator.other.weight" if "mlp" in name else "other.weight": torch.ones(2)}, file)
    with pytest.raises(UnsupportedError, match=r"has the unexpected (speculator\.)?other\.weight"):
        load_head(tmp_path, target)
    last = sorted(tensors)[-1]
    save_file(tensors | {last: torch.ones(3, 3)}, file)
    with pytest.raises(UnsupportedError, match=r"\[3, 3\]|size 3|of 3 tokens|differs"):
        load_head(tmp_path, target)


@pytest.mark.parametrize("name", NAMES)
def test_heads_of_another_target_are_refused(name: str, tmp_path: Path) -> None:
    """Guards the check of sizes: a target of another hidden size, and one of another vocabulary."""
    saved(name, tmp_path)
    target = tiny_target()
    target.hidden_size = 48
    with pytest.raises(UnsupportedError, match=r"states of size 32, but the target's have 48"):
        load_head(tmp_path, target)
    target = tiny_target()
    target.vocabulary = VOCABULARY + 3
    if name != "medusa-shared":  # which has nothing of the vocabulary's size
        with pytest.raises(UnsupportedError, match=r"vocabulary of 61 tokens, but the target's has 64"):
            load_head(tmp_path, target)


def test_medusa_as_its_authors_save_it(tmp_path: Path) -> None:
    """Guards `medusa_lm_head.pt`: heads are counted from the names, whatever the config says; nothing is executed."""
    head = new_medusa()
    write(tmp_path, head.state_dict(), {"medusa_num_heads": 2, "medusa_num_layers": 1}, "medusa_lm_head.pt")
    assert_equal_heads(load_head(tmp_path, tiny_target()).head, head)


def test_pickles_are_not_executed(tmp_path: Path) -> None:
    """Guards `weights_only`: an object in a .pt file is refused, and its code not run."""
    (tmp_path / "config.json").write_text("{}")
    torch.save({"0.0.linear.weight": _Trap(str(tmp_path / "run"))}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(ModelNotFoundError, match="no code is run"):
        load_head(tmp_path, tiny_target())
    assert not (tmp_path / "run").exists()


class _Trap:
    """Writes a file where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path(self.path),))


def test_medusa_of_different_blocks_keeps_them_apart(tmp_path: Path) -> None:
    """Guards heads of trainers that do not share blocks, in the same layout."""
    head = new_medusa(shared=False)
    medusa.save(head, tmp_path, tiny_target())
    found = load_head(tmp_path, tiny_target()).head
    assert_equal_heads(found, head)
    assert not found.shape.shared  # type: ignore[attr-defined]


def test_medusa_2_gives_its_heads_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Guards a whole model with `medusa_head.` keys: the model beside them is left, and the user is told."""
    head = new_medusa()
    tensors = {f"medusa_head.{name}": tensor for name, tensor in head.state_dict().items()}
    write(tmp_path, tensors | {"model.norm.weight": torch.ones(4), "lm_head.weight": torch.ones(4, 4)}, {})
    with caplog.at_level(logging.WARNING):
        assert_equal_heads(load_head(tmp_path, tiny_target()).head, head)
    assert "load it as the target, too" in caplog.text


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
@pytest.mark.parametrize("kind", ["own", "one", "first", "map", "whole", "biases"])
def test_medusa_as_vllm_reads_it(kind: str, prefix: str, tmp_path: Path) -> None:
    """Guards vLLM's names, one projection for all heads, reduced vocabularies and the scale of logits."""
    ids = torch.arange(20) * 3 if kind in ("map", "whole") else None
    head = new_medusa(
        bias=kind == "biases",
        shared=False,
        projection="one" if kind in ("one", "first") else "own",
        vocabulary=VOCABULARY if ids is None else 20,
        ids=ids,
        scale=0.5,
    )
    tensors = {}
    for name, tensor in head.state_dict().items():
        i, part, *rest = name.split(".")
        if int(part) < 2:
            tensors[f"{prefix}blocks.{i}.layers.{part}.{rest[-1]}"] = tensor
        elif kind == "whole":  # vLLM takes the rows that the map names
            tensors[f"{prefix}lm_heads.{i}.weight"] = torch.zeros(VOCABULARY, HIDDEN).index_copy(0, ids, tensor)
        elif kind != "first" or i == "0":
            tensors[f"{prefix}lm_head.weight" if kind == "one" else f"{prefix}lm_heads.{i}.weight"] = tensor
    config: dict[str, Any] = {"logit_scale": 0.5, "original_lm_head": kind in ("one", "first")}
    if ids is not None:
        tensors["token_map"], config["truncated_vocab_size"] = ids, 20
    found = load_head(write(tmp_path, tensors, config), tiny_target()).head
    assert_equal_heads(found, head)
    assert found.shape == head.shape  # type: ignore[attr-defined]
    assert found.ids is None if ids is None else found.ids.equal(ids)  # type: ignore[union-attr]
    lost = f"{prefix}blocks.2.layers.1.weight"
    del tensors[lost]
    with pytest.raises(UnsupportedError, match=r"blocks\.2\.layers\.1\.weight"):
        load_head(write(tmp_path, tensors, config), tiny_target())


def test_medusa_of_a_wrong_token_map_is_refused(tmp_path: Path) -> None:
    """Guards ids beyond the vocabulary, which would index out of range in every draft."""
    head = new_medusa(bias=False, shared=False, vocabulary=20, blocks=1)
    tensors = {f"blocks.{i}.layers.0.weight": head.state_dict()[f"{i}.0.linear.weight"] for i in range(3)}
    tensors |= {f"lm_heads.{i}.weight": head.state_dict()[f"{i}.1.weight"] for i in range(3)}
    write(tmp_path, tensors | {"token_map": torch.arange(20) * 4}, {"truncated_vocab_size": 20})
    with pytest.raises(UnsupportedError, match="token_map"):
        load_head(tmp_path, tiny_target())


def test_medusa_that_the_authors_layout_cannot_hold_is_not_saved(tmp_path: Path) -> None:
    """Guards against a file that loads as something else."""
    with pytest.raises(UnsupportedError, match="only vLLM's layout"):
        medusa.save(new_medusa(projection="one"), tmp_path, tiny_target())


def test_hydra_plus_plus_as_its_authors_save_it(tmp_path: Path) -> None:
    """Guards the sizes of the decoder layer, which are the target's, and copies that are never read."""
    head = new_hydra(prefix=PREFIX)
    copies = {"prefix_embeding_layer.embed_tokens.weight": torch.ones(VOCABULARY, HIDDEN)}
    config = {"hydra_num_heads": 3, "hydra_num_layers": 3, "hydra_head_arch": "prefix-mlp", "grounded_heads": True}
    write(tmp_path, head.state_dict() | copies, config, "hydra_lm_head.pt")
    found = load_head(tmp_path, tiny_target()).head
    assert_equal_heads(found, head)
    assert found.shape.prefix == replace(PREFIX, positions=256)  # type: ignore[attr-defined]


@pytest.mark.parametrize("arch", ["cross-attn", "eagle-attn"])
def test_other_hydra_heads_are_refused_by_name(arch: str, tmp_path: Path) -> None:
    """Guards architectures of the authors' repository that are not supported."""
    write(tmp_path, {"attn.weight": torch.ones(2)}, {"hydra_head_arch": arch})
    with pytest.raises(UnsupportedError, match=arch):
        load_head(tmp_path, tiny_target())


def test_ungrounded_hydra_is_refused(tmp_path: Path) -> None:
    """Guards heads that read no drafted tokens, whose first block has another shape."""
    write(tmp_path, {"hydra_mlp.0.0.linear.weight": torch.ones(32, 32)}, {"grounded_heads": False})
    with pytest.raises(UnsupportedError, match="reads no drafted tokens"):
        load_head(tmp_path, tiny_target())


@pytest.mark.parametrize("every", [False, True])
def test_tied_mlp_speculators_hold_shared_weights_once_or_for_every_step(*, every: bool, tmp_path: Path) -> None:
    """Guards both ways of writing shared weights, and names without a prefix."""
    head = new_mlp(tied=True, scaled=True)
    tensors = head.state_dict() if every else dict(head.named_parameters())
    config = {"model_type": "mlp_speculator", "emb_dim": 32, "inner_dim": 24, "n_predict": 3, "tie_weights": True}
    write(tmp_path, tensors, config | {"scale_input": True})
    found = load_head(tmp_path, tiny_target()).head
    assert_equal_heads(found, head)
    assert found.shape == head.shape  # type: ignore[attr-defined]


def test_tied_mlp_speculator_of_different_weights_is_refused(tmp_path: Path) -> None:
    """Guards a config that contradicts the weights."""
    tensors = {f"speculator.{name}": tensor for name, tensor in new_mlp().state_dict().items()}
    write(tmp_path, tensors, {"model_type": "mlp_speculator", "n_predict": 3, "tie_weights": True})
    with pytest.raises(UnsupportedError, match=r"differs from speculator\.emb\.0"):
        load_head(tmp_path, tiny_target())


def test_mlp_speculator_with_another_config_is_refused(tmp_path: Path) -> None:
    """Guards sizes and steps that the config and the weights give differently; 0 is the target's size."""
    tensors = {f"speculator.{name}": tensor for name, tensor in new_mlp(inner=HIDDEN).state_dict().items()}
    config = {"model_type": "mlp_speculator", "emb_dim": 32, "inner_dim": 0, "n_predict": 3}
    load_head(write(tmp_path, tensors, config), tiny_target())
    with pytest.raises(UnsupportedError, match="inner_dim 16"):
        load_head(write(tmp_path, tensors, config | {"inner_dim": 16}), tiny_target())
    with pytest.raises(UnsupportedError, match=r"lacks .*speculator\.emb\.3\.weight"):
        load_head(write(tmp_path, tensors, config | {"n_predict": 4}), tiny_target())


@pytest.mark.parametrize("name", ["medusa", "hydra"])
def test_static_trees_are_kept_with_the_head(name: str, tmp_path: Path) -> None:
    """Guards a searched tree through saving and loading, paths deeper than the head, and what is no tree."""
    head, _, _ = saved(name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert len(config[f"{name}_choices"]) == len(find_published_tree(depth=3))
    head.paths = ((0,), (0, 0), (1,))  # type: ignore[assignment]
    SAVES[name](head, tmp_path, tiny_target())
    assert load_head(tmp_path, tiny_target()).head.paths == head.paths
    deep = [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]
    (tmp_path / "config.json").write_text(json.dumps(config | {f"{name}_choices": deep}))
    assert load_head(tmp_path, tiny_target()).head.paths == ((0,), (0, 0), (0, 0, 0))
    for wrong in (3, [[0, 1]], [["a"]]):
        (tmp_path / "config.json").write_text(json.dumps(config | {f"{name}_choices": wrong}))
        with pytest.raises(UnsupportedError, match=f"{name}_choices"):
            load_head(tmp_path, tiny_target())


def test_blockwise_config_is_checked(tmp_path: Path) -> None:
    """Guards values that the layout needs."""
    blockwise.save(new_blockwise(), tmp_path, tiny_target())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_heads": None}))
    with pytest.raises(UnsupportedError, match="'num_heads'"):
        load_head(tmp_path, tiny_target())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_heads": 0}))
    with pytest.raises(UnsupportedError, match="0 heads"):
        load_head(tmp_path, tiny_target())
