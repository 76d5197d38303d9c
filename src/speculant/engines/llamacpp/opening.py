"""Selects the kind of cache for a sequence on a GGUF model."""

from __future__ import annotations

from collections.abc import Sequence

from speculant.engines.llamacpp.context import LlamaContext
from speculant.engines.llamacpp.replay_cache import LlamaReplayCache
from speculant.engines.llamacpp.target_cache import LlamaTargetCache
from speculant.engines.llamacpp.texts import LlamaText
from speculant.engines.llamacpp.tree_cache import LlamaTreeCache


def open_sequence(context: LlamaContext, prompt: Sequence[int], *, text: LlamaText | None = None) -> LlamaTargetCache:
    """Return a new sequence that has read nothing but the given text; see `LlamaTargetCache`."""
    kind = LlamaReplayCache if context.model.states else LlamaTreeCache
    return kind(context, prompt, text=text)
