"""What SGLang would pass to a memory beside its own heads, read in its source; see docs/sglang.md.

Nothing of SGLang is imported, so any version can be read that lies in a folder of PYTHONPATH. Where one of these fails,
SGLang has changed what docs/sglang.md says about heads together with a memory.
"""

from __future__ import annotations

import ast

import pytest

from engine_source import EngineSource, calls, fields, parameters, passed

SGLANG = EngineSource("sglang")
find = SGLANG.find
WORKER = "srt/speculative/eagle_worker_v2.py"

pytestmark = [pytest.mark.sglang, pytest.mark.skipif(SGLANG.missing, reason="SGLang is not installed")]


def test_a_heads_tree_passes_between_draft_and_verify() -> None:
    """The step where a tree of both could take the place of the head's: `verify` reads it from the batch."""
    step = find(WORKER, "EAGLEWorkerV2.forward_batch_generation")
    assert ["batch"] in [passed(each) for each in calls(step, "draft_worker.draft")]
    assert "batch.spec_info = verify_input" in ast.unparse(step)
    verify = find(WORKER, "EAGLEWorkerV2.verify")
    assert parameters(verify) == ["self", "batch", "pp_proxy_tensors", "grammar_barrier"]
    hooks = find("srt/plugins/hook_registry.py", "HookType")
    assert "AROUND = 'around'" in ast.unparse(hooks)


def test_what_a_tree_is_made_of() -> None:
    """All of it are tensors on the device, without the probabilities by which the head chose its nodes."""
    found = fields(find("srt/speculative/eagle_info.py", "EagleVerifyInput"))
    assert {"draft_token", "custom_mask", "positions", "retrieve_next_token", "retrieve_next_sibling"} <= set(found)
    assert not {"scores", "top_scores", "topk_p"} & set(found)
    draft = ast.unparse(find(WORKER, "EagleDraftWorker.draft_forward"))
    assert "scores = None" in draft


def test_a_tree_is_as_deep_as_the_head_drafts() -> None:
    """What the memory knows beyond the head's steps would not be accepted."""
    depth = find("srt/speculative/eagle_info.py", "EagleVerifyInput.max_tree_depth")
    assert ast.unparse(depth).endswith("return self.spec_steps + 1")


def test_overlapped_steps_show_no_accepted_tokens() -> None:
    """NGRAM's workers are given those of the last step; EAGLE's are not, and requests get them a step later."""
    found = fields(find("srt/speculative/eagle_info.py", "EagleDraftInput"))
    assert "bonus_tokens" in found
    assert not {"accept_tokens", "accept_lens"} & set(found)
    ngram = parameters(find("srt/speculative/ngram_info.py", "NgramVerifyInput.__init__"))
    assert {"accept_tokens", "accept_lens"} <= set(ngram)


def test_the_name_of_a_heads_algorithm_cannot_be_taken() -> None:
    """Its branches go by its name in places, so an algorithm of another name is not treated as it is."""
    reserved = ast.unparse(find("srt/speculative/spec_registry.py", "_reserved_names"))
    assert "algo.name for algo in SpeculativeAlgorithm" in reserved
