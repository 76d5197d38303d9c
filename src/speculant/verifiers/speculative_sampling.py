"""Speculative sampling: the acceptance rule for chains whose tokens were sampled from q.

Leviathan, Kalman, Matias: "Fast Inference from Transformers via Speculative Decoding", ICML 2023, arXiv 2211.17192,
algorithm 1; Chen et al. 2023, arXiv 2302.01318, theorem 1. Node x_i, drawn from q_i, is accepted with the probability
min(1, p_i(x_i) / q_i(x_i)). At the first rejection the next token is drawn from the residual max(0, p_i - q_i),
normalised; after the last node from p. The output then has exactly the distribution p, whatever q is.

p and q are both warped (temperature, top-k, top-p) before the test. A chosen token counts as drawn from a one-hot q:
it is accepted with the probability p(x), and the residual is p without it. Greedy decoding is the case of one-hot p and
q: accepted where the argmax agrees, else the target's argmax. Ratios are computed in float64.
"""

from __future__ import annotations

from typing import Any, Literal

from speculant.core.engine import Array, Pass
from speculant.core.errors import UnsupportedError
from speculant.core.sampler import Sampler
from speculant.core.tree import DraftTree
from speculant.core.verifier import Verifier, Walk


class SpeculativeSampling(Verifier):
    """Exact in distribution; token-identical where decoding is greedy."""

    exactness: Literal["tokens", "distribution", "lossy"] = "distribution"
    order: Literal["path", "tree"] = "path"
    trees = False
    sampled = True

    def prepare(self, tree: DraftTree, result: Pass, sampler: Sampler) -> Array | None:
        """Load the logits; the walk reads the rows it comes to.

        Raises:
            UnsupportedError: the draft branches.
        """
        if (tree.parents != range(-1, len(tree) - 1)).any() if len(tree) else False:
            raise UnsupportedError("speculative sampling verifies chains; this draft branches.")
        sampler.load(result.logits)
        return None

    def walk(self, tree: DraftTree, prepared: list[Any] | None, sampler: Sampler) -> Walk:
        """Accept a prefix of the chain, then commit a token of the residual or of p."""
        tokens: list[int] = []
        for node, token in enumerate(tree.tokens.tolist()):
            p = sampler.distribution(node)
            q = _proposed(tree, node, p)
            if not accepts(float(p[token]), float(q[token]), sampler):
                tokens.append(sampler.sample(residual(p, q)))
                return Walk(list(range(node)), tokens, sampler.commit(tokens[-1]))
            tokens.append(token)
            if sampler.commit(token):
                # The text ends inside the draft, and its last token counts as the target's own.
                return Walk(list(range(node)), tokens, True)
        tokens.append(sampler.sample(sampler.distribution(len(tree))))
        return Walk(list(range(len(tree))), tokens, sampler.commit(tokens[-1]))


def accepts(p: float, q: float, sampler: Sampler) -> bool:
    """Return whether a token of the probabilities p and q is accepted: with the probability min(1, p / q)."""
    return p >= q or sampler.uniform() * q < p


def residual(p: Array, q: Array) -> Array:
    """Return max(0, p - q) [V], not normalised: what is left of p for a rejected token's place.

    A token is rejected only where p is below q, so somewhere else p is above q; but rounding may leave nothing there,
    and then p itself is as good an answer as its precision allows.
    """
    left = (p - q).clip(0)
    return left if float(left.sum()) > 0 else p


def _proposed(tree: DraftTree, node: int, p: Array) -> Array:
    """Return the distribution [V] that a node was drawn from, in p's type and on its device."""
    proposal = tree.proposal
    if proposal is None or (proposal.chosen is not None and proposal.chosen[node]):
        q = p * 0
        q[int(tree.tokens[node])] = 1.0
        return q
    q = proposal.q[node]
    return q.to(p) if hasattr(q, "to") else q
