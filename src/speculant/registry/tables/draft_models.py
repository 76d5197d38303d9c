"""Methods that draft with another model."""

from __future__ import annotations

from speculant.registry.method import Method

DRAFT_MODELS = (
    Method(
        name="draft-model",
        family="independent drafting, smaller model",
        summary="a smaller model of the same vocabulary drafts a chain",
        drafter="speculant.drafters.models.draft_model:DraftModelDrafter",
        source="Leviathan et al. 2023, arXiv 2211.17192, 2302.01318",
        verifier="speculative-sampling",
        samples="iid",
        requires="a draft model",
    ),
    Method(
        name="specinfer",
        family="independent drafting, smaller model",
        summary="so many siblings a level, drawn with replacement",
        drafter="speculant.drafters.models.draft_model:SpecInferDrafter",
        source="Miao et al. 2024, arXiv 2305.09781",
        verifier="speculative-sampling",
        samples="iid",
        requires="a draft model",
    ),
    Method(
        name="mcsd",
        family="independent drafting, smaller model",
        summary="so many siblings a level, drawn without replacement",
        drafter="speculant.drafters.models.draft_model:MCSDDrafter",
        source="Yang et al. 2024, arXiv 2401.06706",
        verifier="speculative-sampling",
        samples="distinct",
        requires="a draft model",
    ),
    Method(
        name="spectr",
        family="independent drafting, smaller model",
        summary="several independent sequences, verified by K-SEQ",
        drafter="speculant.drafters.models.draft_model:SpecTrDrafter",
        source="Sun et al. 2023, arXiv 2310.15141",
        verifier="k-seq",
        samples="iid",
        requires="a draft model",
    ),
    Method(
        name="opt-tree",
        family="independent drafting, smaller model",
        summary="the most probable paths, level by level",
        drafter="speculant.drafters.models.draft_model:OptTreeDrafter",
        source="Wang et al. 2025, arXiv 2406.17276",
        requires="a draft model",
    ),
    Method(
        name="sequoia",
        family="independent drafting, smaller model",
        summary="the tree that yields most by the acceptance measured so far, drawn without replacement",
        drafter="speculant.drafters.models.draft_model:SequoiaDrafter",
        source="Chen et al. 2024, arXiv 2402.12374",
        verifier="speculative-sampling",
        samples="distinct",
        requires="a draft model",
    ),
    Method(
        name="llmcad",
        family="independent drafting, smaller model",
        summary="the most probable paths, until none of them is probable enough",
        drafter="speculant.drafters.models.draft_model:LLMCadDrafter",
        source="Xu et al. 2023, arXiv 2309.04255",
        requires="a draft model",
    ),
)
