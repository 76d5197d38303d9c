"""Methods that draft with a trained head of the target."""

from __future__ import annotations

from speculant.registry.method import Method

_HEAD = "a head trained for the target"

HEADS = (
    Method(
        name="eagle",
        family="self-drafting, feature head",
        summary="a layer that predicts the next hidden state drafts a chain",
        drafter="speculant.drafters.heads.drafter:ChainHeadDrafter",
        source="Li et al. 2024, arXiv 2401.15077",
        samples="either",
        heads=("eagle",),
        requires=_HEAD,
    ),
    Method(
        name="eagle2",
        family="self-drafting, feature head",
        summary="the same head drafts the most probable paths, level by level",
        drafter="speculant.drafters.heads.drafter:HeadDrafter",
        source="Li et al. 2024, arXiv 2406.16858",
        samples="either",
        heads=("eagle",),
        requires=_HEAD,
    ),
    Method(
        name="dflash",
        family="self-drafting, parallel head",
        summary="layers over the target's hidden states fill a block of masks in one pass",
        drafter="speculant.drafters.heads.dflash_drafter:DFlashDrafter",
        source="Chen et al. 2026, arXiv 2602.06036; DSpark: deepseek-ai/DeepSpec",
        samples="either",
        heads=("dflash",),
        requires=_HEAD,
    ),
    Method(
        name="pard",
        family="independent drafting, parallel model",
        summary="a small model with a mask token drafts a block in one pass",
        drafter="speculant.drafters.heads.drafter:ChainHeadDrafter",
        source="An et al. 2025, arXiv 2504.18583",
        samples="either",
        heads=("pard",),
        requires="a PARD model of the target's family",
    ),
    Method(
        name="glide",
        family="independent drafting, cross-attention head",
        summary="a layer that also attends to the target's last keys drafts a chain, wider where it is not confident",
        drafter="speculant.drafters.heads.glide_drafter:GlideDrafter",
        source="Du et al. 2024, arXiv 2402.02082",
        samples="either",
        heads=("glide",),
        requires=_HEAD,
    ),
    Method(
        name="pass",
        family="self-drafting, mask-predict",
        summary="learned look-ahead embeddings behind the text let the target draft a block in one pass",
        drafter="speculant.drafters.heads.drafter:ChainHeadDrafter",
        source="Monea et al. 2023, arXiv 2311.13581",
        samples="either",
        heads=("pass",),
        requires="look-ahead embeddings trained for the target",
    ),
    Method(
        name="specdec",
        family="independent drafting, non-autoregressive model",
        summary="an encoder of the text and a shallow decoder fill a block of masks in one pass",
        drafter="speculant.drafters.heads.drafter:ChainHeadDrafter",
        source="Xia et al. 2023, arXiv 2203.16487",
        samples="either",
        heads=("specdec",),
        requires=_HEAD,
    ),
)
