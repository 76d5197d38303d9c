"""A llama.cpp context: its KV cache, the sequences in it, and passes over rows.

One unified cache serves all texts: a sequence is a mark on its cells, so branches share common cells and keeping an
accepted path moves nothing. The logits of a pass stay in llama.cpp's own memory and are read there; they are valid
until the next pass.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.core.engine import MAX_NODES
from speculant.core.errors import ModelError, OutOfMemoryError, SpeculantError, UnsupportedError, UsageError
from speculant.engines.llamacpp.batch import BatchArrays, Rows
from speculant.engines.llamacpp.branches import Share
from speculant.engines.llamacpp.model import LlamaModel
from speculant.engines.llamacpp.options import DEFAULT_CONTEXT, DEFAULT_SEQUENCES, DEFAULT_STATES, LlamaCppOptions
from speculant.engines.llamacpp.texts import LlamaText

PASS_ROWS = 512  # maximum rows per call; besides the texts, drafts always have room for one call
_FULL = 1  # returned by llama_decode if there are no free cells
_NO_MEMORY = -2
_FLASH = {None: -1, False: 0, True: 1}


class LlamaContext:
    """The KV cache of a model and passes on it. Not thread-safe.

    Attributes:
        model: the model.
        positions: maximum tokens of a text.
        cells: capacity of the cache in tokens of texts.
        sequences: maximum number of texts and draft branches.
        flash_attention: whether it is used; None for llama.cpp's own choice.
        cache_type: dtype of keys and values.
    """

    def __init__(self, model: LlamaModel, options: LlamaCppOptions) -> None:
        """Allocate the cache.

        Raises:
            UsageError: the context is longer than the model's positions.
            UnsupportedError: llama.cpp does not support this cache type or attention for this model.
            OutOfMemoryError: it does not fit.
        """
        self.model, self._library = model, model.library
        self._api = api = self._library.api
        if options.context is not None and options.context > model.positions:
            raise UsageError(f"context is {options.context}, but the model has {model.positions} positions.")
        self.positions = options.context or min(model.positions, DEFAULT_CONTEXT)
        self.cells = options.cache_tokens or self.positions
        self.sequences = options.sequences or (DEFAULT_STATES if model.states else DEFAULT_SEQUENCES)
        exact = not model.offloaded
        self.flash_attention = False if options.flash_attention is None and exact else options.flash_attention
        self.cache_type = options.cache_type or ("f32" if exact else "f16")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = self.cells + PASS_ROWS, PASS_ROWS, PASS_ROWS
        params.n_seq_max, params.kv_unified, params.swa_full = self.sequences, True, True
        params.n_threads = params.n_threads_batch = model.threads
        params.flash_attn_type = _FLASH[self.flash_attention]
        params.type_k = params.type_v = getattr(api, f"GGML_TYPE_{self.cache_type.upper()}")
        params.no_perf = True
        self._library.log.clear()
        self._pointer = api.llama_init_from_model(model.pointer, params)
        if not self._pointer:
            raise self._why_not_opened()
        self._finalizer = weakref.finalize(self, _free, api, self._pointer, model)
        self._memory = api.llama_get_memory(self._pointer)
        self._batch = BatchArrays(api, PASS_ROWS)
        self._free_ids = list(range(self.sequences))[::-1]
        self._given_back: deque[int] = deque()  # ids of garbage-collected texts, added at any time
        self._texts: list[weakref.ref[LlamaText]] = []  # in the cache, least recently used first
        self._open_in: int | None = None  # the thread whose pass has rows neither kept nor dropped yet

    def _why_not_opened(self) -> SpeculantError:
        log = self._library.log
        if log.mentions("failed to allocate", "unable to allocate", "out of memory"):
            return OutOfMemoryError(
                f"there is no room for a cache of {self.cells} tokens in {self.cache_type}. Lower context or "
                "cache_tokens, or use a smaller cache_type."
            )
        return UnsupportedError(
            f"llama.cpp cannot run this model with cache_type={self.cache_type} and "
            f"flash_attention={self.flash_attention}: {log.reason() or 'it gives no reason'}."
        )

    def set_threads(self, threads: int) -> None:
        """Set the number of threads for further passes."""
        self.model.threads = threads
        self._api.llama_set_n_threads(self._pointer, threads, threads)

    def take(self, count: int, keep: Iterable[LlamaText] = ()) -> list[int]:
        """Return unused sequence ids; if there are too few, texts that are not in `keep` are evicted.

        Raises:
            UnsupportedError: there are still too few.
        """
        self._flush()
        protected = set(map(id, keep))
        while len(self._free_ids) < count and self._evict(protected):
            pass
        if len(self._free_ids) < count:
            raise UnsupportedError(
                f"the draft branches into {count} more sequences, but {len(self._free_ids)} are free. Draft fewer "
                "nodes, decode fewer texts together, or raise `sequences` (at most 256)."
            )
        return [self._free_ids.pop() for _ in range(count)]

    def give_back(self, ids: Iterable[int]) -> None:
        """Remove sequences from the cache and free their ids."""
        for sequence in ids:
            self.remove(sequence, 0)
            self._free_ids.append(sequence)

    def share(self, shares: Iterable[Share]) -> None:
        """Let sequences share cached rows of others."""
        for each in shares:
            self._api.llama_memory_seq_cp(self._memory, each.source, each.target, 0, each.end)

    def copy(self, source: int, target: int) -> None:
        """Make a sequence a copy of another.

        Rows and states are marked for both. A pass over either writes its state to its own cell, which it reads from
        where the other's is (llama-memory-recurrent.cpp, `find_slot`), so a copy takes no time.
        """
        self.remove(target, 0)
        self._api.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def adopt(self, source: int, target: int, start: int, end: int) -> None:
        """Let a sequence share another's rows at positions from `start` to before `end`."""
        self._api.llama_memory_seq_cp(self._memory, source, target, start, end)

    def remove(self, sequence: int, start: int) -> None:
        """Remove a sequence's rows from a position on; cells without any sequence become free."""
        self._api.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def cut(self, text: LlamaText, length: int) -> None:
        """Keep the first rows of a text, which is reread at its next use if they are not sure to be there."""
        if text.sequence is None:
            return
        if self.model.states or self.loses(text, length):
            self.drop(text)
        else:
            self.remove(text.sequence, length)

    def admit(self, text: LlamaText, keep: Sequence[LlamaText] = (), *, behind: int = 0) -> int:
        """Return the id of a text in the cache, rereading it if it was evicted.

        Args:
            text: the text to admit.
            keep: texts that must also stay.
            behind: number of its last tokens that need not be read.

        Raises:
            OutOfMemoryError: it does not fit.
        """
        if text.sequence is None:
            [sequence] = self.take(1, [text, *keep])
            text.sequence, text.behind = sequence, len(text.tokens)
            text.on_loss(weakref.finalize(text, self._given_back.append, sequence))
        if text.behind > behind:
            self._catch_up(text, [text, *keep])
        self._texts = [each for each in self._texts if each() not in (None, text)] + [weakref.ref(text)]
        return text.sequence

    def loses(self, text: LlamaText, length: int) -> bool:
        """Return whether some of the last rows before `length` may be gone, of a text that went on behind them.

        In cells of rows that no window reaches any more llama.cpp stores others, also with room for all (`swa_full`).
        """
        reached = len(text.tokens) + MAX_NODES
        return length < len(text.tokens) and 0 < self.model.window < reached

    def fork(self, text: LlamaText, length: int) -> LlamaText | None:
        """Return a new text that shares the first rows of another; None if these are gone, or the cache is full."""
        if text.sequence is None or length > len(text.tokens) or self.loses(text, length):
            return None
        try:
            [sequence] = self.take(1, [text])
        except UnsupportedError:  # all other sequences are in use
            return None
        self.adopt(text.sequence, sequence, 0, length)
        copy = LlamaText(self)
        copy.tokens, copy.sequence = text.tokens[:length], sequence
        copy.on_loss(weakref.finalize(copy, self._given_back.append, sequence))
        self._texts.append(weakref.ref(copy))
        return copy

    def text_bytes(self, text: LlamaText) -> int:
        """Return the bytes of a text's rows; 0 if it was evicted."""
        if text.sequence is None:
            return 0
        return int(self._api.llama_state_seq_get_size(self._pointer, text.sequence))

    def drop(self, text: LlamaText) -> None:
        """Remove a text from the cache; its tokens stay known."""
        if text.sequence is not None:
            sequence, text.sequence = text.sequence, None
            text.on_loss(None)
            self.give_back([sequence])

    def decode(self, rows: Rows, keep: Sequence[LlamaText]) -> Tensor:
        """Run a pass over at most `PASS_ROWS` rows; return the requested logits [n', V].

        They are in llama.cpp's own memory and valid until the next pass. If there are no free cells, texts that are not
        in `keep` are evicted.

        Raises:
            OutOfMemoryError: the cache or the device is full; nothing was appended.
            ModelError: llama.cpp failed; nothing was appended.
            UsageError: another thread is in the middle of a round on this model.
        """
        self._check_thread()
        self._flush()
        protected = set(map(id, keep))
        batch = self._batch.fill(rows)
        self._library.log.clear()
        code = self._api.llama_decode(self._pointer, batch)
        while code == _FULL and self._evict(protected):
            code = self._api.llama_decode(self._pointer, batch)
        if code:
            if code != _FULL and self.model.states:
                # A pass that fails midway may have moved the states of other texts.
                for text in filter(None, [held() for held in self._texts]):
                    self.drop(text)
            raise self._why_not_run(int(code), len(rows))
        wanted = sum(rows.outputs)
        return self._logits(wanted)

    def begin_round(self) -> None:
        """Record that the cache has rows that are neither kept nor dropped."""
        self._open_in = threading.get_ident()

    def end_round(self) -> None:
        """Record that all rows are kept or dropped."""
        self._open_in = None

    def _check_thread(self) -> None:
        if self._open_in not in (None, threading.get_ident()):
            raise UsageError(
                "another thread is decoding with this model, whose logits this pass would overwrite. Decode requests "
                "together with `Speculator.batch`, or load the model once for each thread."
            )

    def _why_not_run(self, code: int, rows: int) -> SpeculantError:
        if code == _FULL:
            return OutOfMemoryError(
                f"the cache of {self.cells} tokens has no room for a pass over {rows} rows. Decode fewer texts "
                "together, or raise cache_tokens."
            )
        reason = self._library.log.reason() or f"code {code}"
        if code == _NO_MEMORY:
            return OutOfMemoryError(
                f"llama.cpp had no memory for a pass over {rows} rows: {reason}. Draft fewer nodes, or use a smaller "
                "quantisation."
            )
        return ModelError(f"llama.cpp could not run a pass over {rows} rows: {reason}.")

    def _logits(self, rows: int) -> Tensor:
        """Return the logits of the last pass as a tensor that keeps this context alive."""
        vocabulary = self.model.vocabulary
        if not rows:
            return torch.empty(0, vocabulary)
        address = ctypes.cast(self._api.llama_get_logits(self._pointer), ctypes.c_void_p).value
        assert address is not None
        memory: Any = (ctypes.c_float * (rows * vocabulary)).from_address(address)
        memory.owner = self
        return torch.from_numpy(np.frombuffer(memory, np.float32).reshape(rows, vocabulary))

    def _catch_up(self, text: LlamaText, keep: Sequence[LlamaText]) -> None:
        """Read the tokens of a cached text that its sequence has not read; on failure, evict it."""
        assert text.sequence is not None
        tokens = text.tokens
        try:
            for start in range(len(tokens) - text.behind, len(tokens), PASS_ROWS):
                self.decode(Rows.plain(tokens[start : start + PASS_ROWS], start, text.sequence, wanted=0), keep)
        except BaseException:
            self.drop(text)
            raise
        text.behind = 0

    def _evict(self, protected: set[int]) -> bool:
        """Evict the least recently used text; return whether one could be evicted."""
        for place, held in enumerate(self._texts):
            text = held()
            if text is not None and text.sequence is not None and not text.open_rows and id(text) not in protected:
                del self._texts[place]
                self.drop(text)
                return True
        return False

    def _flush(self) -> None:
        """Remove the sequences of garbage-collected texts."""
        while self._given_back:
            self.give_back([self._given_back.popleft()])


def _free(api: Any, pointer: Any, _model: LlamaModel) -> None:
    """Free a context before its model, which is kept alive until then."""
    api.llama_free(pointer)
