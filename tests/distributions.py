"""Exact distributions of acceptance rules: every draft that can be drawn, every outcome of every test, on tiny models.

A model is a distribution after every text of a few tokens. A draft has a shape (the parents of its nodes) and a kind:
nodes are drawn from q with ("iid") or without ("distinct") replacement, chosen, or both in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from speculant.core.tree import DraftTree, Proposal
from speculant.verifiers.forest import Forest
from speculant.verifiers.rule import Decision

VOCABULARY = 3
Float64 = npt.NDArray[np.float64]
Text = tuple[int, ...]
Model = Callable[[Text], Float64]
Rule = Callable[[Forest, torch.Tensor, torch.Tensor], Decision]
KINDS = ("iid", "distinct", "chosen", "mixed")
SHAPES = {
    "chain of 1": [-1],
    "chain of 3": [-1, 0, 1],
    "width 2": [-1, -1],
    "width 3": [-1, -1, -1],
    "2 x 2": [-1, -1, 0, 0, 1, 1],
    "uneven": [-1, -1, 0, 0, 2],
}


def model(seed: int, *, zeros: bool = False) -> Model:
    """Return a random model; with `zeros`, some tokens are impossible, as top-k and top-p make them."""

    @cache
    def distribution(text: Text) -> Float64:
        random = np.random.default_rng([seed, len(text), *text])
        p = random.dirichlet([0.7] * VOCABULARY)
        if zeros:
            p = p * (random.permutation(VOCABULARY) < random.integers(1, VOCABULARY))
        return np.asarray(p / p.sum(), np.float64)

    return distribution


def drafts(q: Model, parents: Sequence[int], kind: str) -> list[tuple[DraftTree, float]]:
    """Return every draft of a shape with its probability."""
    marks = [kind == "chosen" or (kind == "mixed" and node % 2 == 1) for node in range(len(parents))]
    found: list[tuple[list[int], float]] = [([], 1.0)]
    for node, parent in enumerate(parents):
        longer = []
        for tokens, probability in found:
            distribution = q(_path(tokens, parents, parent)).copy()
            if kind == "distinct":
                for sibling in range(node):
                    if parents[sibling] == parent:
                        distribution[tokens[sibling]] = 0
                if not distribution.sum():  # q has no other token: the drafter would stop here
                    distribution = q(_path(tokens, parents, parent)).copy()
                distribution /= distribution.sum()
            if marks[node]:
                rank = sum(parents[sibling] == parent for sibling in range(node))
                longer.append(([*tokens, int(np.argsort(-distribution)[rank % VOCABULARY])], probability))
            else:
                longer += [
                    ([*tokens, x], probability * distribution[x]) for x in range(VOCABULARY) if distribution[x] > 0
                ]
        found = longer
    return [(_tree(tokens, parents, q, marks, kind), probability) for tokens, probability in found]


def distribution_of_rule(
    rule: Rule, p: Model, q: Model, parents: Sequence[int], kind: str
) -> tuple[dict[Text, float], float]:
    """Return the distribution, see `distribution_of_drafts`, over all drafts of a shape and kind."""
    return distribution_of_drafts(rule, p, drafts(q, parents, kind))


def distribution_of_drafts(
    rule: Rule, p: Model, listed: list[tuple[DraftTree, float]]
) -> tuple[dict[Text, float], float]:
    """Return the distribution of texts of one token more than the drafts are deep, and the mean accepted length.

    What follows the committed tokens is the model's own. All drafts and all patterns of passed and failed tests are
    verified as one batch; a pattern's probability is the product of the rates of its tests.
    """
    maximum = max(len(tree) for tree, _ in listed)
    patterns = torch.tensor(list(itertools.product([0.0, 1 - 2**-53], repeat=maximum)), dtype=torch.float64)
    which = torch.arange(len(listed)).repeat_interleave(len(patterns))
    uniforms = patterns.repeat(len(listed), 1)
    rows = torch.tensor(np.stack([_rows(tree, p, maximum + 1) for tree, _ in listed]))
    outcome = rule(_repeated(Forest.of([tree for tree, _ in listed], rows), which), rows[which], uniforms)
    passed = torch.where(uniforms == 0, outcome.rates, 1 - outcome.rates).prod(1)
    probabilities = passed * torch.tensor([each for _, each in listed], dtype=torch.float64)[which]
    rest = outcome.rest / outcome.rest.sum(1, keepdim=True)
    width = maximum + 1
    ends = torch.zeros(len(listed) * width, VOCABULARY, dtype=torch.float64)
    ends.index_add_(0, which * width + outcome.rows, probabilities[:, None] * rest)
    length = max(int(tree.depths().max(initial=0)) for tree, _ in listed) + 1
    texts, accepted = dict.fromkeys(itertools.product(range(VOCABULARY), repeat=length), 0.0), 0.0
    for end, own in enumerate(ends.tolist()):
        if sum(own):
            tree, row = listed[end // width][0], end % width
            path = tuple(tree.tokens[tree.path(row - 1)].tolist()) if row else ()
            accepted += sum(own) * len(path)
            for token, probability in enumerate(own):
                if probability:
                    _continue(texts, (*path, token), probability, p, length)
    return texts, accepted


def _repeated(forest: Forest, which: torch.Tensor) -> Forest:
    """Return a forest with the drafts of these indices."""
    arrays = {each.name: getattr(forest, each.name) for each in fields(forest)}
    below = [forest.below[draft] for draft in which.tolist()]
    chosen = {name: None if array is None else array[which] for name, array in arrays.items() if name != "below"}
    return Forest(**chosen, below=below)


def own_distribution(p: Model, length: int) -> dict[Text, float]:
    """Return the model's own distribution of texts of some length."""
    texts = dict.fromkeys(itertools.product(range(VOCABULARY), repeat=length), 0.0)
    _continue(texts, (), 1.0, p, length)
    return texts


def _continue(texts: dict[Text, float], text: Text, probability: float, p: Model, length: int) -> None:
    if len(text) == length:
        texts[text] += probability
        return
    for token, chance in enumerate(p(text).tolist()):
        if chance > 0:
            _continue(texts, (*text, token), probability * chance, p, length)


def _path(tokens: Sequence[int], parents: Sequence[int], node: int) -> Text:
    path: Text = ()
    while node >= 0:
        path, node = (tokens[node], *path), parents[node]
    return path


def _rows(tree: DraftTree, p: Model, size: int) -> Float64:
    distributions = [p(_path(tree.tokens.tolist(), tree.parents.tolist(), node)) for node in range(-1, len(tree))]
    return np.stack([*distributions, *[np.ones(VOCABULARY) / VOCABULARY] * (size - len(distributions))])


def _tree(tokens: list[int], parents: Sequence[int], q: Model, marks: list[bool], kind: str) -> DraftTree:
    proposal = None
    if not all(marks):
        distributions = np.stack([q(_path(tokens, parents, node)) for node in range(-1, len(tokens))])
        drawn = "distinct" if kind == "distinct" else "iid"
        proposal = Proposal(torch.tensor(distributions), drawn, np.array(marks) if any(marks) else None)
    size = len(tokens)
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), np.ones(size, np.float32), proposal)
