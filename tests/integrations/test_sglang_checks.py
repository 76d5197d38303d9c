"""What SGLang cannot do exactly is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from speculant.core.errors import UnsupportedError
from speculant.integrations.settings import IntegrationSettings
from speculant.integrations.sglang_checks import check_request, check_server, check_settings, check_version

SERVER = {"device": "cuda", "page_size": 1, "attention_backend": "triton", "enable_dp_attention": False}
REQUEST = {
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "top_k": 1 << 30,
}


def test_versions() -> None:
    """Guards the seam: other versions are tried only if the user says so."""
    check_version("0.5.23", allow_untested=False)
    for version in ("0.5.24", "0.5.9", "0.6.0", "unknown"):
        with pytest.raises(UnsupportedError, match="not tested"):
            check_version(version, allow_untested=False)
        check_version(version, allow_untested=True)


@pytest.mark.parametrize(
    "changed",
    [
        {"speculative_accept_threshold_single": 0.9},
        {"speculative_accept_threshold_acc": 0.5},
        {"speculative_use_rejection_sampling": True},
        {"speculative_use_block_verification": True},
        {"device": "npu"},
        {"enable_dp_attention": True},
        {"page_size": 16},
    ],
)
def test_server_arguments(changed: dict[str, Any]) -> None:
    """Guards the output, and users from errors in the middle of a start."""
    check_server(SimpleNamespace(**SERVER))
    check_server(SimpleNamespace(**SERVER | {"page_size": 16, "attention_backend": "flashinfer"}))
    with pytest.raises(UnsupportedError, match=r"Leave it|CUDA, CPU and XPU only|page-size 1"):
        check_server(SimpleNamespace(**SERVER | changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"min_p": 0.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"min_new_tokens": 1},
    ],
)
def test_requests(changed: dict[str, Any]) -> None:
    """Guards the output: what is not applied exactly at every node is refused, by name."""
    check_request(SimpleNamespace(**REQUEST), processor=None, greedy_only=False)
    with pytest.raises(UnsupportedError, match=next(iter(changed))):
        check_request(SimpleNamespace(**REQUEST | changed), processor=None, greedy_only=False)


def test_processors_and_devices() -> None:
    """Guards the output: custom processors are not applied; CPUs verify greedily."""
    with pytest.raises(UnsupportedError, match="custom_logit_processor"):
        check_request(SimpleNamespace(**REQUEST), processor="text", greedy_only=False)
    check_request(SimpleNamespace(**REQUEST | {"top_k": 1}), processor=None, greedy_only=True)
    with pytest.raises(UnsupportedError, match="greedily"):
        check_request(SimpleNamespace(**REQUEST), processor=None, greedy_only=True)


def test_settings_without_effect() -> None:
    """Guards against settings that are ignored silently."""
    check_settings(IntegrationSettings())
    with pytest.raises(UnsupportedError, match="drafted_per_step"):
        check_settings(IntegrationSettings(drafted_per_step=8))
    with pytest.raises(UnsupportedError, match="min_probability"):
        check_settings(IntegrationSettings(min_probability=0.1))
