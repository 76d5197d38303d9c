"""`--add-model`, `--lora` and `--alias` of `speculant serve`: what is refused at once, and what is loaded later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from speculant import Speculator
from speculant.api.loading import bundled_draft_model, load_model
from speculant.cli.further_models import drafting_of, find_further_models
from speculant.cli.main import main
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions
from speculant.options.serving import ServingOptions


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (["--alias", "bundled"], 2, "name already"),
        (["--alias", "a", "--lora", "a=folder"], 2, "two models would be called 'a'"),
        (["--add-model", "bundled=bundled"], 2, "two models would be called 'bundled'"),
        (["--add-model", "no-place"], 2, "NAME=PATH|ID"),
        (["--models-memory", "1GB"], 2, "one model is served"),
        (["--add-model", "a=/no/such"], 1, "there is no model at /no/such"),
        (["--lora", "a=/no/such"], 1, "there is no adapter at /no/such"),
        (["--lora", "a=/no/such", "--quantize", "int8"], 2, "needs weights of floats"),
        (["--add-model", "a=bundled", "--share", "redis://localhost"], 2, "--share is for a server of one model"),
    ],
)
def test_what_is_refused_before_a_model_is_loaded(
    options: list[str], code: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards names and places: the reason is told before the server starts."""
    pytest.importorskip("peft")
    assert main(["serve", "--port", "0", *options]) == code
    assert reason in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_how_further_models_draft() -> None:
    """Guards what was made for the first model: heads, draft models and bases of its tokenizer are not taken over."""
    given = DraftingOptions(method="specinfer", draft_model=("small",), base=("bundled",), nodes=7)
    other = drafting_of(given, adapter=False)
    assert (other.method, other.draft_model, other.base, other.nodes) == (None, None, (), 7)
    assert drafting_of(given, adapter=True).base == ("bundled",)
    assert drafting_of(DraftingOptions(method="suffix"), adapter=False).method == "suffix"


def test_loading(tmp_path: Path) -> None:
    """Guards what is loaded: another model, and an adapter's own text, which is that of PEFT's passes."""
    peft = pytest.importorskip("peft")
    base, tokenizer = load_model()
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    tuned: Any = peft.get_peft_model(base, config)
    tuned.save_pretrained(tmp_path)
    serving = ServingOptions(loras=(f"tuned={tmp_path}",), add_models=(f"small={bundled_draft_model()}",))
    options = ModelOptions(fast=False)
    small, adapted = find_further_models(options, DraftingOptions(method="mix"), serving, name="bundled")
    assert (small.name, small.parent, adapted.name, adapted.parent) == ("small", None, "tuned", "bundled")
    assert small.size < adapted.size == sum(each.nbytes for each in load_model()[0].parameters())
    found, _ = adapted.load(1)
    ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
    wanted = tuned.eval().generate(ids, do_sample=False, max_new_tokens=16)[0, ids.shape[1] :].tolist()
    assert list(found.generate("Once upon a time", temperature=0, max_new_tokens=16).ids) == wanted
    own, _ = small.load(1)
    assert isinstance(own, Speculator)
    assert own.model.num_parameters() < found.model.num_parameters()
