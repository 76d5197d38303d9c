"""Whether timings tell which is faster: the same rules wherever plain and drafted decoding are timed in turns.

A pass over a draft takes at least as long as a pass over one token. So one request at a time is decoded at most as many
times faster as tokens are accepted per pass (MAT); what exceeds that is the machine's doing.
"""

from __future__ import annotations

from collections.abc import Sequence

STEADY = 1.3  # largest over smallest ratio of pairs, above which the machine does other things
CLEAR = 1.1  # up to which it does not matter on which side of 1 they are


def unsteady(ratios: Sequence[float], speeds: Sequence[float], *, pairs: str = "pairs") -> str:
    """Return why ratios of the same thing do not tell which is faster; empty where they do.

    Args:
        ratios: drafted over plain tokens per second, of each pair of runs, or the least and the most of them.
        speeds: plain decoding's tokens per second in these.
        pairs: what the pairs are called.
    """
    if not ratios or max(ratios) <= CLEAR * min(ratios):
        return ""
    if max(ratios) > STEADY * min(ratios):
        return (
            f"this machine is too noisy to tell: the {pairs} range from {min(ratios):.2f}x to {max(ratios):.2f}x, "
            f"plain decoding from {min(speeds):.0f} to {max(speeds):.0f} tokens/s. Close other programs and "
            "try again"
        )
    if min(ratios) < 1 < max(ratios):
        return f"the {pairs} disagree about which is faster. Generate more tokens for a clearer answer"
    return ""


def beyond_drafts(speedup: float | None, mat: float | None) -> str:
    """Return why a speed-up of single requests is more than drafts can gain; empty where it is not.

    Args:
        speedup: over plain decoding by the same passes.
        mat: tokens per target pass; None or 0 where there were none.
    """
    if speedup is None or not mat or round(speedup, 2) <= round(mat, 2):
        return ""
    return (
        f"{speedup:.2f}x is more than drafts can gain at {mat:.2f} tokens per target pass: something else slowed plain "
        "decoding down. Measure again on an idle machine"
    )
