"""The trainable kinds: heads that have a recipe, and models: PARD's and draft models."""

from __future__ import annotations

from dataclasses import fields

from speculant.core.errors import UsageError
from speculant.drafters.heads.kind import HeadTraining
from speculant.drafters.heads.kinds import HEAD_KINDS
from speculant.training.kind import TrainingKind

KINDS = tuple(
    TrainingKind(
        name=kind.name,
        decoder_only=kind.decoder_only,
        **{each.name: getattr(kind.training, each.name) for each in fields(HeadTraining)},
    )
    for kind in HEAD_KINDS
    if kind.training is not None
)

DRAFT_MODEL = TrainingKind(
    name="draft-model",
    build="speculant.training.draft_model.model:new_draft_model",
    options={"layers": 0, "hidden": 0, "heads": 0, "kv_heads": 0, "head_dim": 0, "inner": 0},
    recipe="speculant.training.draft_model.recipe:DraftModelRecipe",
    save="speculant.training.draft_model.model:save_draft_model",
    load="speculant.training.draft_model.model:load_draft_model",
    features="speculant.training.student_features:student_features",
    draft_model=True,
    decoder_only="they are decoder-only models, which would not read what the target's encoder reads",
    depth=1,
    anchors=256,
    source="Zhou et al. 2024, arXiv 2310.08461; --before: Miao et al. 2024, arXiv 2305.09781, section 3.1",
)

PARD = TrainingKind(
    name="pard",
    build="speculant.training.pard.model:new_pard",
    options=DRAFT_MODEL.options,
    counts=True,
    recipe="speculant.training.pard.recipe:PardRecipe",
    save="speculant.training.pard.model:save_pard",
    load="speculant.training.pard.model:load_pard",
    features="speculant.training.student_features:student_features",
    draft_model=True,
    decoder_only=DRAFT_MODEL.decoder_only,
    depth=8,
    source="An et al. 2025, arXiv 2504.18583",
)
MODELS = (PARD, DRAFT_MODEL)


def find_kind(name: str) -> TrainingKind:
    """Return the kind of that name.

    Raises:
        UsageError: there is no such kind.
    """
    for kind in (*KINDS, *MODELS):
        if kind.name == name:
            return kind
    names = ", ".join(each.name for each in (*KINDS, *MODELS))
    raise UsageError(f"there is no kind of head {name!r} to train; there are {names}.")
