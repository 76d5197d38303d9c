"""Definition of MTP layers as a kind of heads: checkpoints, methods and training."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, HeadTraining, Layout

MTP = HeadKind(
    name="mtp",
    layouts=(
        Layout(
            name="MTP",
            method="mtp",
            matches="speculant.drafters.heads.mtp.checkpoint:matches",
            load="speculant.drafters.heads.mtp.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="mtp",
            family="self-drafting, feature head",
            summary="layers trained with the model to predict further tokens draft the most probable paths",
            drafter="speculant.drafters.heads.drafter:HeadDrafter",
            settings="speculant.drafters.heads.drafter:HeadSettings",
            source="DeepSeek-AI 2024, arXiv 2412.19437",
            requires="MTP layers in the model's checkpoint, or a head trained for the target",
        ),
    ),
    training=HeadTraining(
        build="speculant.drafters.heads.mtp.recipe:new_mtp",
        recipe="speculant.drafters.heads.mtp.recipe:MtpRecipe",
        save="speculant.drafters.heads.mtp.checkpoint:save",
        depth=4,
        feature_weight=0.1,
        source="DeepSeek-AI 2024, arXiv 2412.19437; several depths: FastMTP, arXiv 2509.18362",
    ),
    decoder_only="its layers are of the target's class, whose decoder layers read an encoder's states",
)
