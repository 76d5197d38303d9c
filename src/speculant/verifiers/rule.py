"""The common part of acceptance rules that compare probabilities: p of every row, random numbers, a walk on the host.

A rule is a pure function of the drafts, p and uniform random numbers, for B sequences at once, on their device. It
returns the last accepted row of each draft and the distribution of the target's own token after it. The token is drawn
on the device, so that only two numbers per sequence are transferred to the host, all at once.

Rules that descend from the root and need p only at the rows they visit (`NodeRule`) are run row by row on CPUs, which
saves warping the other rows, and whenever processors look at the text, because the text before a visited row is known.

Greedy decoding needs no rule: with a one-hot p, lossless output can only be the argmax, and ties must be resolved as in
plain decoding.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from speculant.core.engine import EngineArray, Pass
from speculant.core.errors import UnsupportedError
from speculant.core.sampler import Sampler
from speculant.core.tree import ROOT, Ahead, DraftTree
from speculant.core.verifier import Verifier, Walk
from speculant.verifiers.forest import Forest, draw, settle
from speculant.verifiers.sample_then_follow import SampleThenFollow


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A rule's decision for B drafts.

    Attributes:
        rows: Int64[B], the last accepted row; 0 is the root.
        rest: [B, V], the distribution of the target's own token, not always normalised.
        rates: [B, n], for each possible acceptance test, the probability of passing if it is reached.
    """

    rows: Tensor
    rest: Tensor
    rates: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A rule's decision among siblings: index of the accepted one [B] or -1; `rest` and `rates` as in `Decision`."""

    taken: Tensor
    rest: Tensor
    rates: Tensor


class NodeRule(Protocol):
    """An acceptance rule among the children of one row of each draft."""

    def __call__(self, forest: Forest, rows: Tensor, p: Tensor, uniforms: Tensor) -> Choice:
        """Return the choice among the children of rows [B], with p [B, V] after them and uniform numbers [B, W]."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A sequence's input to a round's verification: its draft, p [N + 1, V], and uniform numbers [N + 1].

    If decoding is greedy, `p` is taken at temperature 1, and the target's own token is its argmax. `ahead` is a token
    drawn after the draft, or None; if present, there is one more uniform number to test it.
    """

    draft: DraftTree
    p: Tensor
    uniforms: Tensor
    greedy: bool
    ahead: Ahead | None = None


class RuleVerifier(Verifier):
    """Runs a rule over whole drafts."""

    exactness: Literal["tokens", "distribution", "lossy"] = "distribution"
    trees = True
    sampled = True

    @abstractmethod
    def rule(self, forest: Forest, p: Tensor, uniforms: Tensor) -> Decision:
        """Return the outcome for drafts with p [B, N + 1, V] after every row and uniform numbers [B, N]."""

    def check(self, draft: DraftTree) -> None:
        """Check that the rule supports a draft.

        Raises:
            UnsupportedError: it does not.
        """

    def prepare(self, tree: DraftTree, result: Pass, sampler: Sampler) -> Any:
        """Return the work on the device, or the target's tokens after every row if decoding is greedy.

        Raises:
            UnsupportedError: the rule does not support this draft, or p depends on text that is not known yet.
        """
        sampler.load(result.logits)
        if (sampler.greedy and self.exactness != "lossy") or (sampler.parallel and self._has_no_choice(tree)):
            return sampler.draw_all(tree)
        self.check(tree)
        p = sampler.probabilities()
        if p is None:
            raise UnsupportedError(
                f"{type(self).__name__} needs the distribution after every drafted token at once. Logits processors "
                "that read the text, and returned scores, work only with the verifiers 'sample-then-follow' and "
                "'speculative-sampling'."
            )
        ahead = None if sampler.greedy else ahead_of(tree)
        return Work(tree, p, sampler.uniforms(len(tree) + 1 + (ahead is not None)), sampler.greedy, ahead)

    def decide(self, prepared: Sequence[Any]) -> list[EngineArray]:
        """Run the rule for all sequences at once; return each one's last accepted row and own token, Int64[2]."""
        works = [each for each in prepared if isinstance(each, Work)]
        if not works:
            return list(prepared)
        size = max(len(work.draft) for work in works)
        p = torch.stack([_pad(work.p, size + 1) for work in works])
        uniforms = torch.stack([_pad(work.uniforms[: len(work.draft)], size) for work in works])
        outcome = self.rule(Forest.of([work.draft for work in works], p), p, uniforms)
        last = torch.stack([work.uniforms[-1] for work in works])
        greedy = torch.tensor([work.greedy for work in works], device=p.device)
        own = torch.where(greedy, outcome.rest.argmax(-1), draw(_settle_all(works, outcome), last))
        decided = iter(torch.stack([outcome.rows, own], 1).unbind())
        return [next(decided) if isinstance(each, Work) else each for each in prepared]

    def walk(self, tree: DraftTree, prepared: list[Any] | None, sampler: Sampler) -> Walk:
        """Commit the decided path and token."""
        if (sampler.greedy and self.exactness != "lossy") or self._has_no_choice(tree):
            return SampleThenFollow().walk(tree, prepared, sampler)
        assert prepared is not None
        row, own = prepared
        path = tree.path(int(row) - 1).tolist() if row else []
        for place, node in enumerate(path):
            if sampler.commit(int(tree.tokens[node])):
                return _end_walk(tree, path[:place], node)
        return Walk(path, [*tree.tokens[path].tolist(), int(own)], sampler.commit(int(own)))

    def _has_no_choice(self, tree: DraftTree) -> bool:
        """Return whether there is nothing to accept, so that a token is drawn as in plain decoding, which is faster."""
        return not len(tree) and tree.proposal is None and self.exactness != "lossy"


