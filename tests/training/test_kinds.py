"""The table of kinds of heads: every row is built, trained, saved and loaded."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch

from models import tiny_model
from speculant.core.errors import UsageError
from speculant.core.references import load_object
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.drafters.heads.eagle3.recipe import default_taps
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.files import Files
from speculant.training.kind import TrainingKind
from speculant.training.kinds import KINDS, MODELS, find_kind
from speculant.training.run import train_head
from trainings import sharp_model, tiny_data, tiny_identity, tiny_settings, tiny_texts


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_trains_and_loads_again(kind: TrainingKind, tmp_path: Path) -> None:
    """Guards a row of the table: builder, recipe and layout fit together, and the loss falls."""
    model = sharp_model(num_hidden_layers=4)
    settings = tiny_settings(
        steps=20,
        depth=min(2, kind.depth),
        loss=kind.loss,
        feature_weight=kind.feature_weight,
        lr=kind.lr * 5,
        evaluate_every=10,
        held_out=1,
    )
    record = train_head(kind, model, tiny_data(), tiny_identity(model), settings, Files(out=tmp_path / "head"))
    assert record is not None
    losses = [sum(entry["losses"]) for entry in record["history"][1:]]
    assert losses[-1] < losses[0]
    loaded = load_head(tmp_path / "head", HFTargetParts(model))
    assert loaded.kind == kind.name
    assert len(record["best"]["agreement"]) == min(4, loaded.head.depth or 4)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_new_heads_depend_on_the_seed_alone(kind: TrainingKind) -> None:
    """Guards repeatable trainings."""
    target = HFTargetParts(tiny_model("llama", num_hidden_layers=4))
    heads = []
    for _ in range(2):
        torch.manual_seed(5)
        heads.append(kind.new_head(target, 2))
    first, second = (head.state_dict() for head in heads)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_reduced_vocabulary_holds_the_most_frequent_tokens(tmp_path: Path) -> None:
    """Guards EAGLE-3's vocabulary, and acceptance, which counts tokens that it lacks as rejected."""
    model, texts = tiny_model("llama", num_hidden_layers=4), tiny_texts()
    files = Files(out=tmp_path / "head", options={"vocabulary": 20})
    record = train_head(find_kind("eagle3"), model, tiny_data(texts), tiny_identity(model), tiny_settings(), files)
    assert record is not None
    ids = load_head(tmp_path / "head", HFTargetParts(model)).head.ids
    assert ids is not None
    counts = np.bincount(texts.ids, minlength=61)
    assert counts[ids.numpy()].sum() == np.sort(counts)[-20:].sum()
    assert max(record["best"]["overlap"]) < 1


@pytest.mark.parametrize("kind", [*KINDS, *MODELS], ids=lambda kind: kind.name)
def test_the_table_states_what_the_builder_takes(kind: TrainingKind) -> None:
    """Guards `--set`, which reads the table so that a wrong name is refused before PyTorch is imported."""
    taken = inspect.signature(load_object(kind.build)).parameters.values()
    plain = {each.name: each.default for each in taken if isinstance(each.default, bool | int)}
    assert {name: value for name, value in plain.items() if name != kind.parts} == kind.options
    assert any(each.name == "counts" for each in taken) == kind.counts


def test_unknown_options_and_kinds_are_refused() -> None:
    """Guards against options that would have no effect."""
    target = HFTargetParts(tiny_model("llama"))
    with pytest.raises(UsageError, match=r"the kind 'medusa' has no setting 'heads'\. It has blocks \(1\)"):
        find_kind("medusa").new_head(target, 2, options={"heads": 3})
    with pytest.raises(UsageError, match="eagle3"):
        find_kind("eagle4")


@pytest.mark.parametrize(
    ("layers", "taps"), [(32, (1, 15, 28)), (8, (1, 3, 4)), (6, (1, 3, 5)), (3, (1, 2)), (2, (0, 1)), (1, (0,))]
)
def test_default_taps_are_distinct(layers: int, taps: tuple[int, ...]) -> None:
    """Guards shallow targets, where the authors' rule names a layer twice."""
    assert default_taps(layers) == taps
