"""Methods that draft with the target itself."""

from __future__ import annotations

from speculant.registry.method import Method

_LAYERS = "decoder layers that can be left out"

SELF_DRAFTING: tuple[Method, ...] = (
    Method(
        name="layer-skip",
        family="self-drafting, layer skipping",
        summary="the target without some of its layers drafts a chain; the stop rule adapts",
        drafter="speculant.drafters.layers.layer_skip:LayerSkipDrafter",
        source="Draft & Verify: Zhang et al. 2024, arXiv 2309.08168",
        verifier="speculative-sampling",
        samples="iid",
        requires=_LAYERS,
    ),
    Method(
        name="swift",
        family="self-drafting, layer skipping",
        summary="the target without some of its layers drafts a chain; which ones is searched while it decodes",
        drafter="speculant.drafters.layers.swift:SWIFTDrafter",
        source="Xia et al. 2025, arXiv 2410.06916",
        verifier="speculative-sampling",
        samples="iid",
        requires=_LAYERS,
    ),
    Method(
        name="early-exit",
        family="self-drafting, early exit",
        summary="the first layers of the target draft a chain through its head",
        drafter="speculant.drafters.layers.early_exit:EarlyExitDrafter",
        source="LayerSkip: Elhoushi et al. 2024, arXiv 2404.16710",
        verifier="speculative-sampling",
        samples="iid",
        requires=_LAYERS,
    ),
    Method(
        name="ppd",
        family="self-drafting, early exit",
        summary="the top k of an intermediate layer, each continued",
        drafter="speculant.drafters.layers.ppd:PPDDrafter",
        source="Yang et al. 2023, arXiv 2307.05908",
        requires=_LAYERS,
    ),
    Method(
        name="speed",
        family="self-drafting, early exit",
        summary="the first of G groups of layers drafts the G - 1 tokens that a pipeline would have in flight",
        drafter="speculant.drafters.layers.speed:SPEEDDrafter",
        source="Hooper et al. 2023, arXiv 2310.12072",
        verifier="speculative-sampling",
        samples="iid",
        requires=_LAYERS,
    ),
    Method(
        name="sparse-cache",
        family="self-drafting, sparse cache",
        summary="the target drafts a chain on a part of its cache: first, last and retrieved rows; for long texts",
        drafter="speculant.drafters.sparse.drafter:SparseCacheDrafter",
        source="Sun et al. 2024, arXiv 2404.11912, 2408.11049",
        verifier="speculative-sampling",
        samples="iid",
        requires="a cache of keys and values",
    ),
    Method(
        name="jacobi",
        family="self-drafting, mask-predict",
        summary="guesses all next tokens at once; every pass replaces them by its argmaxes",
        drafter="speculant.drafters.parallel.jacobi:JacobiDrafter",
        source="Santilli et al. 2023, arXiv 2305.10427",
    ),
    Method(
        name="lookahead",
        family="self-drafting, mask-predict",
        summary="n-grams of a window of Jacobi iterations, which shares the draft's pass",
        drafter="speculant.drafters.parallel.lookahead:LookaheadDrafter",
        source="Fu et al. 2024, arXiv 2402.02057",
        requires="tree attention",
    ),
)
