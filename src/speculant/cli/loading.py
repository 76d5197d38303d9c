"""Creates a model and a speculator from options."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.api.loading import (
    find_draft_model,
    find_model,
    is_bundled,
    load_config,
    load_model,
    means_bundled,
)
from speculant.cli.compiling import compilation_announced
from speculant.cli.gguf_loading import (
    is_gguf_model,
    load_gguf_model,
    open_gguf_model,
)
from speculant.cli.head_file import read_head
from speculant.cli.loading_checks import (
    check_device,
    check_draft_encoders,
    check_drafting,
    check_keeps,
    check_named,
    writes_memory,
)
from speculant.cli.settings import build_settings
from speculant.cli.terminal import importing, say, waiting
from speculant.core.errors import FileError, MemoryFileError, UnsupportedError
from speculant.core.hub import asking, title
from speculant.options.drafting import DraftingOptions
from speculant.options.model import BUNDLED, ModelOptions
from speculant.registry import check_verifier, default_method, find_method

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.drafters.heads.drafter import LoadedHead


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded speculator, ready to decode.

    Attributes:
        speculator: the speculator with its memory loaded.
        memory: file to save to; None if there is none, or if it could not be read and must not be overwritten.
        settings: the drafter's settings, or None for the defaults.
        threads: description of the thread count.
        verifier: name of the acceptance rule, or None for the method's own.
        head: the given head, or the one that came with the model; or None.
        start: memory file that a method that saves none began with; or None.
    """

    speculator: Speculator
    memory: str | None
    settings: Any
    threads: str
    verifier: str | None = None
    head: LoadedHead | None = None
    start: str | None = None


def load_speculator(
    loading: ModelOptions, drafting: DraftingOptions, *, texts: int = 1, adapter: str | None = None
) -> Loaded:
    """Load a model and wrap it.

    Args:
        loading, drafting: the options.
        texts: number of texts decoded together.
        adapter: folder or hub id of a LoRA adapter to merge into its weights; None for none.

    Raises:
        SpeculantError: the method, its settings, its acceptance rule or a model cannot be used.
    """
    named = check_drafting(drafting)
    check_named(loading, drafting)
    named_drafts = drafting.draft_model or ()
    with importing("PyTorch and transformers"):
        found = None if drafting.head is None else read_head(drafting.head, named)
        own = None if found is None else found.format.method
        method = named or find_method(
            default_method(
                own,
                verifier=drafting.verifier,
                online=bool(drafting.online),
                settings=drafting.settings,
                draft_model=bool(named_drafts),
            )
        )
        check_keeps(method, drafting)
        check_verifier(method.name, drafting.verifier, lossy=drafting.lossy)
        settings = build_settings(method, drafting.settings or ())
        bundled = is_bundled(loading.model)
        method.check_draft_model(given=(method.takes_draft_model and bundled) or bool(named_drafts))
        if len(named_drafts) > 1:
            method.check_several()  # before models are loaded
        if found is not None or not (bundled or ({"mtp", "*"} & {*method.heads} and has_own_head(loading.model))):
            method.check_head(None if found is None else found.format.kind)
        if found is not None and not is_gguf_model(loading.model):
            found.check(find_model(loading.model))
        if named_drafts:
            check_draft_encoders(loading.model, named_drafts)
        from speculant.api.engine_checks import check_engine_can, find_layer_use
        from speculant.api.speculator import Speculator
    model, tokenizer, threads = load(loading, needed=find_layer_use(method=method.name, head=found))
    if adapter is not None:
        from speculant.engines.hf.lora import merge_adapter

        model = merge_adapter(model, adapter)
    check_engine_can(model, method=method.name, head=found)
    drafts = [load_draft_model(name, drafting, loading) for name in named_drafts]
    head = None if found is None else found.open(model)
    options = {} if settings is None else {"settings": settings}
    with compilation_announced():
        speculator = Speculator.from_transformers(
            model,
            find_processor(loading.model, model) or tokenizer,
            method=None if named is None and found is None else method.name,
            verifier=drafting.verifier,
            lossy=drafting.lossy,
            draft_model=[each for each, _ in drafts] if len(drafts) > 1 else drafts[0][0] if drafts else None,
            draft_tokenizer=[each for _, each in drafts] if len(drafts) > 1 else drafts[0][1] if drafts else None,
            head=head,
            online=drafting.online,
            nodes=drafting.nodes,
            memory_limit=drafting.memory_limit,
            base=drafting.base,
            fast=loading.fast,
            share=drafting.share,
            strict=drafting.strict,
            **options,
        )
        speculator.probe(texts)
        memory = start = None
        if drafting.memory is not None and not writes_memory(method, drafting):
            speculator.load(drafting.memory)
            start = drafting.memory
            say(f"{start} is only read: the method '{method.name}' starts from it and saves nothing.")
        elif drafting.memory is not None and recall(speculator, drafting.memory):
            memory = drafting.memory
    if not speculator.engine.capabilities.drafts:
        say(speculator.engine.capabilities.notes[-1])
    head = head or getattr(speculator.drafter, "head", None)
    return Loaded(speculator, memory, settings, threads, drafting.verifier, head, start)


