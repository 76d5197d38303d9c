"""Early-exit adapters (Kangaroo): their checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

EXIT = HeadKind(
    name="exit",
    layouts=(
        Layout(
            name="Kangaroo",
            method="kangaroo",
            matches="speculant.drafters.heads.exit.checkpoint:matches",
            load="speculant.drafters.heads.exit.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="kangaroo",
            family="self-drafting, early exit",
            summary="the first layers of the target and a trained adapter draft a chain; verification continues from "
            "their rows",
            drafter="speculant.drafters.heads.exit.drafter:ExitDrafter",
            settings="speculant.drafters.heads.exit.drafter:ExitSettings",
            source="Liu et al. 2024, arXiv 2404.18911",
            requires="an adapter trained for the target",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.exit.recipe:new_exit",
        options={"layer": 0},
        recipe="speculant.drafters.heads.exit.recipe:ExitRecipe",
        save="speculant.drafters.heads.exit.checkpoint:save",
        depth=1,
        anchors=256,
        source="Liu et al. 2024, arXiv 2404.18911",
    ),
    decoder_only="it runs the target's first layers on their own, which such classes do not do",
)
