"""Definition of MLP speculators as a kind of heads: checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

MLP = HeadKind(
    name="mlp",
    layouts=(
        Layout(
            name="MLP speculator",
            method="mlp",
            matches="speculant.drafters.heads.mlp.checkpoint:matches",
            load="speculant.drafters.heads.mlp.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="mlp",
            family="self-drafting, FFN heads",
            summary="a small recurrent network over the target's state and the drafted tokens",
            drafter="speculant.drafters.heads.drafter:HeadDrafter",
            settings="speculant.drafters.heads.drafter:HeadSettings",
            source="Wertheimer et al. 2024, arXiv 2404.19124",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.mlp.recipe:new_mlp",
        options={"inner": 0, "tied": False},
        recipe="speculant.drafters.heads.mlp.recipe:MLPRecipe",
        save="speculant.drafters.heads.mlp.checkpoint:save",
        depth=4,
        parts="steps",
        lr=0.002,
        source="Wertheimer et al. 2024, arXiv 2404.19124",
    ),
)
