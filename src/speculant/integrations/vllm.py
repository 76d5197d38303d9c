"""Drafts inside vLLM, through its official interface for external proposers.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
        "model": "speculant.integrations.vllm.Proposer"}'

vLLM only verifies chains. It passes a proposer the tokens of each row, but no request ids and no sampling parameters,
and does not report the end of a request; `rows.py` recognises requests anyway. Drafts are tokens without probabilities,
which vLLM verifies losslessly with any sampling parameters (its rejection sampler treats them as deterministic
proposals). Every tensor-parallel rank builds its own proposer and computes the same drafts. Settings: docs/vllm.md.

The interface: vllm/v1/spec_decode/custom_class_proposer.py, since vLLM 0.22.0 (pull request 39487).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from speculant.core.tree import Int32
from speculant.integrations.drafting import RowDrafter
from speculant.integrations.load import chain_budget
from speculant.integrations.rows import EngineRow
from speculant.integrations.settings import read_settings
from speculant.integrations.vllm_checks import check_config, check_version
from speculant.integrations.vllm_cpu import repair_expansion
from speculant.integrations.vllm_memory import open_memory

logger = logging.getLogger(__name__)


class Proposer:
    """The proposer that vLLM builds in every worker and calls after every step."""

    def __init__(self, vllm_config: Any) -> None:
        """Read the settings and the memory.

        Args:
            vllm_config: a VllmConfig.

        Raises:
            SpeculantError: a setting or the configuration of vLLM cannot be used; vLLM then ends with that message.
        """
        settings = read_settings(os.environ)
        check_version(allow_untested=settings.allow_untested)
        check_config(vllm_config, allow_untested=settings.allow_untested)
        repair_expansion()
        self._maximum = int(vllm_config.speculative_config.num_speculative_tokens)
        self._longest = int(vllm_config.model_config.max_model_len)
        # vLLM only uses the first rank's drafts.
        memory = open_memory(settings, vllm_config, first=vllm_config.parallel_config.rank == 0)
        self.rows = rows = RowDrafter(
            memory.drafter,
            vocabulary=memory.vocabulary,
            budget=chain_budget,
            max_per_step=settings.drafted_per_step,
            min_probability=settings.min_probability,
            ends=memory.ends,
        )
        self._saver = memory.saver(learned=lambda: rows.learned, finish=rows.finish)
        logger.info("drafting with '%s', up to %d tokens for a request", settings.method, self._maximum)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[Any],
        token_ids_cpu: npt.NDArray[Any],
        *args: Any,
        **kwargs: Any,
    ) -> list[list[int]]:
        """Return the drafted tokens of each row, at most the configured number; no tokens mean a plain step.

        Args:
            sampled_token_ids: the tokens that the step committed in each of B rows; none while a prompt is being read.
            num_tokens_no_spec: [>= B], the length of each row's text with these tokens.
            token_ids_cpu: Int32[>= B, *], the texts.
            args, kwargs: further arguments of later vLLM versions, such as `slot_mappings`. A proposer that did not
                accept them would fail in every step.
        """
        rows = [
            self._row(token_ids_cpu[i], int(num_tokens_no_spec[i]), len(tokens))
            for i, tokens in enumerate(sampled_token_ids)
        ]
        return [draft.tokens.tolist() for draft in self.rows.step(rows)]

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no model to load. vLLM's CPU runner calls this without checking that it exists."""

    def close(self) -> None:
        """End all requests and save what was learned. vLLM does not call it; the saver does at exit."""
        self.rows.finish()
        if self._saver is not None:
            self._saver.close()

    def _row(self, tokens: npt.NDArray[Any], length: int, fresh: int) -> EngineRow:
        text: Int32 = np.asarray(tokens[:length], np.int32)
        # The pass commits one more token than it accepts, and all of them need a position.
        return EngineRow(text, fresh, min(self._maximum, self._longest - length - 1))
