"""Definition of SpecDec as a kind of heads: checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

SPECDEC = HeadKind(
    name="specdec",
    layouts=(
        Layout(
            name="SpecDec",
            method="specdec",
            matches="speculant.drafters.heads.specdec.checkpoint:matches",
            load="speculant.drafters.heads.specdec.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="specdec",
            family="independent drafting, mask-predict",
            summary="an encoder of the text and a shallow decoder fill a block of masks in one pass",
            drafter="speculant.drafters.heads.drafter:ChainHeadDrafter",
            settings="speculant.drafters.heads.drafter:ChainHeadSettings",
            source="Xia et al. 2023, arXiv 2203.16487",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.specdec.recipe:new_specdec",
        options={"encoder": 4, "decoder": 1},
        recipe="speculant.drafters.heads.specdec.recipe:SpecDecRecipe",
        save="speculant.drafters.heads.specdec.checkpoint:save",
        depth=8,
        parts="block",
        loss="ce",
        source="Xia et al. 2023, arXiv 2203.16487",
    ),
)
