"""Definition of Hydra and Hydra++ as kinds of heads: checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

HYDRA = HeadKind(
    name="hydra",
    layouts=(
        Layout(
            name="Hydra",
            method="hydra",
            matches="speculant.drafters.heads.hydra.checkpoint:matches",
            load="speculant.drafters.heads.hydra.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="hydra",
            family="self-drafting, FFN heads",
            summary="a head for each depth, which reads the drafted tokens before its own",
            drafter="speculant.drafters.heads.drafter:HeadDrafter",
            settings="speculant.drafters.heads.drafter:HeadSettings",
            source="Ankner et al. 2024, arXiv 2402.05109",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.hydra.recipe:new_hydra",
        options={"blocks": 1},
        recipe="speculant.drafters.heads.hydra.recipe:HydraRecipe",
        save="speculant.drafters.heads.hydra.checkpoint:save",
        depth=4,
        parts="heads",
        searches_tree=True,
        source="Ankner et al. 2024, arXiv 2402.05109",
    ),
)

HYDRA_PLUS = HeadKind(
    name="hydra++",
    layouts=(
        Layout(
            name="Hydra++",
            method="hydra",
            matches="speculant.drafters.heads.hydra.checkpoint:matches_plus",
            load="speculant.drafters.heads.hydra.checkpoint:load",
        ),
    ),
    methods=HYDRA.methods,
    training=HeadTraining(
        build="speculant.drafters.heads.hydra.recipe:new_hydra_plus",
        recipe="speculant.drafters.heads.hydra.recipe:HydraRecipe",
        save="speculant.drafters.heads.hydra.checkpoint:save",
        depth=4,
        parts="heads",
        searches_tree=True,
        source="Ankner et al. 2024, arXiv 2402.05109, section 4",
    ),
)
