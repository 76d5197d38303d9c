"""Speculator: a decoder from a loaded model, from a name, or from a GGUF file."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.api.decoder import Decoder
from speculant.api.loading import load_model, load_processor
from speculant.api.options import make_drafting_options
from speculant.drafters.checked import add_checks
from speculant.options.drafting import DraftingKeywords
from speculant.registry import find_method

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Speculator(Decoder):
    """A decoder with constructors for a loaded model, a folder or hub id, and a GGUF file."""

    @classmethod
    def from_transformers(
        cls,
        model: Any,
        tokenizer: Any = None,
        **options: Unpack[DraftingKeywords],
    ) -> Speculator:
        """Wrap a loaded model.

        Args:
            model: a transformers causal LM, or a PEFT model around one.
            tokenizer: its tokenizer; without one prompts must be ids, and results have no text. For models that take
                images or other media, their processor, which holds the tokenizer.
            options: fields of `DraftingOptions`, which describes them.

        Raises:
            UnknownMethodError, UsageError, UnsupportedError: the method, the model or an option cannot be used.
            MemoryFileError: the memory file cannot be used.
        """
        from speculant.api.drafting import open_drafting  # imported here, since these load transformers
        from speculant.api.first_start import compiled_beside, late_warm_ups
        from speculant.api.media_prompts import split_processor

        tokenizer, processor = split_processor(tokenizer)
        asked = make_drafting_options(options)
        with compiled_beside(*late_warm_ups(asked)):
            drafting = open_drafting(model, tokenizer, asked)
            speculator = cls(
                model,
                tokenizer,
                drafting.drafter,
                method=drafting.method,
                options=asked,
                verifier=drafting.verifier,
                notes=drafting.notes,
                bases=drafting.bases,
                processor=processor,
            )
        if asked.memory is not None and Path(asked.memory).exists():
            speculator.load(asked.memory)
        return speculator

    @classmethod
    def from_pretrained(
        cls,
        name: str | None = None,
        *,
        dtype: str | None = None,
        device: str | None = None,
        attention: str | None = None,
        quantize: str | None = None,
        packed_cache: bool | None = None,
        activations: str | None = None,
        **options: Unpack[DraftingKeywords],
    ) -> Speculator:
        """Load a model from a folder or the hub (None: the bundled story model) and wrap it.

        Args:
            name, dtype, device, attention, quantize, packed_cache, activations: see
                `speculant.api.loading.load_model`.
            options: fields of `speculant.options.drafting.DraftingOptions`.
        """
        check_before_loading(options)
        model, tokenizer = load_model(
            name,
            dtype=dtype,
            device=device,
            attention=attention,
            quantize=quantize,
            packed_cache=packed_cache,
            activations=activations,
        )
        return cls.from_transformers(model, load_processor(name, model) or tokenizer, **options)

    @classmethod
    def from_gguf(
        cls,
        path: str | Path,
        *,
        engine: str = "auto",
        dtype: str | None = None,
        attention: str | None = None,
        activations: str | None = None,
        threads: int | None = None,
        gpu_layers: int | None = None,
        context: int | None = None,
        cache_tokens: int | None = None,
        flash_attention: bool | None = None,
        cache_type: str | None = None,
        sequences: int | None = None,
        mmap: bool = True,
        **drafting: Unpack[DraftingKeywords],
    ) -> Speculator:
        """Load a GGUF file, weights, tokenizer and chat template, and wrap it.

        On CPUs, Speculant's own passes run it as a transformers model whose quantised weights stay packed. llama.cpp
        runs other architectures, and layers on accelerators; trained heads and methods that run part of the target's
        layers need Speculant's own passes. The choice and its reason are logged by `speculant.gguf`.

        Args:
            path: path of the file; for a split model, of any of its files.
            engine: "speculant", "llamacpp", or "auto" for Speculant's own passes if they support the file and are
                faster.
            dtype: dtype of Speculant's own passes: "float32" (the default) or "bfloat16".
            attention: transformers' attn_implementation; None for its default.
            activations: "int8" rounds inputs of quantised weights as llama.cpp does, "float" keeps them; None for int8.
            threads: number of threads for passes on the CPU; None for PyTorch's. With Speculant's own passes this sets
                PyTorch's number.
            gpu_layers, context, cache_tokens, flash_attention, cache_type, sequences, mmap: options of llama.cpp, see
                `engines.llamacpp.options.LlamaCppOptions`.
            drafting: fields of `speculant.options.drafting.DraftingOptions`.

        Raises:
            ModelNotFoundError, ModelError: the file does not exist, or is damaged.
            UnsupportedError: the engine cannot run it, llama.cpp is needed but not installed, or drafts cannot be
                verified on this model.
            UsageError: an option of one engine was given for the other.
            OutOfMemoryError: it does not fit.
        """
        import torch

        from speculant.api.engine_checks import find_layer_use
        from speculant.api.gguf_engine import choose_engine
        from speculant.engines.llamacpp.options import LlamaCppOptions
        from speculant.engines.llamacpp.request_model import load_gguf

        check_before_loading(drafting)
        options = LlamaCppOptions(
            threads=threads,
            gpu_layers=gpu_layers,
            context=context,
            cache_tokens=cache_tokens,
            flash_attention=flash_attention,
            cache_type=cache_type,
            sequences=sequences,
            mmap=mmap,
        )
        defaults = LlamaCppOptions(threads=threads)
        given = {each.name: getattr(options, each.name) for each in fields(options)}
        chosen = choose_engine(
            path,
            engine=engine,
            dtype=dtype,
            attention=attention,
            own={"activations": activations, "fast": drafting.get("fast") or None},
            llamacpp={name: None if value == getattr(defaults, name) else value for name, value in given.items()},
            needed=find_layer_use(method=drafting.get("method"), head=drafting.get("head")),
        )
        logging.getLogger("speculant.gguf").info(chosen.reason)
        if chosen.planned is None:
            model, tokenizer = load_gguf(path, options)
        else:
            if threads is not None:
                torch.set_num_threads(threads)
            model, tokenizer = chosen.planned.load(activations=activations)
        return cls.from_transformers(model, tokenizer, **drafting)


def check_before_loading(options: DraftingKeywords) -> None:
    """Check the options as far as possible before a model is loaded.

    Raises:
        UnknownMethodError, UsageError: there is no such option, method or drafter.
    """
    asked = make_drafting_options(options)
    if asked.method is not None:
        find_method(asked.method)
    if asked.drafter is not None:
        add_checks(asked.drafter)
