"""The models named by `--add-model` and `--lora` of `speculant serve`: checked before the first loads, loaded later."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from speculant.api.loading import estimate_bytes, find_model, load_config
from speculant.cli.gguf_loading import is_gguf_model
from speculant.cli.loading import load_speculator, model_source
from speculant.cli.loading_checks import check_named
from speculant.cli.terminal import importing
from speculant.core.errors import UnsupportedError, UsageError
from speculant.options.drafting import AUTOMATIC, DraftingOptions
from speculant.options.model import ModelOptions
from speculant.options.serving import ServingOptions, split_named
from speculant.registry import drafts_from_text, find_method

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.serving.model_pool import FurtherModel


def find_further_models(
    loading: ModelOptions, drafting: DraftingOptions, serving: ServingOptions, *, name: str
) -> list[FurtherModel]:
    """Return the further models of a server, checked by their configs and the adapters' weights.

    Args:
        loading, drafting, serving: the server's options.
        name: name of the first model.

    Raises:
        UsageError: two models have the same name, or options do not apply.
        SpeculantError: a model or an adapter does not exist, or does not fit.
    """
    models, adapters = split_named(serving.add_models), split_named(serving.loras)
    if not models and not adapters:
        if name in serving.aliases:
            raise UsageError(f"--alias {name} is the model's name already. Leave it out.")
        return []
    if name in (*serving.aliases, *models, *adapters):
        raise UsageError(f"two models would be called '{name}'; --served-model-name gives the first another name.")
    if drafting.share is not None:
        raise UsageError("--share is for a server of one model. Leave it out, or --add-model and --lora.")
    with importing("PyTorch and transformers"):
        import torch  # noqa: F401  (imported here, where the user sees a reason)
        import transformers  # noqa: F401

        from speculant.serving.model_pool import FurtherModel
    found = []
    for own, place in models.items():
        options = replace(loading, model=place)
        check_named(options)
        found.append(
            FurtherModel(
                name=own,
                size=_size(options),
                load=partial(_load, options, drafting_of(drafting, adapter=False), serving.max_concurrency, None),
            )
        )
    if adapters:
        _check_base(loading)
        from speculant.engines.hf.lora import check_adapter
    for own, place in adapters.items():
        check_adapter(place, model_source(loading.model))
        found.append(
            FurtherModel(
                name=own,
                parent=name,
                size=_size(loading),
                load=partial(_load, loading, drafting_of(drafting, adapter=True), serving.max_concurrency, place),
            )
        )
    return found


def drafting_of(drafting: DraftingOptions, *, adapter: bool) -> DraftingOptions:
    """Return the drafting options of a further model, without those specific to the first: heads, draft models.

    Args:
        drafting: options of the first model.
        adapter: whether it is the first model with an adapter, so that bases for its tokenizer fit.
    """
    named = drafting.method is not None and (
        drafting.method == "none" or drafts_from_text(find_method(drafting.method))
    )
    own: dict[str, Any] = {"head": None, "draft_model": None, "draft_dtype": None, "draft_device": None, "online": None}
    if not named and drafting.drafter is None:
        own |= {"method": None, "settings": None, "verifier": None, "lossy": False}
    if not adapter and drafting.base != AUTOMATIC:
        own["base"] = ()
    return replace(drafting, **own)


def _check_base(loading: ModelOptions) -> None:
    """Check that adapters can be merged into a model.

    Raises:
        UnsupportedError: the model's weights are quantised.
    """
    quantised = is_gguf_model(loading.model) or loading.quantize is not None
    if quantised or getattr(load_config(find_model(loading.model)), "quantization_config", None) is not None:
        raise UnsupportedError(
            "--lora needs weights of floats, and those of the model are quantised. Serve the checkpoint that they were "
            "made from, or merge the adapter into that and quantise it again."
        )


def _size(loading: ModelOptions) -> int:
    return estimate_bytes(model_source(loading.model), dtype=loading.dtype, device=loading.device)


def _load(
    loading: ModelOptions, drafting: DraftingOptions, texts: int, adapter: str | None, threads: int
) -> tuple[Speculator, Any]:
    """Load a model; see `FurtherModel.load`."""
    loaded = load_speculator(replace(loading, threads=threads), drafting, texts=texts, adapter=adapter)
    return loaded.speculator, loaded.settings
