"""Drafts inside SGLang, through its plugin interface; no file of SGLang is modified.

    sglang serve MODEL --speculative-algorithm SPECULANT --speculative-num-draft-tokens 12

SGLang calls `register` in each of its processes (entry point group `sglang.srt.plugins`; `SGLANG_PLUGINS=` selects
plugins). It registers an algorithm that follows every code path of SGLang's own NGRAM, trees and CUDA graphs included,
but drafts with our memory. Requests whose output drafts would change are refused before they are queued. Settings are
those of the vLLM integration, from SPECULANT_* variables; see docs/sglang.md.

The interface: SpeculativeAlgorithm.register (pull request 23991), HookRegistry (sglang/srt/plugins/hook_registry.py).
"""

from __future__ import annotations

from typing import Any

NAME = "SPECULANT"
_REQUESTS = "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object"


def register() -> None:
    """Register the algorithm and the check of requests; SGLang calls this once in every process."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from speculant.integrations.sglang_algorithm import SpeculantAlgorithm

    SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=SpeculantAlgorithm)(worker_class)
    HookRegistry.register(_REQUESTS, refuse_inexact, HookType.AFTER)


def worker_class(_server_args: Any) -> type[Any]:
    """Return the worker; imported here, since only decoding processes can import it."""
    from speculant.integrations.sglang_worker import SpeculantWorker

    return SpeculantWorker


def refuse_inexact(request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Raise for a request whose output drafts would change, if drafts are made; SGLang answers it with an error.

    Raises:
        ValueError: drafts would change its output.
    """
    from sglang.srt.runtime_context import get_device, get_spec

    from speculant.core.errors import UnsupportedError
    from speculant.integrations.sglang_checks import GREEDY_DEVICES, check_request

    if (get_spec().speculative_algorithm or "").upper() != NAME or not hasattr(request, "custom_logit_processor"):
        return
    greedy_only = str(get_device().device).startswith(GREEDY_DEVICES)
    try:
        check_request(request.sampling_params, processor=request.custom_logit_processor, greedy_only=greedy_only)
    except UnsupportedError as error:
        raise ValueError(str(error)) from None  # what SGLang answers with status 400
