"""The page "Write a drafter": its code runs as it stands there, and what breaks the contract is refused by name."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import tiny_model
from speculant import DraftTree, Speculator
from speculant.cli.main import main
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import Int32

PAGE = Path(__file__).parents[1] / "docs" / "write-a-drafter.md"
PROMPT = [5, 9, 14, 3, 5, 9, 14, 3, 5, 9]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write the page's first block of code as my_drafter.py into the current folder; return its other Python block."""
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "my_drafter.py").write_text(first, "utf-8")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield second
    sys.path[:] = before
    sys.modules.pop("my_drafter", None)


def test_the_pages_code_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the page: what it says to type works, and the texts are those of plain decoding."""
    sys.path.insert(0, os.getcwd())
    names: dict[str, Any] = {}
    exec(page, names)
    speculator = names["speculator"]
    assert speculator.method == "my_drafter:MyDrafter"
    assert "my_drafter:MyDrafter" in capsys.readouterr().out
    plain = Speculator.from_transformers(speculator.model, speculator.tokenizer, method="none")
    fixed = Speculator.from_transformers(speculator.model, speculator.tokenizer, drafter=names["MyDrafter"](), nodes=8)
    options = {"max_new_tokens": 40, "temperature": 0}
    for _ in range(2):
        result = fixed.generate("Once upon a time", **options)
        assert result.ids == plain.generate("Once upon a time", **options).ids
    assert result.stats.accepted > 20


@pytest.mark.parametrize(
    "argv",
    [
        ["generate", "Once upon a time", "--max-new-tokens", "8", "--compare"],
        ["check", "--max-new-tokens", "8", "--prompts", "prompts.txt"],
        ["replay", "trace.jsonl", "--jobs", "1"],
        pytest.param(["replay", "trace.jsonl", "--jobs", "2", "--method", "lookup"], marks=pytest.mark.slow),
    ],
)
def test_commands_take_it_by_its_place(page: str, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the command line: a module of the current folder is found, and reports bear the drafter's own name."""
    Path("prompts.txt").write_text("Once upon a time\n", "utf-8")
    row = '{"prompt_ids": [1, 5, 6, 5], "output_ids": [6, 5, 6, 5, 6]}\n'
    Path("trace.jsonl").write_text(row * 2, "utf-8")
    assert main([*argv, "--drafter", "my_drafter:MyDrafter"]) == 0
    found = capsys.readouterr()
    assert "my_drafter:MyDrafter" in found.out + found.err


