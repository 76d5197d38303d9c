"""The options that commands share, and how a model is loaded by them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from speculant.cli.loading import load_speculator, model_source, model_title
from speculant.cli.loading_checks import check_device
from speculant.cli.main import main
from speculant.cli.threads import PARAMETERS_PER_THREAD, set_threads, threads_for
from speculant.core.errors import UsageError
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions
from speculant.options.sampling import SamplingOptions
from speculant.verifiers.speculative_sampling import SpeculativeSampling


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nodes", "-1"], "--nodes must be 0 or more, not -1."),
        (["--nodes", "many"], "--nodes must be a whole number of 0 or more, or auto, not 'many'."),
        (["--nodes", "100000"], "--nodes must be at most 1024, not 100000: a pass"),
        (["--max-new-tokens", "0"], "--max-new-tokens must be 1 or more, not 0."),
        (["--memory-limit", "0"], "--memory-limit must be at least 1MiB, not 0; a number without a unit is bytes"),
        (["--seed", str(2**64)], "--seed must be at most 9223372036854775807, not 18446744073709551616."),
        (["--seed", "x"], "--seed must be a whole number of 0 or more, not 'x'."),
        (["--top-p", "0"], "--top-p must be above 0 and at most 1, not 0."),
        (["--top-p", "5"], "--top-p must be"),
        (["--top-p", "nan"], "--top-p must be"),
        (["--temperature", "warm"], "--temperature must be a number, not 'warm'."),
        (["--threads", "0"], "--threads must be 1 or more"),
        (["--memory", ""], "--memory is empty"),
    ],
)
def test_impossible_values_do_not_parse(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They are refused with the option's name and what it takes, before any model is loaded."""
    assert main(["generate", "x", *argv]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_the_text_options_are_those_of_stream() -> None:
    """Nothing is lost between the command line and the library."""
    sampling = SamplingOptions(temperature=0.5, top_k=3, seed=1, stop=("a", "b"))
    assert sampling.keywords() == {
        "max_new_tokens": 256,
        "temperature": 0.5,
        "top_p": None,
        "top_k": 3,
        "seed": 1,
        "stop": ["a", "b"],
    }
    assert SamplingOptions().keywords()["stop"] is None


def test_options_of_sampling_need_sampling() -> None:
    """Greedy decoding would ignore them."""
    with pytest.raises(UsageError, match="--top-k and --seed would be ignored"):
        SamplingOptions(top_k=3, seed=0)


def test_the_speculator_is_as_described(tiny_folder: Path) -> None:
    """Model, dtype, attention, method, settings and nodes all arrive."""
    loading = ModelOptions(model=str(tiny_folder), dtype="bfloat16", attention="eager", threads=1)
    loaded = load_speculator(loading, DraftingOptions(method="lookup", settings=("copied=3",), nodes=5))
    speculator = loaded.speculator
    assert str(speculator.model.dtype) == "torch.bfloat16"
    assert speculator.engine.capabilities.additive
    assert (speculator.nodes, speculator.method) == (5, "lookup")
    assert speculator.drafter.settings.copied == 3  # type: ignore[attr-defined]
    assert loaded.threads == "1, as asked"


def test_the_draft_model_and_the_acceptance_rule_arrive(tiny_folder: Path) -> None:
    """The draft model is loaded like the target, and the rule is the one that is named."""
    loading = ModelOptions(model=str(tiny_folder), dtype="float32", threads=1)
    loaded = load_speculator(loading, DraftingOptions(method="draft-model", draft_model=(str(tiny_folder),), nodes=3))
    assert isinstance(loaded.speculator.verifier, SpeculativeSampling)
    result = loaded.speculator.generate("Tom", max_new_tokens=6, temperature=0)
    assert result.stats.accepted > 0
    loaded = load_speculator(loading, DraftingOptions(method="lookup", verifier="speculative-sampling"))
    assert isinstance(loaded.speculator.verifier, SpeculativeSampling)
    assert loaded.verifier == "speculative-sampling"


@pytest.mark.parametrize("command", [["generate", "x"], ["chat"], ["check"]])
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--verifier", "sample-then-folow"], "Did you mean 'sample-then-follow'?"),
        (["--method", "specinfer", "--draft-model", "o/d", "--verifier", "sample-then-follow"], "drawn with"),
        (["--method", "lookup", "--draft-model", "o/d"], "the method 'lookup' takes no draft model"),
        (
            ["--method", "draft-model", "--draft-model", "o/d", "--draft-model", "o/e"],
            "takes one draft model; 'specinfer'",
        ),
    ],
)
def test_rules_and_draft_models_are_checked_first(
    command: list[str],
    argv: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A combination that cannot work is refused before any model is loaded."""
    monkeypatch.setattr("speculant.api.loading.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    assert main([*command, *argv]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["generate", "x", "--model", "an/other"], ["chat", "--model", "an/other"], ["check", "an/other"]]
)
def test_only_the_bundled_model_has_a_draft_model(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A method that needs a draft model is refused for any other target before it is loaded."""
    monkeypatch.setattr("speculant.api.loading.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    assert main([*argv, "--method", "draft-model"]) != 0
    assert "needs a draft model: pass draft_model=, or --draft-model" in capsys.readouterr().err


def test_a_misspelled_method_fails_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loading may take minutes."""
    monkeypatch.setattr("speculant.api.loading.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    assert main(["generate", "x", "--method", "adde"]) == 2
    assert "Did you mean 'aded'?" in capsys.readouterr().err


def test_the_bundled_model_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a folder is called so; titles hold no path."""
    monkeypatch.chdir(tmp_path)
    assert model_source("bundled") is None
    assert model_title("bundled") == model_title(None) == "the bundled story model"
    (tmp_path / "bundled").mkdir()
    assert model_source("bundled") == "bundled"
    assert model_title(str(tmp_path / "bundled")) == "bundled"
    assert model_title("org/model") == "org/model"


def test_devices_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelled device is no missing model, and a missing GPU is named as the cause."""
    for device in (None, "cpu", "auto"):
        check_device(device)
    with pytest.raises(UsageError, match="no device 'foo'"):
        check_device("foo")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"--device cuda: this PyTorch .* Use --device cpu"):
        check_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="has 1 CUDA devices"):
        check_device("cuda:1")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no MPS"):
        check_device("mps")


def test_threads_fit_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for a tiny model, all for a large one; the environment and --threads decide if they say so."""
    assert [threads_for(n * PARAMETERS_PER_THREAD // 2, 8) for n in (1, 5, 100)] == [1, 2, 8]
    model = torch.nn.Linear(2, 2)
    model.device = torch.device("cpu")  # type: ignore[assignment]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert set_threads(model, None).endswith("by OMP_NUM_THREADS")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert set_threads(model, None).startswith("1 of ")
    assert torch.get_num_threads() == 1
    assert set_threads(model, 2) == "2, as asked"
    assert torch.get_num_threads() == 2
