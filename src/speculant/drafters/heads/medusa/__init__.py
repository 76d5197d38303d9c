"""Definition of Medusa as a kind of heads: checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

MEDUSA = HeadKind(
    name="medusa",
    layouts=(
        Layout(
            name="Medusa",
            method="medusa",
            matches="speculant.drafters.heads.medusa.checkpoint:matches",
            load="speculant.drafters.heads.medusa.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="medusa",
            family="self-drafting, FFN heads",
            summary="a head for each depth; the most probable combinations of their tokens",
            drafter="speculant.drafters.heads.drafter:HeadDrafter",
            settings="speculant.drafters.heads.drafter:HeadSettings",
            source="Cai et al. 2024, arXiv 2401.10774",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.medusa.recipe:new_medusa",
        options={"blocks": 1, "own": False},
        recipe="speculant.drafters.heads.medusa.recipe:MedusaRecipe",
        save="speculant.drafters.heads.medusa.checkpoint:save",
        depth=4,
        parts="heads",
        searches_tree=True,
        joint=True,
        source="Cai et al. 2024, arXiv 2401.10774",
    ),
)
