"""Sample, then follow: the acceptance rule for drafts whose tokens were chosen, not sampled.

At each node the target's own next token is drawn exactly as in plain decoding and committed; if a child holds it, the
walk continues there, otherwise the round ends. Losslessness needs no argument about probabilities: the draft decides
only how many of the target's tokens one pass computes, never which, so processors, stop rules and random streams see
every token once, in order. The probability of continuing from a node is the target's total probability of its children,
the maximum that any rule can reach with a fixed set of candidates (the tree used as a cache of target distributions:
SpecExec, Svirschevski et al., 2024, arXiv 2406.02532).
"""

from __future__ import annotations

from typing import Any, Literal

from speculant.core.engine import EngineArray, Pass
from speculant.core.errors import UnsupportedError
from speculant.core.sampler import Sampler
from speculant.core.tree import ROOT, DraftTree
from speculant.core.verifier import Verifier, Walk


class SampleThenFollow(Verifier):
    """Token-identical to plain decoding with the same random stream."""

    exactness: Literal["tokens", "distribution", "lossy"] = "tokens"
    trees = True
    sampled = False

    def prepare(self, tree: DraftTree, result: Pass, sampler: Sampler) -> EngineArray | None:
        """Let the sampler draw the tokens after all rows at once, if p does not depend on the prefix.

        Raises:
            UnsupportedError: nodes were sampled; this rule would make no use of q.
        """
        if tree.proposal is not None:
            raise UnsupportedError("sample-then-follow takes drafts of chosen tokens; these were sampled.")
        sampler.load(result.logits)
        return sampler.draw_all(tree)

    def walk(self, tree: DraftTree, prepared: list[Any] | None, sampler: Sampler) -> Walk:
        """Walk the tree along the target's own tokens."""
        if prepared is not None:
            sampler.set_drawn(prepared)
        children: dict[tuple[int, int], int] = {}
        for node, key in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
            children.setdefault(key, node)
        path: list[int] = []
        tokens: list[int] = []
        node = ROOT
        while True:
            token = sampler.draw(node + 1)
            tokens.append(token)
            ended = sampler.commit(token)
            child = children.get((node, token))
            if ended or child is None:
                return Walk(path, tokens, ended)
            path.append(child)
            node = child


class Greedy(SampleThenFollow):
    """The same rule for greedy decoding only, where the target's own token is its argmax."""

    sampled = True

    def prepare(self, tree: DraftTree, result: Pass, sampler: Sampler) -> EngineArray | None:
        """Compute the argmax after every row.

        Raises:
            UnsupportedError: the request is sampled.
        """
        if not sampler.greedy:
            raise UnsupportedError(
                "greedy verification is lossless for greedy decoding only. Use temperature 0, or the verifier "
                "'speculative-sampling'."
            )
        sampler.load(result.logits)
        return sampler.draw_all(tree)
