"""The search of layers and sublayers to skip: what it finds, when it ends, and that it can be repeated."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.core.errors import ForeignMemoryError
from speculant.core.sublayers import Sublayers
from speculant.drafters.layers.search import LayerSearch, SearchSettings

GAINS = np.array([0, 0.02, 0.2, 0.01, 0.02, 0.2, 0.03, 0.2, 0.02, 0.01, 0.2, 0])  # of skipping each of 12 layers


def searched(settings: SearchSettings, seed: int = 0, maximum: int = 2000) -> tuple[LayerSearch, int]:
    """Return a search that has ended, or has scored so many sets, and their number."""
    search, random = LayerSearch(12, settings), np.random.default_rng(seed)
    for step in range(maximum):
        if search.over:
            return search, step
        skipped = search.candidate(random)
        assert skipped.are_whole
        assert len(skipped.mlp) == 4
        assert 0 < min(skipped.mlp) <= max(skipped.mlp) < 11
        search.observe(skipped, float(GAINS[list(skipped.mlp)].sum()))
    return search, maximum


def test_promising_sets_find_the_best_early() -> None:
    """Guards the regression: with it, the best of 210 sets is among the first few promising ones."""
    search, steps = searched(SearchSettings(bayes_interval=3, enough=0.79))
    assert search.layers == Sublayers.whole((0, 1, 3, 4, 6, 8, 9, 11))
    assert steps < 60


def test_sublayers_are_searched_as_layers_are() -> None:
    """Guards the split space: 4 of 8 sublayers between first and last; the best of 70 sets is found, and is resumed."""
    settings = SearchSettings(bayes_interval=2, skip_ratio=0.5, enough=0.79)
    search, random, steps = LayerSearch(6, settings, split=True), np.random.default_rng(0), 0
    best = Sublayers((1, 4), (2, 4))
    while not search.over and steps < 60:
        skipped = search.candidate(random)
        assert len(skipped.attention) + len(skipped.mlp) == 4
        assert {*skipped.attention, *skipped.mlp} <= {1, 2, 3, 4}
        hits = len({*skipped.attention} & {1, 4}) + len({*skipped.mlp} & {2, 4})
        search.observe(skipped, 0.2 * hits)
        steps += 1
    assert search.layers == Sublayers.whole(range(6)).without(best)
    arrays, facts = search.contents()
    again = LayerSearch(6, settings, split=True)
    again.resume(arrays, facts)
    assert again.layers == search.layers
    assert again.over
    with pytest.raises(ForeignMemoryError, match=r"4 of 8 sublayers .* but here 2 of 4 layers .* sublayers and"):
        LayerSearch(6, settings).resume(arrays, facts)


def test_patience_is_bounded_by_the_number_of_sets() -> None:
    """Guards small models, whose few sets were scored for hundreds of rounds, each of which costs a pass."""
    search, random, steps = LayerSearch(6, SearchSettings()), np.random.default_rng(0), 0  # 1 of 4 layers is skipped
    while not search.over:
        search.observe(search.candidate(random), 0.5)
        steps += 1
    assert steps == 1 + 4 * 4 + 1


def test_it_begins_with_every_other_layer() -> None:
    """Guards the authors' beginning, and that nothing is searched where there is one set only."""
    assert LayerSearch(6, SearchSettings()).layers == Sublayers.whole((0, 2, 4, 5))
    assert LayerSearch(3, SearchSettings()).over
    assert LayerSearch(2, SearchSettings()).layers == Sublayers.whole((0,))
    assert not LayerSearch(3, SearchSettings(), split=True).over


@pytest.mark.parametrize(
    ("settings", "maximum"),
    [
        (SearchSettings(steps=7), 7),
        (SearchSettings(patience=5, enough=1.0), 60),
        (SearchSettings(enough=0.2, bayes_interval=2), 20),
    ],
)
def test_it_ends(settings: SearchSettings, maximum: int) -> None:
    """Guards the three criteria: steps, patience and a score that is high enough."""
    search, steps = searched(settings)
    assert search.over
    assert 0 < steps <= maximum


def test_it_can_be_repeated() -> None:
    """Guards determinism: the seed decides the candidates."""
    settings = SearchSettings(steps=40, bayes_interval=4)
    assert searched(settings, seed=5)[0].layers == searched(settings, seed=5)[0].layers
    one, other = (LayerSearch(12, settings).candidate(np.random.default_rng(seed)) for seed in (1, 2))
    assert one != other
