"""Drafts inside vLLM, through its official seam for foreign proposers.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
        "model": "speculant.integrations.vllm.Proposer"}'

vLLM verifies chains only. It hands a proposer the tokens of each row, no request ids, no sampling parameters, nothing
when a request ends; `rows.py` recognises requests all the same. Drafts are tokens without probabilities, which vLLM
verifies without loss under any sampling parameters (its rejection sampler takes them for certain proposals). Every
tensor-parallel rank builds a proposer of its own and computes the same drafts. Settings: docs/vllm.md.

The seam: vllm/v1/spec_decode/custom_class_proposer.py, since vLLM 0.22.0 (pull request 39487).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from speculant.api.loading import load_tokenizer
from speculant.core.drafter import Persistent
from speculant.core.tree import Int32
from speculant.integrations.drafting import RowDrafter
from speculant.integrations.kept_memory import BackgroundSaver, load_memory
from speculant.integrations.load import chain_budget
from speculant.integrations.rows import Row
from speculant.integrations.settings import IntegrationSettings, read_settings
from speculant.integrations.vllm_checks import check_config, check_version
from speculant.integrations.vllm_cpu import repair_expansion
from speculant.memory.fingerprint import tokenizer_fingerprint

logger = logging.getLogger(__name__)


class Proposer:
    """What vLLM builds in every worker and asks for drafts after every step."""

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
        model = vllm_config.model_config
        vocabulary: int = model.get_vocab_size()
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)
        self._longest = int(model.max_model_len)
        drafter = settings.build(
            vocabulary=vocabulary,
            tokenizer=_fingerprint(settings, model, vocabulary),
            shares=vllm_config.parallel_config.rank == 0,  # whose drafts vLLM uses; the others draft in vain
        )
        may_save = load_memory(drafter, memory=_own_file(settings, vllm_config), corpus=settings.corpus)
        self.rows = RowDrafter(
            drafter,
            vocabulary=vocabulary,
            budget=chain_budget,
            most_per_step=settings.drafted_per_step,
            least_probability=settings.least_probability,
            ends=_end_tokens(model),
        )
        self._saver: BackgroundSaver | None = None
        path = _own_file(settings, vllm_config)
        if may_save and path is not None and isinstance(drafter, Persistent) and vllm_config.parallel_config.rank == 0:
            rows = self.rows
            self._saver = BackgroundSaver(
                drafter, path, every=settings.save_every, learned=lambda: rows.learned, finish=rows.finish
            )
        logger.info("drafting with '%s', up to %d tokens for a request", settings.method, self._most)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[Any],
        token_ids_cpu: npt.NDArray[Any],
        *args: Any,
        **kwargs: Any,
    ) -> list[list[int]]:
        """Return the drafted tokens of each row, at most as many as were configured; none is a plain step.

        Args:
            sampled_token_ids: the tokens that the step committed, of each of B rows; none while a prompt is read.
            num_tokens_no_spec: [>= B], the length of each row's text with these tokens.
            token_ids_cpu: Int32[>= B, *], the texts.
            args, kwargs: what later versions of vLLM pass beside these, such as `slot_mappings`. They call with what
                they have, and a proposer that did not accept it would fail every step.
        """
        rows = [
            self._row(token_ids_cpu[i], int(num_tokens_no_spec[i]), len(tokens))
            for i, tokens in enumerate(sampled_token_ids)
        ]
        return [draft.tokens.tolist() for draft in self.rows.step(rows)]

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no model to load. vLLM's CPU runner calls this without asking whether it exists."""

    def close(self) -> None:
        """End all requests and save what was learned. vLLM does not call it; the saver does at exit."""
        self.rows.finish()
        if self._saver is not None:
            self._saver.close()

    def _row(self, tokens: npt.NDArray[Any], length: int, fresh: int) -> Row:
        text: Int32 = np.asarray(tokens[:length], np.int32)
        # The pass commits one token more than it accepts, and all of them need a position.
        return Row(text, fresh, min(self._most, self._longest - length - 1))


def _fingerprint(settings: IntegrationSettings, model: Any, vocabulary: int) -> str:
    """Return the fingerprint that ties memory files to the tokenizer; read from the tokenizer only where needed."""
    if settings.memory is None and settings.corpus is None and settings.share is None and not settings.base:
        return ""
    skipped = getattr(model, "skip_tokenizer_init", False)
    return tokenizer_fingerprint(None if skipped else load_tokenizer(model.tokenizer, required=False), vocabulary)


def _own_file(settings: IntegrationSettings, vllm_config: Any) -> Any:
    """Return the memory file of this data-parallel replica: replicas learn apart, and each needs a file of its own."""
    replica = int(getattr(vllm_config.parallel_config, "data_parallel_rank", 0) or 0)
    path = settings.memory
    return path if path is None or not replica else path.with_name(f"{path.stem}-{replica}{path.suffix}")


def _end_tokens(model: Any) -> frozenset[int]:
    ends = getattr(model.hf_text_config, "eos_token_id", None)
    return frozenset(ends if isinstance(ends, list | tuple) else [] if ends is None else [ends])
