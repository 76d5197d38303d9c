"""Definition of GLIDE as a kind of heads: checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

GLIDE = HeadKind(
    name="glide",
    layouts=(
        Layout(
            name="GLIDE",
            method="glide",
            matches="speculant.drafters.heads.glide.checkpoint:matches",
            load="speculant.drafters.heads.glide.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="glide",
            family="independent drafting, feature head",
            summary="a layer that also attends to the target's last keys drafts a chain, "
            "wider where it is not confident",
            drafter="speculant.drafters.heads.glide.drafter:GlideDrafter",
            settings="speculant.drafters.heads.glide.drafter:GlideSettings",
            source="Du et al. 2024, arXiv 2402.02082",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.glide.recipe:new_glide",
        recipe="speculant.drafters.heads.glide.recipe:GlideRecipe",
        save="speculant.drafters.heads.glide.checkpoint:save",
        depth=5,
        loss="ce",
        source="Du et al. 2024, arXiv 2402.02082",
    ),
    decoder_only="it attends to the target's rotated keys, which most such decoders do not have",
)
