"""The list of methods."""

from __future__ import annotations

import json

import pytest

from speculant.cli.main import main
from speculant.registry import METHODS, VERIFIERS


def test_the_table_is_aligned_and_holds_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    """What the registry knows is what users see, in columns that line up and fit a wide terminal."""
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    heads = [line for line in lines[1:] if not line.startswith(" ")]
    texts = [line.strip() for line in lines[1:] if line.startswith(" ")]
    for column in ("family", "exactness", "source"):
        place = lines[0].index(column)
        assert all(line[place - 1] == " " and line[place] != " " for line in heads)
    for method, head in zip(METHODS.values(), heads, strict=True):
        assert head.startswith(f"{method.name} ")
        assert head.endswith(method.source)
    expected = [(each.summary, each.requires and f"requires {each.requires}") for each in METHODS.values()]
    assert texts == [text for both in expected for text in both if text]
    assert max(map(len, lines)) <= 120


def test_one_method_with_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """What can be set, its default and what it means; a method without settings says so."""
    assert main(["methods", "lookup"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("lookup: copies what followed")
    assert "  copied=10" in out
    assert "      tokens copied from each match." in out
    assert main(["methods", "none"]) == 0
    assert "It has no settings." in capsys.readouterr().out
    assert main(["methods", "sad", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {setting["name"]: setting["default"] for setting in found["settings"]} == {"shortest": 1, "drafted": None}


def test_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read the registry too."""
    assert main(["methods", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == list(METHODS)
    keys = {"name", "family", "exactness", "summary", "source", "requires", "memory", "verifier", "verifiers"}
    assert set(listed[0]) == keys
    assert {entry["name"]: entry["requires"] for entry in listed}["draft-model"] == "a draft model"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mix", "can be saved: --memory FILE"),
        ("aded-paper", "starts from a corpus: --memory FILE, never written"),
        ("lookup", "not kept between runs"),
    ],
)
def test_what_becomes_of_a_memory(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The page of a method says whether a file of --memory is written, or only read."""
    assert main(["methods", name]) == 0
    assert f"memory      {said}\n" in capsys.readouterr().out


def test_requirements_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The page of a method says what it needs beside the target, or that it needs nothing."""
    assert main(["methods", "draft-model"]) == 0
    assert "requires    a draft model\n" in capsys.readouterr().out
    assert main(["methods", "lookup"]) == 0
    assert "requires    nothing but the target\n" in capsys.readouterr().out


def test_acceptance_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Every rule is listed with the methods whose default it is, and a method's page says which it may use."""
    assert main(["methods"]) == 0
    listed = " ".join(capsys.readouterr().out.partition("acceptance rules")[2].split())
    assert all(f"{rule.name} " in listed and rule.summary in listed for rule in VERIFIERS.values())
    assert "default of draft-model" in listed
    assert "typical (lossy, needs --lossy)" in listed
    assert main(["methods", "mix"]) == 0
    assert "verifier    sample-then-follow (default), greedy, speculative-sampling" in capsys.readouterr().out
