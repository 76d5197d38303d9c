"""MTP heads: every layout against its formula, the rows of drafts, and texts drafted with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, cache_utils, modeling_layers

from eagles import compare_histories
from mtps import FAMILIES, Family, all_tensors, family_model, formula, modules_of, write_checkpoint
from speculant.api.native_heads import open_native_head
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.mtp.checkpoint import load_native
from speculant.drafters.heads.mtp.head import MtpHead, MtpState
from speculant.drafters.heads.mtp.layouts import plain_name
from speculant.engines.hf.views.target_parts import HFTargetParts


def compare(found: Tensor, wanted: Tensor) -> None:
    """Assert that logits differ by rounding alone."""
    assert (found - wanted).abs().max() < 1e-5


def native(family: Family, model: Any) -> tuple[list[Any], MtpHead, HFTargetParts]:
    """Return random modules, and the head that is read from their tensors."""
    modules, target = modules_of(family, model), HFTargetParts(model)
    tensors = {plain_name(name): tensor for name, tensor in all_tensors(modules).items()}
    return modules, load_native(Checkpoint("tiny", {}, tensors), target), target


def history(model: Any, count: int = 9) -> tuple[Tensor, Tensor]:
    """Return random states [n, 1, D] before the final norm, and the tokens Int64[n] after them."""
    source = torch.Generator().manual_seed(3)
    hidden = torch.randn(count, 1, model.config.hidden_size, generator=source)
    return hidden, torch.randint(3, 61, (count,), generator=source)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_the_formula(name: str) -> None:
    """Guards names, order, norms and layers of each family: chains and trees, of prompts read in parts."""
    model = family_model(FAMILIES[name])
    modules, head, target = native(FAMILIES[name], model)
    hidden, following = history(model)
    with torch.inference_mode():
        states = target.norm(hidden[:, 0])
        state = head.open(0, target)
        for first, end in ((0, 1), (1, 6), (6, 9)):
            state.extend(hidden[first:end], following[first:end])
            compare(state.start()[0], formula(modules, states[:end], following[:end], []))
        paths, rows = [[7], [9], [7, 8], [7, 9], [9, 4], [7, 8, 3], [9, 4, 5]], [-1, -1, 0, 0, 1, 2, 4]
        for level in ((0, 2), (2, 5), (5, 7)):
            chosen = slice(*level)
            found = state.grow([path[-1] for path in paths[chosen]], rows[chosen])
            for logits, path in zip(found, paths[chosen], strict=True):
                compare(logits, formula(modules, states, following, path))


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v3 of two", "glm4_moe", "mellum"])
def test_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    """Guards against a formula of our own: transformers' class for such modules drafts the same, module by module."""
    oracle = getattr(modeling_layers, "MtpModel", None)
    if oracle is None:
        pytest.skip("this release of transformers runs no MTP modules")
    family = FAMILIES[name]
    model = family_model(family)
    write_checkpoint(tmp_path, model, all_tensors(modules_of(family, model)))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    last = model.config.num_hidden_layers
    if name != "mellum":  # others name the layers of published sizes
        model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{last + n}\..*" for n in range(family.modules)]
    head = open_native_head(model)
    assert head is not None
    ids = torch.randint(3, 61, (1, 12), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        run = model.model(ids[:, :-1])
        places = torch.arange(1, 12)[None]
        tokens, wanted, _ = oracle.from_pretrained(model)(
            input_ids=ids[:, 1:],
            last_hidden_states=run.last_hidden_state,
            attention_mask=None,
            position_ids=places,
            mtp_cache=cache_utils.MtpCache(config=model.config.get_mtp_config()),
        )
        state = MtpState(head.head, NormedParts(model), 0)
        state.extend(run.last_hidden_state[0, :, None], ids[0, 1:])
        found = [state.start()]
        for row, token in enumerate(tokens[0, :-1].tolist()):
            found.append(state.grow([token], [row - 1]))
    compare(torch.cat(found), wanted[0])


@pytest.mark.parametrize("modules", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_cached_rows_equal_rows_read_at_once(modules: int, seed: int) -> None:
    """Guards the rows of each module after drafts, rollbacks and second turns: no row of a draft is left."""
    family = FAMILIES["mimo" if modules == 1 else "mimo of three"]
    _, head, target = native(family, family_model(family))
    compare_histories(head, target, 1, seed)


class NormedParts(HFTargetParts):
    """Parts of a target whose states are given after its final norm."""

    def norm(self, hidden: Tensor) -> Tensor:
        return hidden
