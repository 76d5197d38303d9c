"""Definition of EAGLE-1/2 and HASS as a kind of heads: checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

EAGLE = HeadKind(
    name="eagle",
    layouts=(
        Layout(
            name="EAGLE-1/2, HASS",
            method="eagle2",
            matches="speculant.drafters.heads.eagle.checkpoint:matches",
            load="speculant.drafters.heads.eagle.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="eagle",
            family="self-drafting, feature head",
            summary="a layer that predicts the next hidden state drafts a chain",
            drafter="speculant.drafters.heads.drafter:ChainHeadDrafter",
            settings="speculant.drafters.heads.drafter:ChainHeadSettings",
            source="Li et al. 2024, arXiv 2401.15077",
        ),
        HeadMethod(
            name="eagle2",
            family="self-drafting, feature head",
            summary="an EAGLE head drafts the most probable paths, level by level",
            drafter="speculant.drafters.heads.drafter:HeadDrafter",
            settings="speculant.drafters.heads.drafter:HeadSettings",
            source="Li et al. 2024, arXiv 2406.16858",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.eagle.recipe:new_eagle",
        recipe="speculant.drafters.heads.eagle.recipe:EagleRecipe",
        save="speculant.drafters.heads.eagle.checkpoint:save",
        depth=1,
        loss="0.1kl",
        feature_weight=1.0,
        source="Li et al. 2024, arXiv 2401.15077; HASS with several depths: Zhang et al. 2025, arXiv 2408.15766",
    ),
)
