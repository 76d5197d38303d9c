"""Options for loading and running a GGUF model: threads, offloading, context, attention and cache types."""

from __future__ import annotations

from dataclasses import dataclass

from speculant.core.errors import UsageError

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
MAX_SEQUENCES = 256  # llama.cpp's limit
DEFAULT_CONTEXT = 4096
DEFAULT_SEQUENCES = 128
DEFAULT_STATES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppOptions:
    """Options of a GGUF model; None selects a value for the model and the machine.

    Attributes:
        threads: number of threads for passes on the CPU; None for torch's number.
        gpu_layers: number of layers on an accelerator; None for all if llama.cpp was built for one, else none.
        context: maximum tokens of a text; None for the model's positions, at most 4096.
        cache_tokens: capacity of the cache in tokens of all texts together; None for `context`. Batches of long texts
            need more.
        flash_attention: None for off on a CPU and llama.cpp's own choice elsewhere. It rounds to float16.
        cache_type: dtype of keys and values, see `CACHE_TYPES`; None for f32 on a CPU and f16 elsewhere.
        sequences: maximum number of sequences in the cache: a text takes one, a draft one for each of its leaves beyond
            the first. At most 256; each costs memory for a row of logits. If layers keep a recurrent state, each
            sequence has one of its own and a draft needs a copy, so a text takes two. None for 128, or 16 with such
            layers.
        mmap: whether the weights are mapped from the file rather than read.
    """

    threads: int | None = None
    gpu_layers: int | None = None
    context: int | None = None
    cache_tokens: int | None = None
    flash_attention: bool | None = None
    cache_type: str | None = None
    sequences: int | None = None
    mmap: bool = True

    def __post_init__(self) -> None:
        for name, minimum in (("threads", 1), ("gpu_layers", 0), ("context", 2), ("cache_tokens", 2), ("sequences", 2)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
                raise UsageError(f"{name} must be a whole number of at least {minimum}, not {value!r}.")
        if self.sequences is not None and self.sequences > MAX_SEQUENCES:
            raise UsageError(f"llama.cpp supports at most {MAX_SEQUENCES} sequences, not {self.sequences}.")
        if self.flash_attention is not None and not isinstance(self.flash_attention, bool):
            raise UsageError(f"flash_attention must be True, False or None, not {self.flash_attention!r}.")
        if self.cache_type is not None and self.cache_type not in CACHE_TYPES:
            raise UsageError(f"cache_type must be one of {', '.join(CACHE_TYPES)}, not {self.cache_type!r}.")
