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
        name="eagle3",
        family="self-drafting, feature head",
        summary="a layer over several hidden states, trained on its own output, drafts the most probable paths",
        drafter="speculant.drafters.heads.drafter:HeadDrafter",
        source="Li et al. 2025, arXiv 2503.01840",
        samples="either",
        heads=("eagle3",),
        requires=_HEAD,
    ),
    Method(
        name="p-eagle",
        family="self-drafting, feature head",
        summary="an EAGLE-3 head that drafts all depths in one pass, from mask tokens",
        drafter="speculant.drafters.heads.drafter:ChainHeadDrafter",
        source="vllm-project/speculators, peagle",
        samples="either",
        heads=("p-eagle",),
        requires=_HEAD,
    ),
    Method(
        name="blockwise",
        family="self-drafting, FFN heads",
        summary="a feed-forward layer predicts the next k tokens at once",
        drafter="speculant.drafters.heads.drafter:ChainHeadDrafter",
        source="Stern et al. 2018, arXiv 1811.03115",
        samples="either",
        heads=("blockwise",),
        requires=_HEAD,
    ),
    Method(
        name="medusa",
        family="self-drafting, FFN heads",
        summary="a head for each depth; the most probable combinations of their tokens",
        drafter="speculant.drafters.heads.drafter:HeadDrafter",
        source="Cai et al. 2024, arXiv 2401.10774",
        samples="either",
        heads=("medusa",),
        requires=_HEAD,
    ),
    Method(
        name="hydra",
        family="self-drafting, FFN heads",
        summary="a head for each depth, which reads the drafted tokens before its own",
        drafter="speculant.drafters.heads.drafter:HeadDrafter",
        source="Ankner et al. 2024, arXiv 2402.05109",
        samples="either",
        heads=("hydra",),
        requires=_HEAD,
    ),
    Method(
        name="mlp",
        family="self-drafting, FFN heads",
        summary="a small recurrent network over the target's state and the drafted tokens",
        drafter="speculant.drafters.heads.drafter:HeadDrafter",
        source="Wertheimer et al. 2024, arXiv 2404.19124",
        samples="either",
        heads=("mlp",),
        requires=_HEAD,
    ),
)
