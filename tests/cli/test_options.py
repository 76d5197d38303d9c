"""The options that commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from speculant.cli.generate import add_parser
from speculant.cli.main import main
from speculant.cli.options import build_speculator, text_options


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["generate", "x", *argv])


@pytest.mark.parametrize(
    "argv",
    [
        ["--nodes", "-1"],
        ["--nodes", "many"],
        ["--max-new-tokens", "0"],
        ["--memory-limit", "0"],
        ["--seed", str(2**64)],
        ["--top-p", "0"],
        ["--top-p", "5"],
        ["--top-p", "nan"],
        ["--temperature", "warm"],
    ],
)
def test_impossible_numbers_do_not_parse(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """They are refused with the option's name, before any model is loaded."""
    with pytest.raises(SystemExit) as ended:
        parsed(*argv)
    assert ended.value.code == 2
    assert f"argument {argv[0]}" in capsys.readouterr().err


def test_the_text_options_are_those_of_stream() -> None:
    """Nothing is lost between the command line and the library."""
    args = parsed("--temperature", "0.5", "--top-k", "3", "--seed", "1", "--stop", "a", "--stop", "b")
    assert text_options(args) == {
        "max_new_tokens": 256,
        "temperature": 0.5,
        "top_p": None,
        "top_k": 3,
        "seed": 1,
        "stop": ["a", "b"],
    }


def test_the_speculator_is_as_described(tiny_folder: Path) -> None:
    """Model, dtype, attention, method and nodes all arrive."""
    speculator = build_speculator(
        parsed(
            "--model", str(tiny_folder), "--dtype", "bfloat16", "--attn", "eager", "--nodes", "5", "--method", "none"
        )
    )
    assert str(speculator.model.dtype) == "torch.bfloat16"
    assert speculator.abilities.additive
    assert (speculator.nodes, speculator.method) == (5, "none")


def test_a_misspelled_method_fails_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loading may take minutes."""
    monkeypatch.setattr("speculant.api.speculator.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    assert main(["generate", "x", "--method", "adde"]) == 2
    assert "Did you mean 'aded'?" in capsys.readouterr().err
