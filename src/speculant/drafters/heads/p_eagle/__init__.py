"""Definition of P-EAGLE as a kind of heads: checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

P_EAGLE = HeadKind(
    name="p-eagle",
    layouts=(
        Layout(
            name="P-EAGLE (SpecForge)",
            method="p-eagle",
            matches="speculant.drafters.heads.eagle3.checkpoint:matches_parallel",
            load="speculant.drafters.heads.eagle3.checkpoint:load",
        ),
        Layout(
            name="P-EAGLE (speculators)",
            method="p-eagle",
            matches="speculant.drafters.heads.checkpoints.speculators:matches_p_eagle",
            load="speculant.drafters.heads.checkpoints.speculators:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="p-eagle",
            family="self-drafting, feature head",
            summary="an EAGLE-3 head that drafts all depths in one pass, from mask tokens",
            drafter="speculant.drafters.heads.drafter:ChainHeadDrafter",
            settings="speculant.drafters.heads.drafter:ChainHeadSettings",
            source="vllm-project/speculators, peagle",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.p_eagle.recipe:new_p_eagle",
        options={"layers": 2, "vocabulary": 0, "own_output": True},
        counts=True,
        recipe="speculant.drafters.heads.p_eagle.recipe:PEagleRecipe",
        save="speculant.drafters.heads.eagle3.checkpoint:save",
        depth=4,
        parts="depth",
        source="P-EAGLE, of vLLM's speculators",
    ),
)
