"""Speculator: a decoder from a loaded model, from a name, or from a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speculant.api.bases import AUTOMATIC, Base, open_bases
from speculant.api.decoder import Decoder
from speculant.api.draft_caches import check_merged, drafts_of
from speculant.api.engines import can_verify, check_engine_can
from speculant.api.loading import bundled_head_folder, load_model, means_bundled
from speculant.api.options import check_alone, check_bytes, check_model_object, check_nodes
from speculant.core.drafter import MEMORY_LIMIT, Drafter, Persistent
from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.checked import checked
from speculant.engines.hf.capabilities import optional_layers
from speculant.engines.hf.cpu.accelerate import Acceleration
from speculant.engines.hf.sparse_cache import whole_cache_reason
from speculant.engines.llamacpp.options import LlamaCppOptions
from speculant.engines.llamacpp.request_model import load_gguf
from speculant.memory.fingerprint import tokenizer_fingerprint
from speculant.registry import build_verifier, find_method, method_of
from speculant.sharing.opening import check_sharing, open_sharing


class Speculator(Decoder):
    """A decoder, and the ways to make one: from a loaded model, from a folder or the hub, or from a GGUF file."""

    @classmethod
    def from_transformers(
        cls,
        model: Any,
        tokenizer: Any = None,
        *,
        method: str | None = None,
        verifier: str | None = None,
        lossy: bool = False,
        nodes: int | str | None = None,
        memory: str | Path | None = None,
        memory_limit: int | float | str = MEMORY_LIMIT,
        base: Base | Sequence[Base] | None = AUTOMATIC,
        settings: Any = None,
        draft_model: Any = None,
        draft_tokenizer: Any = None,
        head: Any = None,
        online: Any = None,
        fast: bool | Acceleration | None = None,
        share: Any = None,
        strict: bool = False,
        drafter: Drafter | None = None,
    ) -> Speculator:
        """Wrap a loaded model.

        Args:
            model: a transformers causal LM, or a PEFT model around one.
            tokenizer: its tokenizer; without one prompts must be ids, and results have no text.
            method: a name from `speculant methods`; None for the head's own, or "mix" without a head. Where the model's
                checkpoint has MTP layers of its own they are the head, united with `mix`; a named method leaves them
                out unless it drafts with a head.
            verifier: an acceptance rule, with settings as in "typical:epsilon=0.1"; None for the method's own.
            lossy: whether the rule may change the output.
            nodes: most nodes per draft; "auto", the default, for as many as pay in each round, up to 64, by measured
                pass latency and acceptance.
            memory: a memory file to begin with, if it exists.
            memory_limit: bytes the drafter's memory may take, as a number or as text such as "1GB".
            base: frozen bases under the memory of `mix`, which `speculant corpus build --kind mix-base` makes: a file
                or several; "bundled" for the one of stories that comes with the package; "auto" for those of the user's
                folder that fit the tokenizer, and the bundled one if it fits; None for none. They are mapped read-only
                and count for nothing in the limit.
            settings: of the method's drafter, such as `MixSettings`, or a dict of some of them; None for its defaults.
            draft_model: for methods that require one: a smaller model, loaded or by name; None for the bundled draft
                model where the target is the bundled model. Where its tokenizer is another one it drafts the tokens
                that both have; `stats.notes` says how many. A list for `specinfer`, which merges what they draft.
                Speculators of one model may share one that is prepared: `open_draft_caches(draft_model, vocabulary)`.
            draft_tokenizer: the draft model's tokenizer, or a list of them; None for what is loaded with a name.
            head: for methods that require one: a trained head, by folder or hub id, "bundled" for the bundled model's,
                or what `open_head` returned. Its format is detected; None for the bundled one where the target is the
                bundled model.
            online: True, or `training.online.settings.OnlineSettings` or a dict of some of them, to distil the draft
                model or head to the target while requests are served. Its weights are changed in place, and saved as
                the memory. Lossless like all drafting; updates run in a thread, which `close` ends.
            fast: whether passes run the library's own code, on CPUs, or CUDA graphs; None: on CPUs, where it is faster.
                Where it cannot be, `stats.notes` says why. Speculators of one model may share what was prepared:
                `fast=other.fast`.
            share: a store through which replicas learn from each other what they decode, such as
                "redis://host:6379?tenant=NAME", or a `speculant.sharing.channel.Channel`; for methods whose memory
                learns from text. Its failure costs drafts, never text; `close` ends its threads.
            strict: whether to refuse a model that drafts cannot be verified on; else it is decoded plainly, without
                what the method would load for drafting, and `stats.notes` says so.
            drafter: one of your own, a `speculant.core.drafter.Drafter`, in place of a method; it is made already, so
                options that make one are refused beside it.

        Raises:
            UnknownMethodError, UsageError, UnsupportedError: the method, the model or an option cannot be used.
            MemoryFileError: the memory file cannot be used.
        """
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
            from speculant.api.heads import open_head  # here, since most methods need none of the kinds of heads

            opened = open_head(head, model, fast=compiled)
        elif not online and all(each is None for each in (method, drafter, settings, draft_model, share)):
            from speculant.api.native_heads import find_native_head

            opened, notes = find_native_head(model, fast=compiled)
        method = method or ("mix" if opened is None else opened.method)
        found = find_method(method) if drafter is None else method_of(drafter.inner)
        method = found.name
        if opened is None and found.heads:
            from speculant.api.heads import own_head

            opened = own_head(found, model, fast=compiled)
        check_nodes(nodes)
        if not (fast is None or isinstance(fast, bool | Acceleration)):
            raise UsageError(f"fast must be True, False, None or another speculator's acceleration, not {fast!r}.")
        keeps = found.keeps_memory if drafter is None else isinstance(drafter, Persistent)
        if memory is not None and not keeps and not online:
            raise UnsupportedError(f"the method '{method}' keeps no memory; leave out `memory`, or use 'mix'.")
        if share is not None:
            check_sharing(found)
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        drafts = drafts_of(found, model, tokenizer, draft_model, draft_tokenizer)
        rule = build_verifier(found, verifier, lossy=lossy)
        fingerprint = tokenizer_fingerprint(tokenizer, vocabulary)
        bases = open_bases(found, base, vocabulary=vocabulary, tokenizer=fingerprint)
        drafter = drafter or found.build(
            vocabulary=vocabulary,
            tokenizer=fingerprint,
            memory_limit=check_bytes(memory_limit),
            bases=bases,
            settings=settings,
            open_cache=None if not drafts else drafts if len(drafts) > 1 else drafts[0],
            translation=drafts[0].pair.translation if drafts else None,
            layers=optional_layers(model) if found.takes_layers else 0,
            whole_cache=whole_cache_reason(model) if found.takes_rows else "",
            head=opened,
            sampled=rule.sampled,
        )
        if len(drafts) > 1:
            check_merged(verifier, lossy=lossy)
        if online:
            from speculant.api.online import open_online

            drafter = open_online(
                drafter, online, target=model, method=found, drafts=drafts, head=opened, tokenizer=fingerprint
            )
        if share is not None:
            drafter = open_sharing(drafter, share, method=found, tokenizer=fingerprint, vocabulary=vocabulary)
        notes = (*(note for each in drafts for note in each.notes), *(opened.notes if opened else notes))
        speculator = cls(
            model,
            tokenizer,
            drafter,
            method=method,
            verifier=rule,
            nodes=nodes,
            fast=fast,
            notes=notes,
            bases=bases,
            strict=strict,
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
        method: str | None = None,
        verifier: str | None = None,
        lossy: bool = False,
        nodes: int | str | None = None,
        memory: str | Path | None = None,
        memory_limit: int | float | str = MEMORY_LIMIT,
        base: Base | Sequence[Base] | None = AUTOMATIC,
        settings: Any = None,
        draft_model: Any = None,
        draft_tokenizer: Any = None,
        head: Any = None,
        online: Any = None,
        fast: bool | Acceleration | None = None,
        share: Any = None,
        strict: bool = False,
        drafter: Drafter | None = None,
    ) -> Speculator:
        """Load a model from a folder or the hub (None: the bundled story model) and wrap it.

        Args:
            name, dtype, device, attention: see `speculant.api.loading.load_model`.
            method, verifier, lossy, nodes, memory, memory_limit, base, settings, fast, share: see `from_transformers`.
            draft_model, draft_tokenizer, head, online, strict, drafter: see there too.
        """
        if method is not None:
            find_method(method)
        if drafter is not None:
            checked(drafter)
        model, tokenizer = load_model(name, dtype=dtype, device=device, attention=attention)
        return cls.from_transformers(
            model,
            tokenizer,
            method=method,
            verifier=verifier,
            lossy=lossy,
            nodes=nodes,
            memory=memory,
            memory_limit=memory_limit,
            base=base,
            settings=settings,
            draft_model=draft_model,
            draft_tokenizer=draft_tokenizer,
            head=head,
            online=online,
            fast=fast,
            share=share,
            strict=strict,
            drafter=drafter,
        )

    @classmethod
    def from_gguf(
        cls,
        path: str | Path,
        *,
        threads: int | None = None,
        gpu_layers: int | None = None,
        context: int | None = None,
        cache_tokens: int | None = None,
        flash_attention: bool | None = None,
        cache_type: str | None = None,
        sequences: int | None = None,
        mmap: bool = True,
        method: str | None = None,
        verifier: str | None = None,
        lossy: bool = False,
        nodes: int | str | None = None,
        memory: str | Path | None = None,
        memory_limit: int | float | str = MEMORY_LIMIT,
        base: Base | Sequence[Base] | None = AUTOMATIC,
        settings: Any = None,
        draft_model: Any = None,
        draft_tokenizer: Any = None,
        online: Any = None,
        share: Any = None,
        strict: bool = False,
        drafter: Drafter | None = None,
    ) -> Speculator:
        """Load a GGUF file with llama.cpp, weights, tokenizer and chat template, and wrap it.

        Trained heads and methods that run a part of the target's layers need a model of transformers.

        Args:
            path: of the file.
            threads, gpu_layers, context, cache_tokens, flash_attention, cache_type, sequences, mmap: see
                `engines.llamacpp.options.LlamaCppOptions`.
            method, verifier, lossy, nodes, memory, memory_limit, base, settings: see `from_transformers`.
            draft_model, draft_tokenizer, online, share, strict, drafter: see there too.

        Raises:
            ModelNotFoundError, ModelError: there is no such file, or it is damaged.
            UnsupportedError: llama.cpp is not installed, or drafts cannot be verified on this model.
            OutOfMemoryError: it does not fit.
        """
        if method is not None:
            find_method(method)
        if drafter is not None:
            checked(drafter)
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
        model, tokenizer = load_gguf(path, options)
        return cls.from_transformers(
            model,
            tokenizer,
            method=method,
            verifier=verifier,
            lossy=lossy,
            nodes=nodes,
            memory=memory,
            memory_limit=memory_limit,
            base=base,
            settings=settings,
            draft_model=draft_model,
            draft_tokenizer=draft_tokenizer,
            online=online,
            share=share,
            strict=strict,
            drafter=drafter,
        )
