"""Checks of the options of models and drafting: what cannot work is reported before anything takes long."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from speculant.api.loading import check_dtype, check_quantize, find_draft_model, find_model, load_config
from speculant.cli.files import check_no_input, check_writable
from speculant.cli.gguf_loading import check_gguf_options, check_no_gguf_options, is_gguf_model
from speculant.cli.head_file import find_head
from speculant.cli.terminal import importing
from speculant.core.errors import ModelNotFoundError, UnsupportedError, UsageError
from speculant.memory.bases import find_base, read_base_header
from speculant.memory.file import read_header
from speculant.options.drafting import AUTOMATIC, DEFAULT_METHOD, DraftingOptions
from speculant.options.model import ModelOptions
from speculant.registry import Method, check_verifier, find_method, is_own

ANYWHERE = (None, "auto", "cpu")  # devices that need no check


def find_drafter(place: str) -> Method:
    """Return the method of a user's own drafter, named MODULE:CLASS; modules in the current folder are found too.

    Raises:
        UsageError: there is no such drafter.
    """
    if not is_own(place):
        raise UsageError(f"--drafter takes MODULE:CLASS, as in my_drafter:MyDrafter, not '{place}'.")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    return find_method(place)


def check_drafting(drafting: DraftingOptions) -> Method | None:
    """Check the options as far as possible without packages that take seconds to import.

    Returns:
        The named method; None for the method of the head, or the default.

    Raises:
        UsageError: there is no such method or acceptance rule, or it keeps no memory or cannot be shared.
    """
    if drafting.drafter is not None and (drafting.method is not None or drafting.head is not None):
        option = "--method" if drafting.method is not None else "--head"
        raise UsageError(f"--drafter and {option} both choose the drafter; leave one of them out.")
    given = {"--draft-dtype": drafting.draft_dtype, "--draft-device": drafting.draft_device}
    ignored = " and ".join(name for name, value in given.items() if value is not None)
    if ignored and not drafting.draft_model:
        raise UsageError(f"{ignored} would be ignored without --draft-model. Add it, or leave {ignored} out.")
    if drafting.drafter is not None:
        named: Method | None = find_drafter(drafting.drafter)
    else:
        named = None if drafting.method is None else find_method(drafting.method)
    certain = named or (find_method(DEFAULT_METHOD) if drafting.head is None else None)
    if certain is not None:
        check_keeps(certain, drafting)
        check_verifier(certain.name, drafting.verifier, lossy=drafting.lossy)
    return named


def check_keeps(method: Method, drafting: DraftingOptions) -> None:
    """Check that a method has a memory to keep, start from or share.

    Raises:
        UnsupportedError, UsageError: it has none, the URL is invalid, or redis-py is not installed.
        FileError, MemoryFileError: it saves none, and there is no memory file that it can start from.
    """
    if drafting.memory is not None and not writes_memory(method, drafting):
        if not method.loads_memory:
            raise UnsupportedError(
                f"the method '{method.name}' keeps no memory; leave out --memory, or use --method mix."
            )
        read_header(Path(drafting.memory))
    if drafting.share is not None:
        from speculant.sharing.opening import check_address, check_sharing

        check_sharing(method)
        check_address(drafting.share)


def writes_memory(method: Method, drafting: DraftingOptions) -> bool:
    """Return whether a command saves to --memory; other methods at most start from that file."""
    return method.keeps_memory or bool(drafting.online)


def check_memory(drafting: DraftingOptions, inputs: Sequence[str | None] = ()) -> None:
    """Check --memory before the work begins: that it can be written and is no input, if it will be written.

    Args:
        drafting: the options.
        inputs: other files that the same command reads.

    Raises:
        FileError, UsageError: it cannot be used.
        SpeculantError: see `check_drafting`.
    """
    if drafting.memory is None:
        return
    named = check_drafting(drafting)
    if named is None or writes_memory(named, drafting):
        check_writable(drafting.memory)
        check_no_input("--memory", drafting.memory, inputs)


def check_named(loading: ModelOptions, drafting: DraftingOptions | None = None) -> None:
    """Check that the folders and files named by options exist, and what a GGUF file needs.

    Raises:
        ModelNotFoundError, ModelError, FileError: one does not, or is another kind of file.
        UnsupportedError: llama.cpp is not installed.
        UsageError: an option does not apply to a GGUF file.
    """
    if is_gguf_model(loading.model):
        check_gguf_options(loading)
    else:
        check_no_gguf_options(loading)
        find_model(loading.model)
    check_placement(loading.dtype, loading.device)
    check_quantize(loading.quantize, dtype=loading.dtype, device=loading.device)
    if drafting is None:
        return
    check_placement(drafting.draft_dtype, drafting.draft_device, prefix="draft-")
    for name in drafting.draft_model or ():
        if is_gguf_model(name):
            check_gguf_options(ModelOptions(model=name, device=drafting.draft_device))
        else:
            find_draft_model(name)
    if drafting.head is not None:
        find_head(drafting.head)
    for base in () if drafting.base == AUTOMATIC else drafting.base:
        read_base_header(find_base(base))


def check_placement(dtype: str | None, device: str | None, *, prefix: str = "") -> None:
    """Check a dtype and, after importing PyTorch, a device, before transformers is imported.

    Raises:
        UsageError: there is no such dtype or device.
    """
    check_dtype(dtype)
    if device not in ANYWHERE:
        with importing("PyTorch"):
            check_device(device, option=f"--{prefix}device")


def check_device(device: str | None, *, option: str = "--device") -> None:
    """Check that PyTorch knows a device and that this machine has it.

    Raises:
        UsageError: either is not the case.
    """
    if device in ANYWHERE:
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


def check_draft_encoders(name: str | None, drafts: Sequence[str]) -> None:
    """Check draft models that have an encoder against their target, by their configs alone.

    Args:
        name: folder or hub id of the target; None for the bundled model.
        drafts: those of its draft models.

    Raises:
        UnsupportedError: a draft model has an encoder and the target none, or theirs read inputs of different sizes.
    """
    from speculant.engines.hf.draft_encoder import has_encoder

    for draft in drafts:
        if is_gguf_model(draft) or is_gguf_model(name):
            continue
        try:
            configs = load_config(find_draft_model(draft)), load_config(find_model(name))
        except ModelNotFoundError:  # such as the folder of an adapter; loading it says what is missing
            continue
        has_encoder(*configs)
