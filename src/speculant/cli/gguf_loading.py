"""Loading of a GGUF file on the command line: its engine, its memory use, and the progress of reading it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.terminal import importing, progress, say, waiting
from speculant.core.errors import UsageError
from speculant.options.model import ModelOptions

if TYPE_CHECKING:
    from speculant.engines.hf.quantized.gguf.loading import PlannedModel

_FLAGS = {"attention": "--attn"}  # flags of options with another name


def is_gguf_model(name: str | None) -> bool:
    """Return whether a name is that of a GGUF file."""
    from speculant.engines.llamacpp.file import is_gguf

    return name is not None and not Path(name).is_dir() and is_gguf(name)


def check_gguf_options(loading: ModelOptions) -> None:
    """Refuse options that do not apply to a GGUF file, or to the named engine.

    Raises:
        ModelNotFoundError, ModelError: there is no such file, or it is another kind of file.
        UsageError: such an option was given.
        UnsupportedError: llama.cpp was requested but is not installed.
    """
    from speculant.engines.llamacpp.file import check_file

    if loading.device not in (None, "cpu"):
        raise UsageError(
            "--device does not apply to a GGUF file, which runs on the CPU or where llama.cpp offloads it. Leave it "
            "out; Speculator.from_gguf has options for offloading."
        )
    again = {"--quantize": loading.quantize, "--packed-cache": loading.packed_cache}
    for name, value in again.items():
        if value is not None:
            raise UsageError(f"{name} does not apply to a GGUF file, whose weights are not converted. Leave it out.")
    own = {"--dtype": loading.dtype, "--attn": loading.attention, "--activations": loading.activations}
    given = [name for name, value in {**own, "--fast": loading.fast or None}.items() if value is not None]
    if given and loading.engine == "llamacpp":
        raise UsageError(f"{given[0]} is for Speculant's own passes, not for --engine llamacpp. Leave one of them out.")
    check_file(Path(str(loading.model)))
    if loading.engine == "llamacpp":
        from speculant.engines.llamacpp.library import load_library

        load_library()


def check_no_gguf_options(loading: ModelOptions) -> None:
    """Refuse options that only apply to GGUF files.

    Raises:
        UsageError: such an option was given.
    """
    if loading.engine != "auto":
        raise UsageError(f"--engine {loading.engine} is for GGUF files; leave it out.")


def load_gguf_model(name: str, loading: ModelOptions, *, needed: str = "") -> tuple[Any, Any, str]:
    """Load a GGUF file; return the model, its tokenizer or None, and a description of the thread count.

    Args:
        name: path of the file.
        loading: loading options.
        needed: why Speculant's own passes are required; "" if they are not.

    Raises:
        ModelError, UnsupportedError, UsageError: see `api.gguf_engine.choose_engine`.
        OutOfMemoryError: there is not enough memory.
    """
    model, tokenizer = open_gguf_model(name, loading, needed=needed)
    from speculant.cli.threads import set_threads

    threads = set_threads(model, loading.threads)
    import torch

    from speculant.api.engines import find_engine

    find_engine(model).use_threads(model, torch.get_num_threads())
    return model, tokenizer, threads


def open_gguf_model(name: str, loading: ModelOptions, *, needed: str = "") -> tuple[Any, Any]:
    """Load a GGUF file without setting threads, as for a draft model; see `load_gguf_model`."""
    with importing("PyTorch and transformers"):
        from speculant.api.gguf_engine import choose_engine
    with waiting(f"reading the header of {name}"):
        chosen = choose_engine(
            name,
            engine=loading.engine,
            dtype=loading.dtype,
            attention=loading.attention,
            own={"activations": loading.activations, "fast": loading.fast or None},
            needed=needed,
            shown=lambda option: _FLAGS.get(option, f"--{option}"),
        )
    say(chosen.reason)
    if chosen.planned is not None:
        return _load_planned(name, loading, chosen.planned)
    from speculant.engines.llamacpp.request_model import load_gguf

    with waiting(f"loading {name}"):
        return load_gguf(name)


def _load_planned(name: str, loading: ModelOptions, planned: PlannedModel) -> tuple[Any, Any]:
    plan = planned.plan
    plan.check_memory()
    say(f"{Path(name).name} takes {plan.describe_memory()}.")
    for note in planned.notes:
        say(f"note: {note}")
    with progress(f"loading {Path(name).name}", plan.read_bytes, "bytes") as advance:
        return planned.load(activations=loading.activations, advance=advance)
