"""The memory of a vLLM process: a drafter for the model that vLLM serves, and its memory file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speculant.api.loading import load_tokenizer
from speculant.core.drafter import Drafter, Persistent
from speculant.integrations.kept_memory import BackgroundSaver, load_memory
from speculant.integrations.settings import IntegrationSettings
from speculant.memory.fingerprint import tokenizer_fingerprint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VllmMemory:
    """A drafter with its loaded memory.

    Attributes:
        drafter: the drafter.
        vocabulary: vocabulary size V of the model.
        ends: tokens that end a text.
        path: the file to save to; None if this process saves nothing.
        save_seconds: seconds between saves.
    """

    drafter: Drafter
    vocabulary: int
    ends: frozenset[int]
    path: Path | None
    save_seconds: float

    def saver(self, *, learned: Callable[[], int], finish: Callable[[], object]) -> BackgroundSaver | None:
        """Start and return the saver of the memory, see `BackgroundSaver`; None if this process saves nothing."""
        if self.path is None or not isinstance(self.drafter, Persistent):
            return None
        return BackgroundSaver(self.drafter, self.path, every=self.save_seconds, learned=learned, finish=finish)


def open_memory(settings: IntegrationSettings, vllm_config: Any, *, first: bool) -> VllmMemory:
    """Build the drafter from the settings and read its memory.

    Args:
        settings: settings from the environment of the process.
        vllm_config: a VllmConfig.
        first: whether this process saves and shares what it learns: of several that learn the same, only one should.

    Raises:
        SpeculantError: a setting or the corpus cannot be used.
    """
    model = vllm_config.model_config
    vocabulary: int = model.get_vocab_size()
    drafter = settings.build(vocabulary=vocabulary, tokenizer=_fingerprint(settings, model, vocabulary), shares=first)
    path = _name_replica_file(settings, vllm_config)
    may_save = load_memory(drafter, memory=path, corpus=settings.corpus)
    return VllmMemory(
        drafter=drafter,
        vocabulary=vocabulary,
        ends=_end_tokens(model),
        path=path if may_save and first else None,
        save_seconds=settings.save_seconds,
    )


def _fingerprint(settings: IntegrationSettings, model: Any, vocabulary: int) -> str:
    """Return the fingerprint that ties memory files to the tokenizer, which is only read if needed."""
    if settings.memory is None and settings.corpus is None and settings.share is None and not settings.base:
        return ""
    skipped = getattr(model, "skip_tokenizer_init", False)
    return tokenizer_fingerprint(None if skipped else load_tokenizer(model.tokenizer, required=False), vocabulary)


def _name_replica_file(settings: IntegrationSettings, vllm_config: Any) -> Path | None:
    """Return the memory file of this data-parallel replica: replicas learn separately, and each needs its own file."""
    replica = int(getattr(vllm_config.parallel_config, "data_parallel_rank", 0) or 0)
    path = settings.memory
    return path if path is None or not replica else path.with_name(f"{path.stem}-{replica}{path.suffix}")


def _end_tokens(model: Any) -> frozenset[int]:
    ends = getattr(model.hf_text_config, "eos_token_id", None)
    return frozenset(ends if isinstance(ends, list | tuple) else [] if ends is None else [ends])
