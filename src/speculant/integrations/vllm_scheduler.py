"""A memory combined with vLLM's own head: a scheduler that replaces the head's drafts by chains of both.

    VLLM_USE_V2_MODEL_RUNNER=0 vllm serve MODEL --no-async-scheduling
        --scheduler-cls speculant.integrations.vllm_scheduler.UnitingScheduler
        --speculative-config '{"method": "eagle3", "model": "HEAD", "num_speculative_tokens": 5}'

A proposer for vLLM's method `custom_class` is built from a VllmConfig and only sees tokens; a head needs hidden states,
so the two cannot be one. But when vLLM schedules synchronously, drafts of every method reach its scheduler as token ids
(`EngineCore.post_step`), which sends them back with the next step, and the workers verify what it sends. This
scheduler, selected by a documented option of vLLM, is vLLM's own except for `update_draft_token_ids`, a method of its
interface: before the ids are stored, each request's chain is replaced. It knows requests by name, their texts and when
they end, and there is one for all ranks, so there is one memory. The head reads every verified token, whoever drafted
it, so its next draft is the same as without the memory.

Drafts of vLLM's heads are the head's most probable tokens, without probabilities (`draft_sample_method` greedy). All
drafts are then deterministic proposals, for which its rejection sampler is exact.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds

from speculant.integrations.head_rows import HeadRow, HeadRows
from speculant.integrations.settings import read_settings
from speculant.integrations.vllm_checks import UNITING_OLDEST, check_uniting, check_version
from speculant.integrations.vllm_cpu import repair_expansion
from speculant.integrations.vllm_memory import open_memory

logger = logging.getLogger(__name__)


class UnitingScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not typed here
    """VLLM's scheduler, with a memory."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        """Read the settings and the memory.

        Args:
            vllm_config, args, kwargs: as vLLM passes them to its own scheduler.

        Raises:
            SpeculantError: a setting or the configuration of vLLM cannot be used; vLLM then ends with that message.
        """
        settings = read_settings(os.environ)
        check_version(allow_untested=settings.allow_untested, oldest=UNITING_OLDEST)
        check_uniting(vllm_config, on_cpu=current_platform.is_cpu(), allow_untested=settings.allow_untested)
        repair_expansion()  # on CPUs this process is the worker
        super().__init__(vllm_config, *args, **kwargs)
        memory = open_memory(settings, vllm_config, first=True)
        self._longest = int(vllm_config.model_config.max_model_len)
        self._drafted: dict[str, Any] = {}  # requests with drafts, by name
        self._chains = chains = HeadRows(
            memory.drafter,
            vocabulary=memory.vocabulary,
            max_per_step=settings.drafted_per_step,
            min_probability=settings.min_probability,
            ends=memory.ends,
        )
        self._saver = memory.saver(learned=lambda: chains.rows.learned, finish=chains.forget)
        logger.info("uniting '%s' with drafts of %s", settings.method, vllm_config.speculative_config.method)

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Store what is to be verified in the next step: for each request a chain from the head and the memory.

        Args:
            draft_token_ids: a DraftTokenIds, the head's drafts of the rows of the last step.
        """
        super().update_draft_token_ids(self.unite(draft_token_ids))

    def unite(self, draft_token_ids: Any) -> Any:
        """Return a DraftTokenIds in which the head's chain of each drafted request is replaced by a combined one."""
        names, heads = list(draft_token_ids.req_ids), list(draft_token_ids.draft_token_ids)
        rows, places = self._take_ended(), list[int]()
        over = len(rows)
        for place, (name, head) in enumerate(zip(names, heads, strict=True)):
            request = self.requests.get(name)
            if request is None or request.is_finished() or request.is_prefill_chunk or not request.num_output_tokens:
                continue
            self._drafted[name] = request
            rows.append(self._row(name, request, head))
            places.append(place)
        for place, chain in zip(places, self._chains.step(rows)[over:], strict=True):
            heads[place] = chain
        return DraftTokenIds(names, heads)

    def shutdown(self) -> None:
        """End all requests and save what was learned."""
        super().shutdown()
        self._chains.forget()
        if self._saver is not None:
            self._saver.close()

    def _take_ended(self) -> list[HeadRow]:
        """Remove and return the requests that have ended, with their whole texts."""
        ended = [name for name, request in self._drafted.items() if self.requests.get(name) is not request]
        return [HeadRow(name, self._drafted.pop(name).all_token_ids, ended=True) for name in ended]

    def _row(self, name: str, request: Any, head: Sequence[int]) -> HeadRow:
        # The pass commits one more token than it accepts, and all of them need a position.
        maximum = min(len(head), self._longest - int(request.num_tokens) - 1)
        return HeadRow(name, request.all_token_ids, head, max(0, maximum))
