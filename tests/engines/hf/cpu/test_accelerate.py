"""Accelerated passes: which models and layers they serve, and that the model is never changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from models import PHI3, tiny_model
from speculant import Speculator
from speculant.engines.hf.cpu.accelerate import CpuAcceleration, prepare_model
from speculant.engines.hf.cpu.kernel_table import MAX_ROWS

pytestmark = pytest.mark.usefixtures("compiled")
IDS = torch.tensor([[5, 9, 14, 3, 8, 5, 9, 14, 3, 8, 5, 9]])


def fast_speculator(model: Any, **options: Any) -> Speculator:
    speculator = Speculator.from_transformers(model, fast=True, **options)
    assert speculator.fast.linears
    return speculator


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outs", "k"), [(1, 1), (3, 7), (8, 16), (61, 32), (130, 700), (64, 1931), (33, 1031)])
def test_products_are_right_and_independent_of_the_rows(outs: int, k: int, dtype: torch.dtype) -> None:
    """Guards every edge of the tiles; and that a row's result is the same beside any others; of floats from two on."""
    torch.manual_seed(outs)
    layer = nn.Linear(k, outs, dtype=dtype)
    x = torch.randn(1, 64, k, dtype=dtype)
    exact = F.linear(x.double(), layer.weight.double(), layer.bias.double())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    layer = accelerated(layer)
    with torch.no_grad():
        whole = layer(x)
        assert whole.dtype == dtype
        torch.testing.assert_close(whole.double(), exact, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(layer(x[:, :1]), whole[:, :1], atol=tolerance, rtol=tolerance)
        for rows in (1, 2, 5, 6, 7, 12, 13, 17, 18, 19, 25, 33)[dtype == torch.float32 :]:
            assert torch.equal(layer(x[:, :rows]), whole[:, :rows])


def accelerated(layer: nn.Linear) -> Any:
    """Return what an accelerated pass runs instead of a layer."""
    model = holding(layer)
    prepared = prepare_model(model, True)
    assert prepared.shadows is not None
    return prepared.shadows.of(model)[0]


def holding(layer: nn.Linear) -> Any:
    """Return a module that looks like a model with one layer."""
    model = nn.Sequential(layer)
    model.device = torch.device("cpu")  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(
    "name",
    [
        *("llama", "gemma3", "mixtral", pytest.param("phi3", marks=PHI3), "bloom"),
        # Their texts in prepared batches are compared in `test_batch_pass`.
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3", "mistral", "gpt2", "gpt_neox")),
    ],
)
def test_greedy_text_is_that_of_plain_generate(name: str) -> None:
    """Guards losslessness on every architecture; past the bound where the cache grows, of layers and of windows."""
    model = tiny_model(name)
    options = {"max_new_tokens": 140 if name in ("llama", "gemma3") else 40, "eos_token_id": None}
    expected = model.generate(IDS, do_sample=False, pad_token_id=0, **options)[0, IDS.shape[1] :].tolist()
    assert fast_speculator(model, nodes=20).generate(IDS, temperature=0, **options).ids == expected


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3", "bloom"))]
)
def test_sampled_text_is_that_of_plain_decoding(name: str) -> None:
    """Guards sampling: the seed gives the text that the same model gives without drafts, prepared or not."""
    model = tiny_model(name)
    options: dict[str, Any] = {"max_new_tokens": 60, "temperature": 0.7, "top_p": 0.9, "seed": 5, "eos_token_id": None}
    drafted = fast_speculator(model).generate(IDS, **options).ids
    assert drafted == fast_speculator(model, method="none").generate(IDS, **options).ids
    assert drafted == Speculator.from_transformers(model, fast=False).generate(IDS, **options).ids


def test_bfloat16_text_is_that_of_plain_decoding() -> None:
    """Guards bfloat16 end to end: where the code does whole layers, drafts change nothing to the last bit."""
    model = tiny_model("qwen2").to(torch.bfloat16)
    drafted = fast_speculator(model, nodes=20).generate(IDS, max_new_tokens=140, temperature=0, eos_token_id=None)
    plain = fast_speculator(model, method="none").generate(IDS, max_new_tokens=140, temperature=0, eos_token_id=None)
    assert drafted.ids == plain.ids


