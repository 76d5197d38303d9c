"""Definition of PaSS as a kind of heads: checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

PASS = HeadKind(
    name="pass",
    layouts=(
        Layout(
            name="PaSS",
            method="pass",
            matches="speculant.drafters.heads.pass_.checkpoint:matches",
            load="speculant.drafters.heads.pass_.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="pass",
            family="self-drafting, mask-predict",
            summary="learned look-ahead embeddings after the text let the target draft a block in one pass",
            drafter="speculant.drafters.heads.drafter:ChainHeadDrafter",
            settings="speculant.drafters.heads.drafter:ChainHeadSettings",
            source="Monea et al. 2023, arXiv 2311.13581",
            requires="look-ahead embeddings trained for the target",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.pass_.recipe:new_pass",
        options={"count": 4},
        recipe="speculant.drafters.heads.pass_.recipe:PaSSRecipe",
        save="speculant.drafters.heads.pass_.checkpoint:save",
        depth=5,
        loss="ce",
        lr=0.01,
        source="Monea et al. 2023, arXiv 2311.13581",
    ),
    decoder_only="it drafts by passes of the target over embeddings of its own, which such classes do not take",
)
