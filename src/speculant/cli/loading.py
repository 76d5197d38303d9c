"""From options to a loaded model and a speculator, with messages about what cannot work before the long waits."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.compiling import compilation_announced
from speculant.cli.head_file import read_head
from speculant.cli.options import BUNDLED, DEFAULT_METHOD, Drafting, Loading
from speculant.cli.settings import build_settings
from speculant.cli.terminal import quick_imports, say, waiting
from speculant.core.errors import FileError, MemoryFileError, UnsupportedError, UsageError
from speculant.registry import check_verifier, find_method

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.drafters.heads.drafter import LoadedHead


@dataclass(frozen=True, slots=True)
class Loaded:
    """A speculator ready to decode.

    Attributes:
        speculator: with its memory loaded.
        memory: the file to save to; None if there is none, or if it was not understood and is left alone.
        settings: the drafter's, or None for the defaults.
        threads: how many there are and why.
        verifier: the name of the acceptance rule, or None for the method's own.
        head: the one that was named, or None.
    """

    speculator: Speculator
    memory: str | None
    settings: Any
    threads: str
    verifier: str | None = None
    head: LoadedHead | None = None


def load_speculator(loading: Loading, drafting: Drafting) -> Loaded:
    """Load a model and wrap it.

    Raises:
        SpeculantError: the method, its settings, its acceptance rule or a model cannot be used.
    """
    found = None if drafting.head is None else read_head(drafting.head)
    method = find_method(drafting.method or DEFAULT_METHOD if found is None else drafting.method or found.format.method)
    keeps = method.memory or drafting.online
    if drafting.memory is not None and not keeps:  # what is misspelled should not cost the loading of a model
        raise UnsupportedError(f"the method '{method.name}' keeps no memory; leave out --memory, or use --method mix.")
    check_verifier(method.name, drafting.verifier, lossy=drafting.lossy)
    if drafting.share is not None:
        from speculant.sharing.address import parse_address
        from speculant.sharing.opening import check_sharing

        check_sharing(method)
        parse_address(drafting.share)
    settings = build_settings(method, drafting.settings)
    from speculant.api.loading import is_bundled

    if is_gguf_model(loading.model):
        check_gguf_options(loading)
    bundled = is_bundled(model_source(loading.model))
    method.check_draft_model(given=(method.takes_draft_model and bundled) or bool(drafting.draft_models))
    if len(drafting.draft_models) > 1:
        method.check_several()  # before models are loaded
    if found is not None or not bundled:
        method.check_head(None if found is None else found.format.kind)
    model, tokenizer, threads = load(loading, gguf=True)
    from speculant.api.engines import check_engine_can

    check_engine_can(model, method=method.name, head=found)
    drafts = [load_draft_model(name, drafting, loading) for name in drafting.draft_models]
    head = None if found is None else found.open(model)
    from speculant.api.bases import AUTOMATIC
    from speculant.api.speculator import Speculator

    options = {} if settings is None else {"settings": settings}
    with compilation_announced():
        speculator = Speculator.from_transformers(
            model,
            tokenizer,
            method=method.name,
            verifier=drafting.verifier,
            lossy=drafting.lossy,
            draft_model=[each for each, _ in drafts] if len(drafts) > 1 else drafts[0][0] if drafts else None,
            draft_tokenizer=[each for _, each in drafts] if len(drafts) > 1 else drafts[0][1] if drafts else None,
            head=head,
            online=drafting.online,
            nodes=drafting.nodes,
            memory_limit=drafting.memory_limit << 20,
            base=AUTOMATIC if drafting.bases is None else drafting.bases,
            fast=loading.fast,
            share=drafting.share,
            **options,
        )
        memory = drafting.memory if drafting.memory is not None and recall(speculator, drafting.memory) else None
    return Loaded(speculator, memory, settings, threads, drafting.verifier, head)


def load(loading: Loading, *, gguf: bool = False) -> tuple[Any, Any, str]:
    """Load a model; return it, its tokenizer or None, and how many threads there are and why.

    Args:
        loading: what and how.
        gguf: whether it may be a GGUF file, which llama.cpp runs.

    Raises:
        ModelError: it cannot be loaded.
        UsageError: there is no such device or dtype, or it does not apply to the model.
        UnsupportedError: it is a GGUF file, and the command needs a model of transformers.
    """
    name = model_source(loading.model)
    if name is not None and is_gguf_model(name):
        if not gguf:
            raise UnsupportedError(
                "this command needs a model of transformers, and a GGUF file was named. generate, chat, check, tune "
                "and bench take GGUF files."
            )
        return load_gguf_model(name, loading)
    if name is not None and not Path(name).exists():
        say(f"there is no folder {name} here; asking the hub, which may take a while.")
    with waiting("loading PyTorch and transformers"), quick_imports():
        check_device(loading.device)
        quieten()
        from speculant.api.loading import load_model
        from speculant.api.speculator import Speculator  # noqa: F401  (imported here, where the user sees a reason)
    with waiting(f"loading {loading.model or 'the bundled model'}"):
        model, tokenizer = load_model(name, dtype=loading.dtype, device=loading.device, attention=loading.attention)
    return model, tokenizer, set_threads_for(model, loading.threads)


def load_gguf_model(name: str, loading: Loading) -> tuple[Any, Any, str]:
    """Load a GGUF file with llama.cpp; see `load`."""
    check_gguf_options(loading)
    with waiting("loading PyTorch and transformers"), quick_imports():
        quieten()
        from speculant.api.speculator import Speculator  # noqa: F401  (imported here, where the user sees a reason)
        from speculant.engines.llamacpp.request_model import load_gguf
    with waiting(f"loading {name}"):
        model, tokenizer = load_gguf(name)
    threads = set_threads_for(model, loading.threads)
    import torch

    model.context.set_threads(torch.get_num_threads())
    return model, tokenizer, threads


def is_gguf_model(name: str | None) -> bool:
    """Return whether a model is named by a GGUF file."""
    from speculant.engines.llamacpp.file import is_gguf

    return name is not None and not Path(name).is_dir() and is_gguf(name)


def check_gguf_options(loading: Loading) -> None:
    """Refuse options that a GGUF file has no use for.

    Raises:
        UsageError: one was given.
    """
    given = {
        "--dtype": loading.dtype,
        "--device": None if loading.device == "cpu" else loading.device,
        "--attn": loading.attention,
        "--fast": loading.fast,
    }
    for option, value in given.items():
        if value is not None:
            raise UsageError(
                f"{option} does not apply to a GGUF file, whose weights, device and attention are llama.cpp's. Leave "
                "it out; Speculator.from_gguf has options for offloading and the cache."
            )


def load_draft_model(name: str, drafting: Drafting, loading: Loading) -> tuple[Any, Any]:
    """Load one of the draft models, in the dtype and on the device of the target unless others are given.

    Returns:
        It, and its tokenizer or None.

    Raises:
        ModelError: it cannot be loaded.
        UsageError: there is no such device or dtype.
    """
    from speculant.api.loading import load_model

    device = drafting.draft_device or loading.device
    check_device(drafting.draft_device, option="--draft-device")
    with waiting(f"loading {name}"):
        return load_model(model_source(name), dtype=drafting.draft_dtype or loading.dtype, device=device)


def set_threads_for(model: Any, asked: int | None) -> str:
    """Set the number of threads; see `cli.threads`."""
    from speculant.cli.threads import set_threads

    return set_threads(model, asked)


def model_source(name: str | None) -> str | None:
    """Return a folder or hub id; None for the bundled model, which "bundled" names unless a folder is called so."""
    return None if name == BUNDLED and not Path(name).exists() else name


def model_title(name: str | None) -> str:
    """Return what people call a model: a hub id, or a folder without the path to it."""
    if name is None or model_source(name) is None:
        return "the bundled story model"
    return Path(name).resolve().name if Path(name).exists() else name


def model_name(name: str | None) -> str:
    """Return what a command calls a model on any machine: a hub id, a folder without the path to it, or "bundled"."""
    return BUNDLED if name is None or model_source(name) is None else model_title(name)


def check_device(device: str | None, *, option: str = "--device") -> None:
    """Check that PyTorch knows a device and that this machine has it.

    Raises:
        UsageError: it does not, or has not.
    """
    if device in (None, "auto", "cpu"):
        return
    import torch

    try:
        found = torch.device(str(device))
    except RuntimeError:
        raise UsageError(f"{option}: there is no device '{device}'; try cpu, cuda, cuda:1, mps or auto.") from None
    if found.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available():
            cause = "finds no GPU" if torch.version.cuda or torch.version.hip else "was built without CUDA"
            raise UsageError(f"{option} {device}: this PyTorch ({torch.__version__}) {cause}. Use {option} cpu.")
        if found.index is not None and found.index >= count:
            raise UsageError(f"{option} {device}: this machine has {count} CUDA devices, numbered from 0.")
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"{option} {device}: this machine or this PyTorch has no MPS. Use {option} cpu.")


def recall(speculator: Speculator, memory: str) -> bool:
    """Load a memory file if it exists; a file that cannot be used is a warning, since text needs no memory.

    Returns:
        Whether what is learned may be saved there: a file that was not understood is not overwritten.
    """
    try:
        if Path(memory).exists():
            speculator.load(memory)
    except (MemoryFileError, FileError, UnsupportedError) as error:
        say(f"warning: {error} Drafting begins with an empty memory; the file is left as it is, nothing is saved.")
        return False
    return True


def quieten() -> None:
    """Keep the progress bars and the advice of transformers and the hub's client out of the output."""
    from transformers.utils import logging as transformers_logging

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
