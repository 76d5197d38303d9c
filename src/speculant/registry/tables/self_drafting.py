"""Methods that draft with the target itself."""

from __future__ import annotations

from speculant.registry.builders import (
    build_by_settings,
    build_by_vocabulary,
    build_layer_search,
    build_layers,
    build_rows,
    build_sublayers,
)
from speculant.registry.method import Method

_LAYERS = "decoder layers that can be left out"

SELF_DRAFTING: tuple[Method, ...] = (
    Method(
        name="layer-skip",
        family="self-drafting, layer skipping",
        summary="the target without some of its layers or sublayers drafts a chain; the stop rule adapts",
        drafter="speculant.drafters.layers.layer_skip:LayerSkipDrafter",
        builder=build_sublayers,
        settings="speculant.drafters.layers.layer_skip:LayerSkipMethodSettings",
        takes_layers=True,
        takes_sublayers=True,
        source="Draft & Verify: Zhang et al. 2024, arXiv 2309.08168",
        verifier="speculative-sampling",
        samples="iid",
        requires=_LAYERS,
    ),
    Method(
        name="swift",
        family="self-drafting, layer skipping",
        summary="the target without some of its layers drafts a chain; a search during decoding chooses which",
        drafter="speculant.drafters.layers.swift:SWIFTDrafter",
        builder=build_layer_search,
        settings="speculant.drafters.layers.swift:SWIFTSettings",
        takes_layers=True,
        takes_sublayers=True,
        source="Xia et al. 2025, arXiv 2410.06916",
        memory="speculant.drafters.layers.memory:LAYER_SEARCH",
        verifier="speculative-sampling",
        samples="distinct",
        requires=_LAYERS,
    ),
    Method(
        name="early-exit",
        family="self-drafting, early exit",
        summary="the first layers of the target draft through its head; for models that were trained to exit early",
        drafter="speculant.drafters.layers.early_exit:EarlyExitDrafter",
        builder=build_layers,
        settings="speculant.drafters.layers.early_exit:EarlyExitSettings",
        takes_layers=True,
        source="LayerSkip: arXiv 2404.16710, 2307.05908, 2310.12072",
        verifier="speculative-sampling",
        samples="mixed",
        requires=_LAYERS,
    ),
    Method(
        name="sparse-cache",
        family="self-drafting, sparse cache",
        summary="the target drafts a chain with a part of its cache: first, last and retrieved rows; for long texts",
        drafter="speculant.drafters.sparse.drafter:SparseCacheDrafter",
        builder=build_rows,
        settings="speculant.drafters.sparse.drafter:SparseCacheSettings",
        takes_rows=True,
        source="Sun et al. 2024, arXiv 2404.11912, 2408.11049",
        verifier="speculative-sampling",
        samples="iid",
        requires="a KV cache",
    ),
    Method(
        name="jacobi",
        family="self-drafting, mask-predict",
        summary="guesses all next tokens at once; every pass replaces them with its argmaxes",
        drafter="speculant.drafters.parallel.jacobi:JacobiDrafter",
        builder=build_by_vocabulary,
        settings="speculant.drafters.parallel.jacobi:JacobiSettings",
        source="Santilli et al. 2023, arXiv 2305.10427",
    ),
    Method(
        name="lookahead",
        family="self-drafting, mask-predict",
        summary="n-grams of a window of Jacobi iterations, which shares the draft's pass",
        drafter="speculant.drafters.parallel.lookahead:LookaheadDrafter",
        builder=build_by_settings,
        settings="speculant.drafters.parallel.lookahead:LookaheadSettings",
        source="Fu et al. 2024, arXiv 2402.02057",
        requires="tree attention",
    ),
)
