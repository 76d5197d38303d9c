"""The table of acceptance rules: names, settings, consent, and which methods they fit."""

from __future__ import annotations

import math

import pytest

from speculant.core.errors import UnsupportedError, UsageError
from speculant.registry import METHODS, VERIFIERS, build_verifier
from speculant.verifiers.thresholds import Rollback


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("typical:epsilon=0", "above 0"),
        ("top-beta:beta=0", "at least 1"),
        ("blockwise:k=0", "at least 1"),
        ("lenience:lenience=2", "at most 1"),
        ("rollback:threshold=-1", "above 0"),
        ("typical:epsilon=much", "must be a number"),
        ("rollback:threshold=nan", "must be a number"),
        ("blockwise:k=1.5", "a whole number"),
        ("typical:beta=3", r"no setting 'beta'. Did you mean 'delta'\? It has epsilon \(0.09\)"),
        ("block:k=3", "has no settings"),
        ("typicle", "Did you mean 'typical'"),
    ],
)
def test_bad_names_and_settings_are_refused(name: str, reason: str) -> None:
    """Guards thresholds that would accept everything or nothing, and misspelt ones."""
    with pytest.raises(UsageError, match=reason):
        build_verifier("mix", name, lossy=True)


def test_thresholds_may_be_infinite() -> None:
    """An infinite threshold accepts every draft, given as text as in Python."""
    rule = build_verifier("mix", "rollback:threshold=inf", lossy=True)
    assert isinstance(rule, Rollback)
    assert rule.threshold == math.inf


@pytest.mark.parametrize("name", [rule.name for rule in VERIFIERS.values() if rule.lossy])
def test_lossy_rules_need_consent(name: str) -> None:
    """Guards losslessness against a rule that somebody picked for its name."""
    method = next(each.name for each in METHODS.values() if name in each.verifiers)
    with pytest.raises(UnsupportedError, match="lossy=True"):
        build_verifier(method, name)
    assert build_verifier(method, name, lossy=True).exactness == "lossy"


def test_the_table_agrees_with_the_classes() -> None:
    """Guards what users read of each rule."""
    for rule in VERIFIERS.values():
        verifier = rule.build()
        assert (verifier.exactness == "lossy") == rule.lossy
        assert verifier.sampled == bool({"iid", "scored"} & set(rule.drafts))


def test_pairs_that_do_not_fit_are_refused() -> None:
    """Guards methods against rules that would waste what their drafts say, or be wrong."""
    with pytest.raises(UnsupportedError, match="chosen, which the verifier 'k-seq' does not support"):
        build_verifier("mix", "k-seq")
    with pytest.raises(UnsupportedError, match="with replacement, which the verifier 'sample-then-follow' does"):
        build_verifier("specinfer", "sample-then-follow")
    with pytest.raises(UnsupportedError, match="without replacement, which the verifier 'k-seq'"):
        build_verifier("mcsd", "k-seq")
    with pytest.raises(UnsupportedError, match="contrastive decoding"):
        build_verifier("contrastive", "speculative-sampling")


def test_settings_by_their_earlier_names() -> None:
    """Guards command lines of earlier versions: blockwise had `least`."""
    assert VERIFIERS["blockwise"].build("least=2").minimum == 2  # type: ignore[attr-defined]
