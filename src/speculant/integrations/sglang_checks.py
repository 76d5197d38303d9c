"""Checks of what is supported in SGLang: its versions, and settings and requests whose output drafts would change.

SGLang verifies trees exactly for greedy decoding and, on CUDA, for sampling with temperature, top-k, top-p and logit
bias. According to its source, version 0.5.23 (speculative/eagle_utils.py): penalties are those of the state before the
draft, at every node; min_p and custom logit processors are not applied; thresholds below 1 accept more than the target
would; CPU, XPU and ROCm take the most probable token at any temperature.
"""

from __future__ import annotations

import re
from typing import Any

from speculant.core.errors import UnsupportedError
from speculant.integrations.settings import IntegrationSettings
from speculant.options.hosting import DRAFTED_PER_STEP

OLDEST, BEYOND = (0, 5, 20), (0, 5, 24)
TESTED = "0.5.23 (its interface classes, without a GPU)"
GREEDY_DEVICES = ("cpu", "xpu")
_OVERRIDE = "Set SPECULANT_ALLOW_UNTESTED=1 to try it all the same."


def check_version(version: str, *, allow_untested: bool) -> None:
    """Refuse versions of SGLang whose plugin interface is not known to match.

    Raises:
        UnsupportedError: the version is older or newer, or has no number.
    """
    numbers = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    if not allow_untested and (numbers is None or not OLDEST <= tuple(map(int, numbers.groups())) < BEYOND):
        raise UnsupportedError(
            f"SGLang {version} was not tested: this integration is for {_join_version(OLDEST)} up to, but not "
            f"including, {_join_version(BEYOND)}, and was tested with {TESTED}. {_OVERRIDE}"
        )


def check_settings(settings: IntegrationSettings) -> None:
    """Refuse settings that have no effect in SGLang.

    Raises:
        UnsupportedError: the tokens of a step are bounded, or improbable ones are excluded.
    """
    for name, unset in (("drafted_per_step", DRAFTED_PER_STEP), ("min_probability", 0.0)):
        if getattr(settings, name) != unset:
            raise UnsupportedError(
                f"SGLang verifies a fixed number of tokens per request, so {name} has no effect; leave it out and set "
                "--speculative-num-draft-tokens and --max-running-requests."
            )


def check_server(server: Any) -> None:
    """Refuse server arguments under which drafts would change the output, or which SGLang cannot combine.

    Args:
        server: SGLang's ServerArgs, or an equivalent while they are resolved.

    Raises:
        UnsupportedError: acceptance is lossy, or the device, the parallelism or the page size is not supported.
    """
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        value = getattr(server, name, 1.0)
        if value is not None and value != 1.0:
            raise UnsupportedError(f"{name}={value} accepts tokens that the target would not choose. Leave it at 1.")
    for name in ("speculative_use_rejection_sampling", "speculative_use_block_verification"):
        if getattr(server, name, False):
            raise UnsupportedError(f"{name} needs a draft model's probabilities, and this is a memory. Leave it out.")
    if not str(server.device).startswith(("cuda", *GREEDY_DEVICES)):
        raise UnsupportedError(f"SGLang verifies trees of n-grams on CUDA, CPU and XPU only, not on {server.device}.")
    if getattr(server, "enable_dp_attention", False):
        raise UnsupportedError("SGLang cannot combine trees of n-grams with data-parallel attention. Leave it out.")
    if server.page_size not in (None, 1) and server.attention_backend != "flashinfer":
        raise UnsupportedError(
            f"trees with pages of {server.page_size} tokens need --attention-backend flashinfer, not "
            f"{server.attention_backend}; or use --page-size 1."
        )


def check_request(sampling: Any, *, processor: Any, greedy_only: bool) -> None:
    """Refuse a request whose output drafts would change.

    Args:
        sampling: its SamplingParams, normalised: SGLang writes temperature 0 as top_k 1.
        processor: its custom logit processor, or None.
        greedy_only: whether the device verifies greedily for any sampling parameters.

    Raises:
        UnsupportedError: drafts would change its output.
    """
    neutral = {
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
    }
    changed = [name for name, value in neutral.items() if getattr(sampling, name) != value]
    if processor is not None:
        changed.append("custom_logit_processor")
    if changed:
        raise UnsupportedError(
            f"{' and '.join(changed)} would not be applied exactly to drafted tokens (SGLang 0.5.23). Leave it out, or "
            "send the request to a server without speculative decoding."
        )
    if greedy_only and sampling.top_k != 1:
        raise UnsupportedError(
            "on this device SGLang verifies drafts greedily, so sampled text would not be sampled. Use temperature 0."
        )


def _join_version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
