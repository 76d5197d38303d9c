"""What vLLM passes to drafters and schedulers, read in its source: where a version changes it, one of these fails.

Nothing of vLLM is run or imported, so versions can be compared that cannot be installed here:

    PYTHONPATH=FOLDER pytest tests/integrations/test_vllm_seam.py     # FOLDER/vllm: the Python files of a wheel
"""

from __future__ import annotations

import ast

import pytest

from engine_source import EngineSource, calls, fields, parameters, passed

RUNNER, SECOND_RUNNER = "v1/worker/gpu_model_runner.py", "v1/worker/gpu/model_runner.py"

VLLM = EngineSource("vllm")
find = VLLM.find

pytestmark = pytest.mark.skipif(VLLM.missing, reason="vLLM is not installed")


def branch(function: ast.AST, method: str) -> ast.AST:
    """Return what a function does for a method of drafting."""
    tests = [
        each for each in ast.walk(function) if isinstance(each, ast.If) and f"'{method}'" in ast.unparse(each.test)
    ]
    return ast.Module(body=tests[0].body, type_ignores=[])


def test_what_a_custom_class_is_given() -> None:
    """A VllmConfig, then tokens: as many as the proposer needs, and as few as keep it from running a head."""
    create = find("v1/spec_decode/custom_class_proposer.py", "create_custom_proposer")
    assert parameters(create) == ["vllm_config"]
    assert [passed(each) for each in calls(create, "user_class")] == [["vllm_config"]]
    propose = branch(find(RUNNER, "GPUModelRunner.propose_draft_token_ids"), "custom_class")
    assert [passed(each) for each in calls(propose, ".propose")] == [
        [
            "sampled_token_ids",
            "self.input_batch.num_tokens_no_spec",
            "self.input_batch.token_ids_cpu",
            "slot_mappings=slot_mappings",
        ]
    ]


def test_what_a_head_needs_beside_these() -> None:
    """The arguments that a custom class would have to be given to run vLLM's own head."""
    assert {"device", "runner"} <= set(parameters(find("v1/spec_decode/eagle.py", "EagleProposer.__init__")))
    needed = parameters(find("v1/spec_decode/llm_base_proposer.py", "SpecDecodeBaseProposer.propose"))
    assert {
        "num_speculative_tokens",
        "target_token_ids",
        "target_positions",
        "target_hidden_states",
        "next_token_ids",
        "token_indices_to_sample",
        "common_attn_metadata",
        "sampling_metadata",
    } <= set(needed)


def test_the_scheduler_gets_drafts_as_ids() -> None:
    """Where scheduling is synchronous, and there only, after every step; its class is an option."""
    after = find("v1/engine/core.py", "EngineCore.post_step")
    assert [passed(each) for each in calls(after, "scheduler.update_draft_token_ids")] == [["draft_token_ids"]]
    assert "not self.async_scheduling" in ast.unparse(after)
    for file, name in (
        ("v1/core/sched/interface.py", "SchedulerInterface"),
        ("v1/core/sched/scheduler.py", "Scheduler"),
    ):
        assert parameters(find(file, f"{name}.update_draft_token_ids")) == ["self", "draft_token_ids"]
        assert parameters(find(file, f"{name}.shutdown")) == ["self"]
    assert fields(find("v1/outputs.py", "DraftTokenIds")) == ["req_ids", "draft_token_ids"]
    assert "self.scheduler_cls" in ast.unparse(find("config/scheduler.py", "SchedulerConfig.get_scheduler_cls"))


def test_requests_of_the_scheduler() -> None:
    """What is read of them."""
    request = find("v1/request.py", "Request")
    source = ast.unparse(request)
    for name in ("self.all_token_ids = ConstantList(", "self.is_prefill_chunk = False"):
        assert name in source
    for name in ("num_tokens", "num_output_tokens", "is_finished"):
        assert parameters(find("v1/request.py", f"Request.{name}")) == ["self"]
    assert "self.requests: dict[str, Request]" in ast.unparse(find("v1/core/sched/scheduler.py", "Scheduler.__init__"))


def test_the_first_runner_verifies_what_the_scheduler_sends() -> None:
    """Its rows are filled with the scheduler's ids, so chains of another drafter are verified."""
    update = find(RUNNER, "GPUModelRunner._update_states")
    assert {passed(each)[1] for each in calls(update, "update_req_spec_token_ids")} == {"scheduled_spec_tokens"}
    kept = find("v1/worker/gpu_input_batch.py", "InputBatch.update_req_spec_token_ids")
    assert "self.token_ids_cpu[" in ast.unparse(kept)


def test_the_second_runner_verifies_what_it_drafted() -> None:
    """It reads only how many ids the scheduler sends; once it reads the ids, the scheduler can be used with it."""
    prepare = find(SECOND_RUNNER, "GPUModelRunner.prepare_inputs")
    [combine] = calls(prepare, "combine_sampled_and_draft_tokens")
    assert "self.req_states.draft_tokens" in passed(combine)


def test_a_heads_drafts_without_probabilities() -> None:
    """Drafts by greedy choice are the default, and then no probabilities are kept for the rejection sampler."""
    config = ast.unparse(find("config/speculative.py", "SpeculativeConfig"))
    assert "draft_sample_method: DraftSampleMethod = 'greedy'" in config
    sample = ast.unparse(find("v1/spec_decode/llm_base_proposer.py", "SpecDecodeBaseProposer.__init__"))
    assert "self._enable_probabilistic_draft_probs" in sample
    assert "self._last_draft_probs: torch.Tensor | None = None" in sample
