"""Speculator: a decoder from a loaded model, from a name, or from a GGUF file."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.api.bases import open_bases
from speculant.api.decoder import Decoder
from speculant.api.loading import bundled_head_folder, load_model, load_processor, means_bundled
from speculant.api.options import check_alone, check_model_object, check_nodes
from speculant.core.byte_size import MEMORY_LIMIT, check_bytes
from speculant.core.drafter import Persistent
from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.checked import checked
from speculant.memory.fingerprint import tokenizer_fingerprint
from speculant.options.drafting import DraftingKeywords, DraftingOptions
from speculant.registry import BuildContext, build_drafter, build_verifier, default_method, find_method, method_of

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
        from speculant.api.draft_caches import check_merged, drafts_of  # imported here, since these load the engine
        from speculant.api.engines import can_verify, check_engine_can
        from speculant.api.media_prompts import split_processor
        from speculant.engines.hf.caches.sparse_cache import whole_cache_reason
        from speculant.engines.hf.cpu.accelerate import CpuAcceleration
        from speculant.engines.hf.probe.capabilities import optional_layers
        from speculant.engines.hf.views.layer_parts import whole_layers_reason

        tokenizer, processor = split_processor(tokenizer)
        asked = DraftingOptions(**options)
        method, verifier, head, online, share = asked.method, asked.verifier, asked.head, asked.online, asked.share
        draft_model, draft_tokenizer, drafter = asked.draft_model, asked.draft_tokenizer, asked.drafter
        lossy, strict, fast, nodes, memory = asked.lossy, asked.strict, asked.fast, asked.nodes, asked.memory
        settings, memory_limit, base = asked.settings, asked.memory_limit, asked.base
        if drafter is not None:
            made = {"method": method, "settings": settings, "draft_model": draft_model, "head": head, "online": online}
            limit = None if memory_limit == MEMORY_LIMIT else memory_limit
            check_alone(made | {"share": share, "memory_limit": limit})
            drafter = checked(drafter)
        if means_bundled(head):
            head = bundled_head_folder(None if method is None else find_method(method))
        check_engine_can(model, method=method, head=head)
        check_model_object(model, tokenizer)
        if drafter is None and not strict and not can_verify(model):
            method = method or "mix"  # a memory is still loaded and saved
            method = method if find_method(method).replayable else "none"
            verifier, draft_model, draft_tokenizer, head, online, share = None, None, None, None, None, None
        compiled = fast is not False
        opened, notes = None, tuple[str, ...]()
        if head is not None:
            from speculant.api.heads import open_head  # imported here, since most methods need no head

            opened = open_head(head, model, fast=compiled)
        elif not online and all(each is None for each in (method, drafter, settings, draft_model, share)):
            from speculant.api.native_heads import find_native_head

            opened, notes = find_native_head(model, fast=compiled)
        if method is None:
            own = None if opened is None else opened.method
            method = default_method(own, verifier=verifier, online=bool(online), settings=settings)
        found = find_method(method) if drafter is None else method_of(drafter.inner)
        method = found.name
        if opened is None and found.heads:
            from speculant.api.heads import own_head

            opened = own_head(found, model, fast=compiled)
        check_nodes(nodes)
        if not (fast is None or isinstance(fast, bool | CpuAcceleration)):
            raise UsageError(f"fast must be True, False, None or another speculator's acceleration, not {fast!r}.")
        keeps = found.keeps_memory if drafter is None else isinstance(drafter, Persistent)
        if memory is not None and not keeps and not online:
            raise UnsupportedError(f"the method '{method}' keeps no memory; leave out `memory`, or use 'mix'.")
        if share is not None:
            from speculant.sharing.opening import check_sharing

            check_sharing(found)
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        drafts = drafts_of(found, model, tokenizer, draft_model, draft_tokenizer)
        rule = build_verifier(found, verifier, lossy=lossy)
        fingerprint = tokenizer_fingerprint(tokenizer, vocabulary)
        bases = open_bases(found, base, vocabulary=vocabulary, tokenizer=fingerprint)
        drafter = drafter or build_drafter(
            found,
            BuildContext(
                vocabulary=vocabulary,
                tokenizer=fingerprint,
                memory_limit=check_bytes(memory_limit),
                bases=bases,
                settings=settings,
                open_cache=None if not drafts else drafts if len(drafts) > 1 else drafts[0],
                translation=drafts[0].pair.translation if drafts else None,
                layers=optional_layers(model) if found.takes_layers else 0,
                whole_layers=whole_layers_reason(model) if found.takes_sublayers else "",
                whole_cache=whole_cache_reason(model) if found.takes_rows else "",
                head=opened,
                sampled=rule.sampled,
            ),
        )
        if len(drafts) > 1:
            check_merged(verifier, lossy=lossy)
        if online:
            from speculant.api.online import open_online

            drafter = open_online(
                drafter, online, target=model, method=found, drafts=drafts, head=opened, tokenizer=fingerprint
            )
        if share is not None:
            from speculant.sharing.opening import open_sharing

            drafter = open_sharing(drafter, share, method=found, tokenizer=fingerprint, vocabulary=vocabulary)
        notes = (*(note for each in drafts for note in each.notes), *(opened.notes if opened else notes))
        speculator = cls(
            model,
            tokenizer,
            drafter,
            method=method,
            options=asked,
            verifier=rule,
            notes=notes,
            bases=bases,
            processor=processor,
        )
        if memory is not None and Path(memory).exists():
            speculator.load(memory)
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

        from speculant.api.engines import find_layer_use
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
    asked = DraftingOptions(**options)
    if asked.method is not None:
        find_method(asked.method)
    if asked.drafter is not None:
        checked(asked.drafter)
