"""Definition of DFlash and its descendants as a kind of heads: checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

DFLASH = HeadKind(
    name="dflash",
    layouts=(
        Layout(
            name="JetSpec",
            method="jetspec",
            matches="speculant.drafters.heads.dflash.checkpoint:matches_jetspec",
            load="speculant.drafters.heads.dflash.checkpoint:load",
        ),
        Layout(
            name="DFlash, DFlash 2, DSpark, Domino",
            method="dflash",
            matches="speculant.drafters.heads.dflash.checkpoint:matches_others",
            load="speculant.drafters.heads.dflash.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="dflash",
            family="self-drafting, parallel head",
            summary="layers over the target's hidden states fill a block of masks in one pass",
            drafter="speculant.drafters.heads.dflash.drafter:DFlashDrafter",
            settings="speculant.drafters.heads.dflash.drafter:DFlashSettings",
            source="Chen et al. 2026, arXiv 2602.06036",
        ),
        HeadMethod(
            name="jetspec",
            family="self-drafting, parallel head",
            summary="a block whose slots see earlier ones drafts the most probable tree",
            drafter="speculant.drafters.heads.dflash.drafter:JetSpecDrafter",
            settings="speculant.drafters.heads.dflash.drafter:JetSpecSettings",
            source="Hu et al. 2026, arXiv 2606.18394",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.dflash.recipe:new_dflash",
        options={"layers": 1, "size": 5, "markov": 0, "confidence": False, "domino": 0, "selector": 0, "causal": False},
        recipe="speculant.drafters.heads.dflash.recipe:DFlashRecipe",
        save="speculant.drafters.heads.dflash.checkpoint:save",
        depth=4,
        source="Chen et al. 2026, arXiv 2602.06036",
    ),
)