class DescentVerifier(RuleVerifier):
    """Applies a rule among siblings, from the root down."""

    @abstractmethod
    def choose(self, forest: Forest, rows: Tensor, p: Tensor, uniforms: Tensor) -> Choice:
        """Return the choice among siblings; see `NodeRule`."""

    def rule(self, forest: Forest, p: Tensor, uniforms: Tensor) -> Decision:
        return descend(self.choose, forest, p, uniforms)

    def prepare(self, tree: DraftTree, result: Pass, sampler: Sampler) -> Any:
        """Return the work on the device, or None if the walk is done on the host."""
        if sampler.greedy or sampler.parallel:
            return super().prepare(tree, result, sampler)
        self.check(tree)
        sampler.load(result.logits)
        return None

    def walk(self, tree: DraftTree, prepared: list[Any] | None, sampler: Sampler) -> Walk:
        """Commit the decided path, or descend row by row on the host."""
        if sampler.greedy or prepared is not None or self._has_no_choice(tree):
            return super().walk(tree, prepared, sampler)
        path, node, forest = list[int](), ROOT, None
        while True:
            p = torch.as_tensor(sampler.distribution(node + 1))[None]
            forest = Forest.of([tree], p) if forest is None else forest
            uniforms = torch.as_tensor(sampler.uniforms(forest.children.shape[-1] + 1))[None]
            choice = self.choose(forest, torch.tensor([node + 1], device=p.device), p, uniforms[:, :-1])
            taken = int(choice.taken)
            if taken < 0:
                ahead = ahead_of(tree) if node == len(tree) - 1 else None
                distribution = choice.rest if ahead is None else _test_ahead(ahead, choice.rest, sampler)
                own = int(draw(distribution, uniforms[:, -1]))
                return Walk(path, [*tree.tokens[path].tolist(), own], sampler.commit(own))
            node = int(forest.children[0, node + 1, taken])
            if sampler.commit(int(tree.tokens[node])):
                return _end_walk(tree, path, node)
            path.append(node)


def descend(choose: NodeRule, forest: Forest, p: Tensor, uniforms: Tensor) -> Decision:
    """Apply a rule among siblings from the root down until it accepts none."""
    everyone = torch.arange(len(p), device=p.device)
    rows, going = torch.zeros_like(everyone), torch.ones_like(everyone, dtype=torch.bool)
    rest = p[:, 0]
    rates = p.new_zeros(uniforms.shape)
    for _ in range(forest.tokens.shape[1] + 1):
        nodes = forest.children[everyone, rows]
        places = nodes.clamp(min=0)
        choice = choose(forest, rows, p[everyone, rows], uniforms.gather(1, places))
        rates = rates.scatter_add(1, places, torch.where(going[:, None] & (nodes >= 0), choice.rates, 0.0))
        rest = torch.where(going[:, None], choice.rest, rest)
        going = going & (choice.taken >= 0)
        taken = nodes.gather(1, choice.taken.clamp(min=0)[:, None])[:, 0] if nodes.shape[1] else rows
        rows = torch.where(going, taken + 1, rows)
        if p.device.type == "cpu" and not bool(going.any()):
            break
    return Decision(rows, rest, rates)


def ahead_of(tree: DraftTree) -> Ahead | None:
    """Return the token that was drawn after a chain while its pass ran, or None."""
    return None if tree.proposal is None or tree.proposal.ahead is None else tree.proposal.ahead()


def _test_ahead(ahead: Ahead, p: Tensor, sampler: Sampler) -> Tensor:
    """Return the distribution [1, V] of the target's own token under p [1, V], given a token drawn ahead."""
    q = torch.as_tensor(ahead.q).to(p)[None]
    test = torch.as_tensor(sampler.uniforms(1)).to(p.device)
    return settle(p, torch.tensor([ahead.token], device=p.device), q, test)


def _settle_all(works: Sequence[Work], outcome: Decision) -> Tensor:
    """Return the distributions [B, V] of the target's own tokens, given tokens drawn ahead of fully accepted drafts."""
    rest, ahead = outcome.rest, [work.ahead for work in works]
    if not any(ahead):
        return rest
    tokens = torch.tensor([0 if each is None else each.token for each in ahead], device=rest.device)
    nothing = rest.new_zeros(rest.shape[-1])
    q = torch.stack([nothing if each is None else torch.as_tensor(each.q).to(rest) for each in ahead])
    tests = torch.stack([work.uniforms[len(work.draft)] for work in works])
    whole = [-1 if work.ahead is None else len(work.draft) for work in works]
    tested = outcome.rows == torch.tensor(whole, device=rest.device)
    return torch.where(tested[:, None], settle(rest, tokens, q, tests), rest)


def _end_walk(tree: DraftTree, path: list[int], node: int) -> Walk:
    """Return the walk of a text that ends with a drafted node, which then counts as the target's own token."""
    return Walk(path, tree.tokens[[*path, node]].tolist(), True)


def _pad(array: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(array, (*(0, 0) * (array.ndim - 1), 0, size - len(array)))
