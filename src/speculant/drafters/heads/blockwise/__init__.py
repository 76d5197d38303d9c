"""Definition of blockwise heads as a kind of heads: checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

BLOCKWISE = HeadKind(
    name="blockwise",
    layouts=(
        Layout(
            name="blockwise",
            method="blockwise",
            matches="speculant.drafters.heads.blockwise.checkpoint:matches",
            load="speculant.drafters.heads.blockwise.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="blockwise",
            family="self-drafting, FFN heads",
            summary="a feed-forward layer predicts the next k tokens at once",
            drafter="speculant.drafters.heads.drafter:ChainHeadDrafter",
            settings="speculant.drafters.heads.drafter:ChainHeadSettings",
            source="Stern et al. 2018, arXiv 1811.03115",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.blockwise.recipe:new_blockwise",
        options={"inner": 0},
        recipe="speculant.drafters.heads.blockwise.recipe:BlockwiseRecipe",
        save="speculant.drafters.heads.blockwise.checkpoint:save",
        depth=4,
        parts="heads",
        source="Stern et al. 2018, arXiv 1811.03115",
    ),
)
