"""Models that were changed after loading, before or after a speculator was made: their text is that of `generate`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import (
    IA3Config,
    LoraConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    TaskType,
    get_peft_model,
)
from torch import Tensor, nn

from caches import use_empty_cache
from models import deep_model, tiny_model
from pairwise import in_turn
from passes import IDS, plain_text
from speculant import Speculator
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.probe.model_state import digest_of, state_of

PROMPT = IDS[0].tolist()
CAUSAL = TaskType.CAUSAL_LM


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep outcomes of other modules away; those of the models as they were are there for each test to mistake."""
    with pytest.MonkeyPatch.context() as patch:
        use_empty_cache(patch, tmp_path_factory.mktemp("cache"))
        yield


def row_hook(minimum: int) -> Callable[..., Any]:
    """Return a hook that changes outputs of passes over so many rows."""

    def hook(module: Any, given: Any, output: Tensor) -> Tensor:
        return output + 0.7 * output.flip(-1) if output.shape[1] >= minimum and output.shape[1] < 100 else output

    return hook


def position_hook(minimum: int) -> Callable[..., Any]:
    """Return a hook that changes outputs of passes over several rows whose last position is beyond a place."""

    def hook(module: Any, given: Any, options: Any, output: Any) -> Any:
        positions = options.get("position_ids")
        late = positions is not None and positions.shape[-1] > 1 and int(positions[0, 0]) >= minimum
        return (
            (output[0] * 1.5, *output[1:]) if late and isinstance(output, tuple) else output * 1.5 if late else output
        )

    return hook


def text(model: Any, tokens: int = 32, **options: Any) -> tuple[list[int], list[str]]:
    """Return what a speculator on copies of its prompt yields, and its notes."""
    speculator = Speculator.from_transformers(model, method="lookup", nodes=16, fast=False, **options)
    result = speculator.generate(PROMPT, max_new_tokens=tokens, temperature=0, eos_token_id=None)
    return result.ids, result.stats.notes


@pytest.mark.parametrize("minimum", [2, pytest.param(12, marks=pytest.mark.slow), 40])
def test_hooks_that_see_how_many_rows_a_pass_has(minimum: int) -> None:
    """Guards hooks and capacities: drafts have up to 65 rows, and the probe's passes have as many."""
    model = tiny_model("llama")
    text(model)  # an outcome of the model as it was is kept
    model.model.layers[1].mlp.register_forward_hook(row_hook(minimum))
    found, notes = text(model)
    assert found == plain_text(model, IDS, 32)
    assert any("decoded plainly" in note for note in notes)


@pytest.mark.parametrize("count", [3, pytest.param(5, marks=pytest.mark.slow), 17])
def test_a_hook_that_sees_one_number_of_rows(count: int) -> None:
    """Guards kernels that are chosen by the number of rows: small passes of every size are compared."""
    model = tiny_model("llama")
    model.model.layers[1].mlp.register_forward_hook(
        lambda _module, _given, output: output * 1.7 if output.shape[1] == count else output
    )
    found, notes = text(model)
    assert found == plain_text(model, IDS, 32)
    assert any("decoded plainly" in note for note in notes)