def test_bench_times_it(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards `bench`: it is a system like the methods."""
    Path("trace.jsonl").write_text('{"prompt_ids": [1, 5, 6, 5], "output_ids": [6, 5, 6, 5, 6]}\n', "utf-8")
    argv = ["bench", "--forced", "trace.jsonl", "--methods", "none", "--out", "out"]
    assert main([*argv, "--drafter", "my_drafter:MyDrafter"]) == 0
    assert "my_drafter:MyDrafter" in Path("out/result.json").read_text("utf-8")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("my_drafter", "takes MODULE:CLASS"),
        ("nowhere_at_all:MyDrafter", "no module 'nowhere_at_all'"),
        ("my_drafter:Other", "has no Other"),
        ("my_drafter:MySession", "not a drafter: it has no needs and no open"),
        ("my_drafter:NO_OUTPUTS", "not a class"),
    ],
)
def test_places_that_name_no_drafter(page: str, place: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards misspelled places: they are refused before a model is loaded, with the way out."""
    assert main(["generate", "a", "--drafter", place]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert main(["generate", "a", "--drafter", "my_drafter:MyDrafter", "--method", "mix"]) == 2
    assert "leave one of them out" in " ".join(capsys.readouterr().err.split())


class Wrong(Drafter):
    """Proposes what it is given."""

    needs_: Any = NO_OUTPUTS

    def __init__(self, draft: Any) -> None:
        self.draft = draft

    @property
    def needs(self) -> RequestedOutputs:
        return self.needs_  # type: ignore[no-any-return]

    def open(self, start: SessionRequest) -> Session:
        return WrongSession(self.draft)


class WrongSession(Session):
    """A session of it."""

    def __init__(self, draft: Any) -> None:
        self.draft = draft

    def propose(self, budget: Budget) -> DraftTree:
        return self.draft() if callable(self.draft) else self.draft  # type: ignore[no-any-return]

    def observe(self, verified: Verified) -> None:
        pass

    def close(self) -> None:
        pass


def ints(*values: int) -> Int32:
    """Return an Int32 array."""
    return np.array(values, np.int32)


ONES = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ([[5, 6]], "proposed a list; return a DraftTree"),
        (lambda: DraftTree([5, 6], [-1, 0], [1.0, 1.0]), "numpy arrays; DraftTree.from_paths"),  # type: ignore[arg-type]
        (DraftTree(np.array([5.0, 6.0]), ints(-1, 0), ONES), "tokens of a draft must be an Int32 array"),  # type: ignore[arg-type]
        (lambda: DraftTree(ints(5, 6), ints(1, -1), ONES), "every parent must come before its children"),
        (lambda: DraftTree(ints(5, 6), ints(-1, 0), ONES * 2), "cannot exceed its parent's, or 1"),
        (DraftTree.from_paths([[5, 99]]), "token 99; the model has 61"),
        (DraftTree.from_paths([[-3]]), "token -3"),
        (DraftTree.from_paths([range(20)]), "20 nodes, but its budget allows 8"),
    ],
)
def test_drafts_that_break_the_contract_are_refused(draft: Any, said: str) -> None:
    """Guards what users hand in: the error names the cause, and no text comes out."""
    speculator = Speculator.from_transformers(tiny_model("llama"), drafter=Wrong(draft), nodes=8)
    with pytest.raises((UsageError, ValueError), match=re.escape(said)):
        speculator.generate(PROMPT, max_new_tokens=12, temperature=0)


def test_drafts_beyond_the_text_or_that_branch_are_refused() -> None:
    """Guards budgets: levels beyond the text's end, and trees where chains are verified."""
    deep = Wrong(DraftTree.from_paths([range(6)]))
    with pytest.raises(UsageError, match="6 levels, but its budget allows"):
        Speculator.from_transformers(tiny_model("llama"), drafter=deep, nodes=8).generate(PROMPT, max_new_tokens=3)
    wide = Wrong(DraftTree.from_paths([[5], [6]]))
    with pytest.raises(UsageError, match="branches, but its budget allows only a chain"):
        Speculator.from_transformers(tiny_model("bloom"), drafter=wide, nodes=8).generate(PROMPT, max_new_tokens=5)


def test_what_is_no_drafter_is_refused() -> None:
    """Guards the constructor: classes, strangers, wrong needs, and options that would be ignored."""
    model = tiny_model("llama")

    def refused(said: str, **given: Any) -> None:
        with pytest.raises(UsageError, match=said):
            Speculator.from_transformers(model, **given)

    refused(r"pass an object, drafter=Wrong\(\)", drafter=Wrong)
    refused("int is not a drafter: it has no needs and no open and no propose", drafter=3)
    wrong = Wrong(DraftTree.empty())
    wrong.needs_ = 5
    refused("needs must be a property that returns", drafter=wrong)
    refused("method and settings would be ignored", drafter=Wrong(None), method="mix", settings={"depth": 3})

    class Opens(Wrong):
        """Opens what is no session."""

        def open(self, start: SessionRequest) -> Session:
            return object()  # type: ignore[return-value]

    with pytest.raises(UsageError, match="returned a object without propose, propose_after, observe, forecast, close"):
        Speculator.from_transformers(model, drafter=Opens(None)).generate(PROMPT, max_new_tokens=3)
