"""Methods that draft with the target itself."""

from __future__ import annotations

from speculant.registry.method import Method

SELF_DRAFTING: tuple[Method, ...] = (
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