def test_drafts_of_any_fixed_size_are_probed() -> None:
    """Guards `nodes` beyond what sizing chooses: passes are compared up to the rows that they will have."""
    model = tiny_model("llama", max_position_embeddings=512)
    model.model.layers[1].mlp.register_forward_hook(row_hook(70))
    prompts = [torch.randint(3, 60, (1, 6), generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
    speculator = Speculator.from_transformers(model, method="recycling", nodes=256, fast=False)
    results = speculator.generate_batch(
        [each[0].tolist() for each in prompts], size=8, max_new_tokens=20, temperature=0, eos_token_id=None
    )
    assert [result.ids for result in results] == [plain_text(model, each, 20) for each in prompts]


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_that_acts_inside_generate() -> None:
    """Guards activated LoRA, whose hooks are there only while `generate` runs."""
    config = LoraConfig(
        target_modules=["q_proj"], init_lora_weights=False, alora_invocation_tokens=[9], task_type=CAUSAL
    )
    model = get_peft_model(tiny_model("llama"), config)
    speculator = Speculator.from_transformers(model, method="lookup", fast=False)
    with pytest.raises(UnsupportedError, match="only while its own `generate` runs"):
        speculator.generate(PROMPT, max_new_tokens=5)
    options = {"attention_mask": torch.ones_like(IDS), "max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    found = model.generate(input_ids=IDS, custom_generate=speculator, **options)
    assert torch.equal(found, model.generate(input_ids=IDS, **options))


def test_functions_exchanged_behind_a_speculators_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards patches of functions that classes look up: torch's, and those of a model's file."""
    model = tiny_model("llama")
    speculator = Speculator.from_transformers(model, method="lookup", nodes=16, fast=False)
    own = torch.nn.functional.silu
    for patched in (False, True, False):
        if patched:
            monkeypatch.setattr(
                torch.nn.functional, "silu", lambda x, **_: own(x) * (1.6 if 1 < x.shape[1] < 12 else 1.0)
            )
        else:
            monkeypatch.undo()
        result = speculator.generate(PROMPT, max_new_tokens=24, temperature=0, eos_token_id=None)
        assert result.ids == plain_text(model, IDS, 24)
        assert any("decoded plainly" in note for note in result.stats.notes) is patched


def test_passes_prepared_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards patches of what `generate` gives to passes, which drafted passes do not go through."""
    model = tiny_model("llama")
    speculator = Speculator.from_transformers(model, method="lookup", nodes=16, fast=False)
    options: dict[str, Any] = {"max_new_tokens": 30, "temperature": 0, "eos_token_id": None}
    assert speculator.generate(PROMPT, **options).ids == plain_text(model, IDS, 30)
    own = type(model).prepare_inputs_for_generation

    @functools.wraps(own)
    def moved(self: Any, *args: Any, **given: Any) -> Any:
        inputs = own(self, *args, **given)
        if inputs.get("position_ids") is not None and inputs["input_ids"].shape[1] == 1:
            inputs["position_ids"] = inputs["position_ids"] + 3
        return inputs

    monkeypatch.setattr(type(model), "prepare_inputs_for_generation", moved)
    assert speculator.generate(PROMPT, **options).ids == plain_text(model, IDS, 30)


def test_a_hook_that_sees_several_texts_in_a_pass() -> None:
    """Guards what goes by all rows of a pass, such as capacities of experts, where prompts are read together."""
    model = deep_model("llama")

    def hook(module: Any, given: Any, options: Any, output: Any) -> Any:
        return output * 1.5 if int((options["position_ids"] == 0).sum()) > 1 else output

    model.model.layers[1].register_forward_hook(hook, with_kwargs=True)
    prompts = [PROMPT, PROMPT[:5], PROMPT[3:]]
    speculator = Speculator.from_transformers(model, method="lookup", nodes=8, fast=False)
    results = speculator.generate_batch(prompts, size=3, max_new_tokens=20, temperature=0, eos_token_id=None)
    assert [result.ids for result in results] == [plain_text(model, torch.tensor([each]), 20) for each in prompts]
    assert any("one after the other" in note for note in results[0].stats.notes)
    assert speculator.engine.capabilities.drafts


def test_a_hook_that_acts_late() -> None:
    """Guards what begins in the middle of texts: the probe goes beyond position 128."""
    model = deep_model("llama")
    model.model.layers[1].register_forward_hook(position_hook(100), with_kwargs=True)
    found, notes = text(model, 100)
    assert found == plain_text(model, IDS, 100)
    assert any("decoded plainly" in note for note in notes)


def test_changes_behind_a_speculators_back() -> None:
    """Guards each request: hooks, forwards and flags may come and go between two."""
    model = tiny_model("llama")
    speculator = Speculator.from_transformers(model, method="lookup", nodes=16, fast=False)

    def check(plainly: bool) -> None:
        result = speculator.generate(PROMPT, max_new_tokens=24, temperature=0, eos_token_id=None)
        assert result.ids == plain_text(model, IDS, 24)
        assert any("decoded plainly" in note for note in result.stats.notes) is plainly

    check(False)
    hook = model.model.layers[1].mlp.register_forward_hook(row_hook(2))
    check(True)
    hook.remove()
    check(False)
    mlp = model.model.layers[0].mlp
    own = mlp.forward
    mlp.forward = lambda states: own(states) * (2.0 if 1 < states.shape[1] < 12 else 1.0)
    check(True)
    del mlp.forward
    check(False)


@pytest.mark.parametrize(("fast", "sequences"), in_turn([True, False], [1, 2]))
def test_attention_switched_behind_a_speculators_back(fast: bool, sequences: int) -> None:
    """Guards `set_attn_implementation`: eager attention adds its masks, sdpa takes booleans."""
    model = tiny_model("llama", "sdpa")
    speculator = Speculator.from_transformers(model, method="lookup", nodes=16, fast=fast)
    for attention in ("sdpa", "eager", "sdpa"):
        model.set_attn_implementation(attention)
        results = speculator.generate_batch(
            [PROMPT] * sequences, size=sequences, max_new_tokens=24, temperature=0, eos_token_id=None
        )
        assert [result.ids for result in results] == [plain_text(model, IDS, 24)] * sequences
        assert results[0].stats.accepted > 0


def test_quantised_modules_are_another_model() -> None:
    """Guards `quantize_dynamic`, whose scales go by all rows of a pass, after its model was probed unchanged."""
    model = tiny_model("llama")
    text(model)
    with pytest.warns((DeprecationWarning, UserWarning, FutureWarning)):
        quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    found, _ = text(quantised)
    assert found == plain_text(quantised, IDS, 32)


ADAPTERS = [
    PromptTuningConfig(task_type=CAUSAL, num_virtual_tokens=4),
    PrefixTuningConfig(task_type=CAUSAL, num_virtual_tokens=4),
    LoraConfig(task_type=CAUSAL, target_modules=["q_proj"], init_lora_weights=False),
]
FURTHER = [  # of the same two kinds, tokens before the text and other weights
    PromptEncoderConfig(task_type=CAUSAL, num_virtual_tokens=4, encoder_hidden_size=16),
    IA3Config(task_type=CAUSAL, target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
]


@pytest.mark.parametrize(
    ("config", "method"),
    [(each, "lookup") for each in ADAPTERS]
    + [pytest.param(each, "lookup", marks=pytest.mark.slow) for each in FURTHER]
    + [pytest.param(each, "none", marks=pytest.mark.slow) for each in ADAPTERS + FURTHER],
    ids=lambda value: value if isinstance(value, str) else value.peft_type.value,
)
@pytest.mark.filterwarnings("ignore")
def test_adapters_of_all_kinds(config: Any, method: str) -> None:
    """Guards adapters that put tokens before a text, after one was probed that does not, by both ways in."""
    text(get_peft_model(tiny_model("llama"), LoraConfig(target_modules=["q_proj"], init_lora_weights=False)))
    torch.manual_seed(1)
    model = get_peft_model(tiny_model("llama"), config)
    options = {"attention_mask": torch.ones_like(IDS), "max_new_tokens": 30, "do_sample": False}
    options |= {"eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(input_ids=IDS, **options)[0, IDS.shape[1] :].tolist()
    speculator = Speculator.from_transformers(model, method=method, fast=False)
    result = speculator.generate(PROMPT, max_new_tokens=30, temperature=0, eos_token_id=None)
    assert result.ids == expected
    assert any("decoded plainly" in note for note in result.stats.notes) is config.is_prompt_learning
    output = model.generate(input_ids=IDS, custom_generate=speculator, **options)
    assert output[0, IDS.shape[1] :].tolist() == expected


def test_weights_and_flags_name_another_state() -> None:
    """Guards the key of kept outcomes: gates, buffers and flags switch what a class does."""
    model = tiny_model("llama")
    first, state = digest_of(model), state_of(model)
    assert first == digest_of(tiny_model("llama"))
    model(IDS)
    assert (digest_of(model), state_of(model)) == (first, state)
    with torch.no_grad():
        model.model.norm.weight[3] = 2.0
    second = digest_of(model)
    assert second != first
    assert state_of(model) != state
    model.model.layers[0].self_attn.is_causal = False
    assert digest_of(model) not in (first, second)


def test_code_that_no_file_can_name_is_probed_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards closures: two hooks may look alike and do different things."""
    folder, model = use_empty_cache(monkeypatch, tmp_path), tiny_model("llama")
    model.model.layers[1].mlp.register_forward_hook(row_hook(2))
    text(model)
    assert not list(folder.glob("probe-*.json"))
    patched = tiny_model("llama")
    patched.__class__ = type("LlamaForCausalLM", (type(patched),), {"__module__": "__main__"})
    assert digest_of(patched) is None