def find_processor(name: str | None, model: Any) -> Any:
    """Return the processor of a model that takes images or other media; None for others and for GGUF files."""
    if is_gguf_model(model_source(name)):
        return None
    from speculant.api.loading import load_processor

    return load_processor(model_source(name), model)


def has_own_head(name: str | None) -> bool:
    """Return whether a model's checkpoint has MTP layers, without loading it.

    Raises:
        ModelNotFoundError: there is no such model, or its checkpoint is damaged.
    """
    if name is None or is_gguf_model(name):
        return False
    from speculant.api.native_heads import ships_head

    return ships_head(name, load_config(name))


def load(loading: ModelOptions, *, needed: str = "") -> tuple[Any, Any, str]:
    """Load a model; return it, its tokenizer or None, and a description of the thread count.

    Args:
        loading: loading options.
        needed: why it must run on transformers rather than llama.cpp; "" if it need not.

    Raises:
        ModelError: it cannot be loaded.
        UsageError: there is no such device or dtype, or it does not apply to the model.
        UnsupportedError: it is a GGUF file that Speculant's own passes cannot run, and they are needed.
    """
    name = model_source(loading.model)
    check_named(loading)
    if name is not None and is_gguf_model(name):
        with importing("PyTorch and transformers"):
            silence_loading()
        return load_gguf_model(name, loading, needed=needed)
    with importing("PyTorch and transformers"):
        check_device(loading.device)
        silence_loading()
        from transformers import AutoModelForCausalLM  # noqa: F401  (imported here, where the user sees a reason)

        from speculant.engines.hf.engine import HFEngine  # noqa: F401
    if name is not None and not Path(name).exists():
        say(asking(name))
    with waiting(f"loading {loading.model or 'the bundled model'}"):
        model, tokenizer = load_model(name, **model_keywords(loading))
    if (summary := getattr(model, "quantized_summary", None)) is not None:
        say(str(summary))
    return model, tokenizer, set_threads_for(model, loading.threads)


def model_keywords(loading: ModelOptions) -> dict[str, Any]:
    """Return the loading options of `load_model` and `Speculator.from_pretrained`."""
    names = ("dtype", "device", "attention", "quantize", "packed_cache", "activations")
    return {name: getattr(loading, name) for name in names}


def load_draft_model(name: str, drafting: DraftingOptions, loading: ModelOptions) -> tuple[Any, Any]:
    """Load one of the draft models, with the target's dtype and device unless others are given.

    Returns:
        The model, and its tokenizer or None.

    Raises:
        ModelError: it cannot be loaded.
        UsageError: there is no such device or dtype.
    """
    device = drafting.draft_device or loading.device
    check_device(drafting.draft_device, option="--draft-device")
    if is_gguf_model(name):
        placed = replace(loading, model=name, dtype=drafting.draft_dtype or loading.dtype, device=device, engine="auto")
        return open_gguf_model(name, placed, needed="draft models run on Speculant's own passes")
    with waiting(f"loading {name}"):
        return load_model(find_draft_model(name), dtype=drafting.draft_dtype or loading.dtype, device=device)


def set_threads_for(model: Any, asked: int | None) -> str:
    """Set the number of threads; see `cli.threads`."""
    from speculant.cli.threads import set_threads

    return set_threads(model, asked)


def model_source(name: str | None) -> str | None:
    """Return a folder or hub id; None for the bundled model, named "bundled" unless there is a folder of that name."""
    return None if means_bundled(name) else name


def model_title(name: str | None) -> str:
    """Return a short name for a model: a hub id, or a folder without its path."""
    if name is None or model_source(name) is None:
        return "the bundled story model"
    return title(name)


def model_name(name: str | None) -> str:
    """Return a machine-independent name for a model: a hub id, a folder without its path, or "bundled"."""
    return BUNDLED if name is None or model_source(name) is None else model_title(name)


def recall(speculator: Speculator, memory: str) -> bool:
    """Load a memory file if it exists; an unusable file causes a warning, since text does not depend on the memory.

    Returns:
        Whether the memory may be saved there: a file that could not be read is not overwritten.
    """
    try:
        if Path(memory).exists():
            speculator.load(memory)
    except (MemoryFileError, FileError, UnsupportedError) as error:
        say(f"warning: {error} Drafting begins with an empty memory; the file is left unchanged and nothing is saved.")
        return False
    return True


def silence_loading() -> None:
    """Hide the progress bars and messages of transformers and the hub's client."""
    from transformers.utils import logging as transformers_logging

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
