"""Settings of a method from the command line."""

from __future__ import annotations

import pytest

from speculant.cli.main import main
from speculant.cli.settings import build_settings, build_settings_by_method, settings_json
from speculant.core.errors import UsageError
from speculant.drafters.copying.lookup import LookupSettings
from speculant.registry import METHODS


def test_settings_are_built() -> None:
    """Values have the dataclass's types; the rest stays as it is."""
    built = build_settings(METHODS["lookup"], ["copied=20", " branches = 2"])
    assert built == LookupSettings(copied=20, branches=2)
    assert build_settings(METHODS["lookup"], []) is None
    assert build_settings(METHODS["logitspec"], ["lengths=((4, 2),)"]).lengths == ((4, 2),)
    assert build_settings(METHODS["mix"], ["row-memory=3"]).row_memory == 3.0
    assert build_settings(METHODS["sad"], ["drafted=none"]).drafted is None


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("lookup", ["copid=20"], "no setting 'copid'. Did you mean 'copied'? It has longest (3), shortest (1)"),
        ("lookup", ["copied=many"], "the setting 'copied' of the method 'lookup' must be a whole number, not 'many'"),
        ("lookup", ["copied=2.5"], "must be a whole number"),
        ("mix", ["cut=nan"], "must be a number"),
        ("sad", ["drafted=x"], "must be a whole number or none"),
        ("logitspec", ["lengths=(1, 2)"], "a tuple such as its default"),
        ("lookup", ["copied"], "has the form NAME=VALUE, not 'copied'"),
        ("lookup", ["copied=1", "copied=2"], "given twice"),
        ("lookup", ["copied=0"], "1 or more"),
        ("none", ["x=1"], "has no settings"),
    ],
)
def test_what_cannot_be_set(method: str, given: list[str], message: str) -> None:
    """Unknown names are suggested for, values checked before a model is loaded."""
    with pytest.raises(UsageError) as caught:
        build_settings(METHODS[method], given)
    assert message in str(caught.value)


def test_settings_find_their_methods() -> None:
    """With several methods a setting goes to the one that has it, or to the one that is named."""
    methods = ["none", "mix", "lookup", "aded", "hf:generate"]
    built = build_settings_by_method(methods, ["copied=20", "mix.row-memory=3", "aded.cut = 0.1", "lookup.branches=2"])
    assert built["lookup"] == LookupSettings(copied=20, branches=2)
    assert (built["mix"].row_memory, built["aded"].cut) == (3.0, 0.1)
    assert set(built) == {"mix", "lookup", "aded"}
    assert build_settings_by_method(methods, []) == {}
    assert settings_json({"lookup": LookupSettings(copied=20)})["lookup"]["copied"] == 20


@pytest.mark.parametrize(
    ("methods", "given", "message"),
    [
        (["mix", "aded"], "cut=0.1", "--set cut fits mix and aded. Say which one: --set mix.cut=0.1."),
        (["mix", "aded"], "copied=1", "none of the methods mix, aded has a setting 'copied'"),
        (["none", "lookup"], "copid=1", "Did you mean 'copied'"),
        (["mix", "aded"], "mix.cutt=1", "the method 'mix' has no setting 'cutt'. Did you mean 'cut'?"),
        (["mix"], "lookup.copied=1", "'lookup' is none of the methods mix"),
        (["mix"], "hf:generate.x=1", "'hf:generate' is none of"),
        (["none"], "x=1", "none of the methods none has a setting 'x'"),
        (["mix", "lookup"], "copied", "has the form NAME=VALUE"),
    ],
)
def test_settings_that_find_no_method(methods: list[str], given: str, message: str) -> None:
    """Where a setting fits none or several, the message says how to name it."""
    with pytest.raises(UsageError) as caught:
        build_settings_by_method(methods, [given])
    assert message in str(caught.value)


def test_the_command_line_passes_them_on(capsys: pytest.CaptureFixture[str]) -> None:
    """From --set to the drafter, whose error is a line as well."""
    assert main(["generate", "Tom", "--method", "lookup", "--set", "copied=x"]) == 2
    assert "the setting 'copied' of the method 'lookup' must be a whole number" in capsys.readouterr().err
    argv = ["generate", "one two one two one two", "--max-new-tokens", "8", "--nodes", "8", "--method", "lookup"]
    assert main([*argv, "--set", "copied=1"]) == 0
    assert "lookup" in capsys.readouterr().err
