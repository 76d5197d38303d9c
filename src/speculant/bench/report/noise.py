"""Checks whether timings can tell which is faster, for any alternating runs of plain and drafted decoding.

A pass over a draft takes at least as long as a pass over one token. So the speed-up of a single request is at most the
number of tokens accepted per pass (MAT); anything beyond that is noise.
"""

from __future__ import annotations

from collections.abc import Sequence

STEADY = 1.3  # max / min ratio of pairs above which the machine is considered busy
CLEAR = 1.1  # a spread up to this is fine even if ratios lie on both sides of 1


def unsteady(ratios: Sequence[float], speeds: Sequence[float], *, pairs: str = "pairs") -> str:
    """Return why ratios of the same comparison do not tell which is faster; empty if they do.

    Args:
        ratios: drafted over plain tokens per second of each pair of runs, or their minimum and maximum.
        speeds: plain decoding's tokens per second in these.
        pairs: name of the pairs in the message.
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
    """Return why a speed-up of single requests exceeds what drafts can gain; empty if it does not.

    Args:
        speedup: speed-up over plain decoding with the same passes.
        mat: tokens per target pass; None or 0 without any.
    """
    if speedup is None or not mat or round(speedup, 2) <= round(mat, 2):
        return ""
    return (
        f"{speedup:.2f}x is more than drafts can gain at {mat:.2f} tokens per target pass: something else slowed plain "
        "decoding down. Measure again on an idle machine"
    )
