"""Loads a GGUF file for Speculant's own passes: the model with its generation config, and the tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speculant.core.errors import TokenizerError, UsageError
from speculant.engines.hf.quantized.gguf.file import open_gguf
from speculant.engines.hf.quantized.gguf.model import read_weights
from speculant.engines.hf.quantized.gguf.plan import DTYPES, GgufPlan, count_kinds, plan_gguf
from speculant.engines.hf.quantized.gguf.tokenizer import Vocabulary, build_tokenizer, read_vocabulary
from speculant.engines.hf.quantized.release import check_release

ACTIVATIONS = ("int8", "float")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlannedModel:
    """A checked file that Speculant's own passes can run; its weights are not read yet.

    Attributes:
        plan: mapping of the file's tensors to the model.
        vocabulary: vocabulary of the file; None if it has none.
    """

    plan: GgufPlan
    vocabulary: Vocabulary | None

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about the file for the user."""
        ignored = self.plan.ignored
        if not ignored:
            return ()
        rest = f" and {len(ignored) - 3} more" if len(ignored) > 3 else ""
        return (f"tensors of the file that the model does not use: {', '.join(ignored[:3])}{rest}.",)

    def load(
        self, *, activations: str | None = None, advance: Callable[[int], object] | None = None
    ) -> tuple[Any, Any]:
        """Return the model, and its tokenizer or None. Call it only once.

        Args:
            activations: whether products of quantised matrices round their inputs to 8 bits ("int8", the default), as
                in llama.cpp, or keep them ("float").
            advance: called with the number of further bytes read; the total is `plan.read_bytes`.

        Raises:
            UsageError: `activations` has another value.
            ModelError: the tokenizer or a weight is damaged.
            OutOfMemoryError: there is not enough memory.
        """
        from transformers import GenerationConfig

        if activations not in (None, *ACTIVATIONS):
            raise UsageError(f"activations must be {' or '.join(ACTIVATIONS)}, not {activations!r}.")
        tokenizer = None if self.vocabulary is None else build_tokenizer(self.vocabulary)
        model = read_weights(self.plan, activations="float" if activations == "float" else "int8", advance=advance)
        config = model.config
        ends = list(self.vocabulary.ends) if self.vocabulary is not None else config.eos_token_id
        model.generation_config = GenerationConfig(
            bos_token_id=config.bos_token_id, eos_token_id=ends or None, pad_token_id=config.pad_token_id
        )
        config.weight_kinds = count_kinds(self.plan)  # used for the latency of passes
        return model, tokenizer


def load_gguf_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a GGUF file, without its model.

    Raises:
        TokenizerError: it has none.
        ModelError, UnsupportedError: the file is damaged, or its tokenizer is of an unknown kind.
    """
    vocabulary = read_vocabulary(open_gguf(path))
    if vocabulary is None:
        raise TokenizerError(f"{path} has no tokenizer. Name the folder or the file of one.")
    return build_tokenizer(vocabulary)


def plan_model(path: str | Path, *, dtype: str | None = None, attention: str | None = None) -> PlannedModel:
    """Read and check a file, except for its weights and token scores.

    Args:
        path: path of a GGUF file; for a split model, of any of its files.
        dtype: dtype of float weights, activations and cache: "float32" (the default) or "bfloat16".
        attention: transformers' attn_implementation; None for its default.

    Raises:
        ModelNotFoundError, FileError: there is no such file, or it cannot be read.
        ModelError: the file is damaged.
        UnsupportedError: Speculant's own passes cannot run it.
        UsageError: another dtype.
    """
    check_release()
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"GGUF files run in {' or '.join(DTYPES)}, not in '{dtype}'.")
    file = open_gguf(path)
    plan = plan_gguf(file, dtype=DTYPES[dtype or "float32"], attention=attention)
    return PlannedModel(plan=plan, vocabulary=read_vocabulary(file))
