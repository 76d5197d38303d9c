"""Definition of EAGLE-3 as a kind of heads: checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

EAGLE3 = HeadKind(
    name="eagle3",
    layouts=(
        Layout(
            name="EAGLE-3 (authors, SpecForge, DeepSpec)",
            method="eagle3",
            matches="speculant.drafters.heads.eagle3.checkpoint:matches",
            load="speculant.drafters.heads.eagle3.checkpoint:load",
        ),
        Layout(
            name="EAGLE-3 (speculators)",
            method="eagle3",
            matches="speculant.drafters.heads.checkpoints.speculators:matches_eagle3",
            load="speculant.drafters.heads.checkpoints.speculators:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="eagle3",
            family="self-drafting, feature head",
            summary="a layer over several hidden states, trained on its own output, drafts the most probable paths",
            drafter="speculant.drafters.heads.drafter:HeadDrafter",
            settings="speculant.drafters.heads.drafter:HeadSettings",
            source="Li et al. 2025, arXiv 2503.01840",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.eagle3.recipe:new_eagle3",
        options={"vocabulary": 0, "own_output": True, "inner": 0},
        counts=True,
        recipe="speculant.drafters.heads.eagle3.recipe:Eagle3Recipe",
        save="speculant.drafters.heads.eagle3.checkpoint:save",
        depth=4,
        source="Li et al. 2025, arXiv 2503.01840",
    ),
)