def test_bfloat16_texts_of_a_batch_are_those_of_requests_alone() -> None:
    """Guards that no row of a batch depends, to the last bit, on the others beside it."""
    model = tiny_model("qwen2").to(torch.bfloat16)
    options: dict[str, Any] = {"max_new_tokens": 60, "temperature": 0.8, "eos_token_id": None}
    prompts = [IDS[0, :length].tolist() for length in (12, 1, 7, 3)]
    plain = fast_speculator(model, method="none")
    expected = [plain.generate(prompt, seed=3 + i, **options).ids for i, prompt in enumerate(prompts)]
    found = fast_speculator(model, nodes=8).generate_batch(prompts, seed=3, **options)
    assert [each.ids for each in found] == expected


@pytest.mark.parametrize("able", [True, False])
def test_many_rows_of_bfloat16_are_multiplied_as_floats(able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards prompts where the processor has no bfloat16, in slabs of the weights; elsewhere torch's own product."""
    monkeypatch.setattr(
        "speculant.engines.hf.cpu.products.processor", lambda: "flags: amx_bf16" if able else "flags: avx2"
    )
    monkeypatch.setattr("speculant.engines.hf.cpu.products.SLAB", 32 * 20)
    layer, x = nn.Linear(32, 61, dtype=torch.bfloat16), torch.randn(2, 60, 32, dtype=torch.bfloat16)
    with torch.no_grad():
        torchs = layer(x)
        rounded_once = F.linear(x.float(), layer.weight.float(), layer.bias.float()).bfloat16()
        assert torch.equal(accelerated(layer)(x), torchs if able else rounded_once)


@pytest.mark.parametrize("case", ["class", "patched", "patched before"])
def test_a_changed_layer_is_left_alone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards linear layers that have got another class or forward, before the model is prepared or after it."""
    layer, x = nn.Linear(32, 32, dtype=torch.bfloat16), torch.randn(1, 9, 32, dtype=torch.bfloat16)
    if case == "patched before":
        monkeypatch.setattr(nn.Linear, "forward", lambda _, x: x)
        assert not prepare_model(holding(layer), True).linears
        return
    model = holding(layer)
    prepared = prepare_model(model, True)
    assert prepared.shadows is not None
    shadow = prepared.shadows.of(model)
    shadow(x)
    if case == "class":
        layer.__class__ = type("Steered", (nn.Linear,), {"forward": lambda _, x: x})
    else:
        monkeypatch.setattr(nn.Linear, "forward", lambda _, x: x)
    assert shadow(x) is x
    assert prepared.model_for(model, 9) is model


@pytest.mark.parametrize("rows", [1, 9, 200])
@pytest.mark.parametrize("case", ["bias", "weight"])
def test_what_torch_refuses_is_refused(case: str, rows: int) -> None:
    """Guards errors: a bias of another type and a weight that is gone are no layer."""
    layer = nn.Linear(32, 61, dtype=torch.bfloat16)
    shadow = accelerated(layer)
    if case == "bias":
        layer.bias = nn.Parameter(torch.zeros(61))
    else:
        layer.register_parameter("weight", None)
    with torch.no_grad(), pytest.raises((RuntimeError, TypeError)):
        shadow(torch.randn(1, rows, 32, dtype=torch.bfloat16))


def test_tied_embeddings_stay_tied() -> None:
    """Guards the head that shares its weight with the embedding: nothing is copied."""
    model = tiny_model("llama", tie_word_embeddings=True)
    expected = model.generate(IDS, max_new_tokens=30, do_sample=False)[0, IDS.shape[1] :].tolist()
    assert fast_speculator(model).generate(IDS, max_new_tokens=30, temperature=0).ids == expected
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_plain_decoding_makes_no_detour() -> None:
    """Guards the speed of passes over one row, for which the products of single layers gain nothing."""
    model = tiny_model("gemma3")
    prepared = prepare_model(model, True)
    assert prepared.model_for(model, 1) is model
    assert prepared.model_for(model, 2) is not model


def test_another_model_is_run_as_it_is() -> None:
    """Guards a preparation that is used with a model it was not made for."""
    model, other = tiny_model("llama"), tiny_model("llama")
    assert prepare_model(model, True).model_for(other, 9) is other


def test_changed_weights_count_at_once() -> None:
    """Guards training between requests: no copy of the weights goes stale."""
    model = tiny_model("llama")
    speculator = fast_speculator(model)
    speculator.generate(IDS, max_new_tokens=5, temperature=0)
    with torch.no_grad():
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.flip(0))
        model.model.layers[0].mlp.up_proj.weight.mul_(-1)
    expected = model.generate(IDS, max_new_tokens=30, do_sample=False)[0, IDS.shape[1] :].tolist()
    assert speculator.generate(IDS, max_new_tokens=30, temperature=0).ids == expected


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_an_adapter_is_part_of_a_fast_pass() -> None:
    """Guards PEFT: its layers stand around ordinary ones."""
    peft = pytest.importorskip("peft")
    model = tiny_model("llama")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    expected = adapted.generate(input_ids=IDS, max_new_tokens=20, do_sample=False)[0, IDS.shape[1] :].tolist()
    assert fast_speculator(adapted).generate(IDS, max_new_tokens=20, temperature=0).ids == expected


def test_small_models_are_left_alone_unless_asked() -> None:
    """Guards the default: where it does not pay, nothing is compiled, without a note."""
    left = prepare_model(tiny_model("llama"), None)
    assert not left.linears
    assert not left.notes
    assert prepare_model(tiny_model("llama"), True).linears
    assert not prepare_model(tiny_model("llama"), False).linears


def test_only_prepared_models_limit_passes_over_prompts() -> None:
    """Guards prompts on other devices, and of models that run PyTorch's products: one pass, as transformers does."""
    model = tiny_model("llama")
    assert prepare_model(model, True).prompt_rows == MAX_ROWS
    assert prepare_model(model, False).prompt_rows is None
    assert CpuAcceleration().prompt_rows is None


def test_a_missing_compiler_is_noted_once_and_decoding_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Guards the fallback: the plain passes, and one note with the reason."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    model = tiny_model("llama")
    result = Speculator.from_transformers(model, fast=True).generate(IDS, max_new_tokens=8, temperature=0)
    assert result.ids == model.generate(IDS, max_new_tokens=8, do_sample=False)[0, IDS.shape[1] :].tolist()
    assert [note for note in result.stats.notes if "compiler" in note and "g++" in note] == result.stats.notes


def test_a_failing_compiler_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Guards the message of a compiler that does not work, and that nothing half built is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    fast = prepare_model(tiny_model("llama"), True)
    assert not fast.linears
    assert "false failed" in fast.notes[0]
    assert not list(tmp_path.iterdir())


def test_other_layers_are_left_alone() -> None:
    """Guards what is not an ordinary linear layer: subclasses, offloaded ones, other dtypes, models without any."""

    class Special(nn.Linear):
        """A layer with a forward of its own."""

    hooked = nn.Linear(4, 4)
    hooked.forward = lambda x: x  # type: ignore[method-assign]
    for layer in (Special(4, 4), hooked, nn.Linear(4, 4, dtype=torch.float64)):
        fast = prepare_model(holding(layer), True)
        assert not fast.linears
        assert "no linear layer" in fast.notes[0]


def test_only_ordinary_calls_are_accelerated() -> None:
    """Guards the edges: a weight of another width, autocast and a forward of the user's own are left to torch."""
    layer = nn.Linear(32, 16)
    shadow, x = accelerated(layer), torch.randn(1, 8, 32)
    with torch.no_grad():
        with pytest.raises(RuntimeError):
            shadow(x[..., :31])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert shadow(x).dtype == torch.bfloat16
    layer.forward = lambda input: input  # type: ignore[method-assign]  # noqa: A006
    assert shadow(x) is x


def test_small_layers_are_computed_as_a_whole_by_default() -> None:
    """Guards small models: one call replaces some twenty, though none of their matrices is worth a kernel alone."""
    model = tiny_model("llama", hidden_size=64, intermediate_size=128)
    assert len(prepare_model(model, None).layers) == model.config.num_hidden_layers
    assert not prepare_model(tiny_model("llama"), None).linears
