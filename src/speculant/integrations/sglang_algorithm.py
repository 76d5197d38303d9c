"""The algorithm registered with SGLang: NGRAM in everything but the drafts."""

from __future__ import annotations

import os
from typing import Any

from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from speculant.core.errors import UnsupportedError
from speculant.integrations.settings import read_settings
from speculant.integrations.sglang_checks import check_server, check_settings, check_version

WIDTH, RUNNING = 12, 48  # NGRAM's defaults: tokens per request and step, and requests at a time


class SpeculantAlgorithm(CustomSpecAlgo):  # type: ignore[misc]  # SGLang is not typed here
    """Answers SGLang's queries about an algorithm as NGRAM does."""

    def is_ngram(self) -> bool:
        """Follow NGRAM's branches: verify, CUDA graphs, and the relay of overlapped steps."""
        return True

    def has_draft_kv(self) -> bool:
        """Reserve no cache for drafts."""
        return False

    def need_topk(self) -> bool:
        """Relay no top-k of a draft model. Called by the scheduler; missing in the base class of 0.5.23."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """Transfer no hidden states. Also missing in the base class."""
        return False

    def get_platform_worker_cls(self) -> None:
        """Leave the worker to the factory. Also missing in the base class."""
        return

    def create_future_map(self, *args: Any, **kwargs: Any) -> Any:
        """Return the relay of results between overlapped steps: the enum's own method, with this algorithm."""
        return SpeculativeAlgorithm.create_future_map(self, *args, **kwargs)

    def handle_server_args(self, server_args: Any) -> None:
        """Check the arguments, and resolve missing ones as NGRAM does.

        Raises:
            SpeculantError: they cannot be used; the server then ends with that message.
        """
        import sglang

        settings = read_settings(os.environ)
        check_version(sglang.__version__, allow_untested=settings.allow_untested)
        check_settings(settings)
        check_server(server_args)
        if settings.share is not None and server_args.tp_size > 1:
            raise UnsupportedError(
                "ranks would learn from other replicas at different times and draft different trees, which SGLang does "
                "not expect. Leave out SPECULANT_SHARE with tensor parallelism, or merge memories on a schedule."
            )
        if settings.memory is not None and server_args.dp_size > 1:
            raise UnsupportedError(
                "data-parallel replicas would overwrite one memory file with another. Leave out SPECULANT_MEMORY, or "
                "run a server for each replica."
            )
        if server_args.device == "cpu":
            server_args.disable_overlap_schedule = True
        if server_args.max_running_requests is None:
            server_args.max_running_requests = RUNNING
        if server_args.speculative_num_draft_tokens is None:
            server_args.speculative_num_draft_tokens = WIDTH
        server_args.enable_mixed_chunk = False
        server_args.speculative_eagle_topk = server_args.speculative_ngram_max_bfs_breadth
        if server_args.speculative_num_steps is None:
            breadth = max(1, server_args.speculative_eagle_topk)
            server_args.speculative_num_steps = server_args.speculative_num_draft_tokens // breadth
