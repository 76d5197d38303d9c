"""The worker in SGLang's scheduler: NGRAM's, with our corpus in place of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative import ngram_worker
from sglang.srt.speculative.ngram_worker import NGRAMWorker

from speculant.core.drafter import Background, Persistent
from speculant.integrations.kept_memory import BackgroundSaver, load_memory
from speculant.integrations.settings import read_settings
from speculant.integrations.sglang_corpus import Corpus
from speculant.memory.fingerprint import tokenizer_fingerprint


class SpeculantWorker(NGRAMWorker):  # type: ignore[misc]  # SGLang is not typed here
    """Drafts for one rank. Every rank has a worker; all draft the same, and the first one saves the memory."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        """Read the settings and the memory.

        Args:
            server_args, gpu_id, nccl_port, target_worker: as SGLang passes them to its own worker.

        Raises:
            SpeculantError: a setting or the memory cannot be used; the server then ends with that message.
        """
        self._target = target_worker
        with _corpus_replaced(self._open_corpus):
            super().__init__(server_args, gpu_id, nccl_port, target_worker)

    def _prepare_draft_tokens(self, batch: Any) -> Any:
        """Give the corpus the whole texts of unknown requests, then draft as NGRAM does."""
        for request in batch.reqs:
            prompt, output = request.origin_input_ids_unpadded, request.output_ids
            if self.ngram_corpus.is_behind(request.rid, len(prompt) + len(output)):
                text = np.concatenate([np.asarray(prompt, np.int32), np.asarray(output, np.int32)])
                self.ngram_corpus.begin(request.rid, text)
        return super()._prepare_draft_tokens(batch)

    def close(self) -> None:
        """End all requests, save what was learned, and end the threads. SGLang does not call it; exits also save."""
        self.ngram_corpus.reset()
        if self._saver is not None:
            self._saver.close()
        if isinstance(self._drafter, Background):
            self._drafter.close()

    def _open_corpus(self, *, draft_token_num: int, max_trie_depth: int, **_options: Any) -> Corpus:
        """Return our corpus; options of NGRAM's trie do not apply to it."""
        settings, model = read_settings(os.environ), self._target.model_config
        vocabulary = int(model.vocab_size)
        fingerprint = tokenizer_fingerprint(getattr(self._target, "tokenizer", None), vocabulary)
        self._drafter = drafter = settings.build(vocabulary=vocabulary, tokenizer=fingerprint)
        may_save = load_memory(drafter, memory=settings.memory, corpus=settings.corpus)
        ends = getattr(model, "hf_eos_token_id", None) or ()
        corpus = Corpus(
            drafter, vocabulary=vocabulary, width=draft_token_num, tail=max_trie_depth, ends=frozenset(map(int, ends))
        )
        self._saver: BackgroundSaver | None = None
        first = get_parallel().tp_rank == 0
        if may_save and first and settings.memory is not None and isinstance(drafter, Persistent):
            rows = corpus.rows
            self._saver = BackgroundSaver(
                drafter, settings.memory, every=settings.save_seconds, learned=lambda: rows.learned
            )
        return corpus


@contextmanager
def _corpus_replaced(factory: Any) -> Iterator[None]:
    """Make the base class build another corpus: compiling its own takes half a minute and reserves a gigabyte."""
    own = ngram_worker.NgramCorpus
    ngram_worker.NgramCorpus = factory
    try:
        yield
    finally:
        ngram_worker.NgramCorpus = own
