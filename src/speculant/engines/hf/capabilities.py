"""What a transformers model can do here by its class and config: verify trees, verify chains only, or nothing, and why.

What no config says, `probe` finds out before the first draft.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from dataclasses import dataclass
from typing import Any

import torch

from speculant.core.engine import Capabilities
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.model_view import find_layers

TREE_ATTENTION = ("sdpa", "eager")
KNOWN_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
WITHOUT_POSITIONS = ("alibi", "bloom", "mpt")
ENCODERS = (  # classes that attend in both directions unless the config's `is_decoder` is True
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
    *("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl", "xmod"),
)
OWN_SCHEMES = {  # model types whose passes go by rules of their own, and those rules
    "cpmant": "puts prompt tokens of its own in front of every text, and builds its masks from the whole text",
    "prophetnet": "predicts several tokens ahead in streams that attend in a way of their own, one token a pass",
    "xlm-prophetnet": "predicts several tokens ahead in streams that attend in a way of their own, one token a pass",
    "hrm_text": "attends to a prompt in both directions, and stores it once per cycle",
    "moshi": "decodes audio and text streams together",
    "blt": "reads bytes in patches, whose borders depend on the bytes that follow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HFCapabilities(Capabilities):
    """How drafts are verified on a transformers model.

    Attributes:
        additive: whether masks must be added to scores as floats (eager attention).
        window: positions a sliding layer sees, or None.
        window_by_cache: whether the class itself knows no window, but `generate` hands it a cache that forgets what is
            beyond: prompts are read without a window, in one pass, and every row after them has it in its mask.
        mixed: whether full and sliding layers alternate, so that masks go in as a dict by layer type.
        rope_limit: the position from which on rotary factors change for all rows of a pass, or None.
        rope_follows: whether beyond it they follow the longest position of a pass ("dynamic"), so that nothing can be
            drafted there; else they change once ("longrope").
        rope_rereads: whether `generate` reads the text anew when it reaches the limit.
        keeps_logits: whether `logits_to_keep` can restrict the logits to the last rows.
        takes_positions: whether the model takes position ids.
        batches: whether several sequences may share a pass.
    """

    additive: bool
    window: int | None
    window_by_cache: bool
    mixed: bool
    rope_limit: int | None
    rope_follows: bool
    rope_rereads: bool
    keeps_logits: bool
    takes_positions: bool
    batches: bool = True


def check_model(model: Any) -> HFCapabilities:
    """Return how drafts can be verified on a transformers model.

    Raises:
        UnsupportedError: they cannot; the message says why and what to do.
    """
    config, base, name = model.config, base_model(model), type(base_model(model)).__name__
    text = config.get_text_config(decoder=True)
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError(f"{name} is an encoder-decoder model; Speculant decodes decoder-only causal LMs.")
    parameters = inspect.signature(base.forward).parameters
    parts = [part for part in ("vision_config", "audio_config") if getattr(config, part, None) is not None]
    if parts or {"mm_encoder_outputs", "image_patches"} & set(parameters):
        raise UnsupportedError(
            f"{name} is multimodal. Load its text model alone, for instance with AutoModelForCausalLM, if it has one."
        )
    if not (hasattr(model, "can_generate") and model.can_generate()):
        raise UnsupportedError(f"{name} has no language-model head to decode with; load it with AutoModelForCausalLM.")
    layers = set(getattr(text, "layer_types", None) or ())
    if getattr(model, "_is_stateful", False) or layers - KNOWN_LAYERS:
        kinds = ", ".join(sorted(layers - KNOWN_LAYERS)) or "recurrent state"
        raise UnsupportedError(
            f"{name} has layers whose cache cannot be rolled back after a rejected draft ({kinds}). "
            "Use plain `model.generate` for it."
        )
    if reason := _own_way(base, config):
        raise UnsupportedError(f"{name} {reason}. Use plain `model.generate` for it.")
    if model.generation_config.use_cache is False:
        raise UnsupportedError(
            f"{name} decodes without a key-value cache, as its config says. Set `model.generation_config.use_cache` "
            "to True, or use plain `model.generate`."
        )

    notes: list[str] = []
    attention = getattr(text, "_attn_implementation", None) or "eager"
    trees = True
    if attention not in TREE_ATTENTION:
        trees = False
        notes.append(
            f"{attention} attention takes no tree mask: drafts are verified as chains. "
            "Load the model with attn_implementation='sdpa' for trees."
        )
    elif "chunked_attention" in layers:
        trees = False
        notes.append(f"{name} attends in chunks: drafts are verified as chains.")
    elif "position_ids" not in parameters or _has_alibi(text):
        trees = False
        notes.append(f"{name} takes no position ids: drafts are verified as chains.")
    quantised = getattr(config, "quantization_config", None)
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised.quant_method
        notes.append(
            f"weights are quantised ({getattr(method, 'value', method)}): kernels may differ with the number of rows, "
            "so near-ties can flip against plain decoding."
        )
    if getattr(model, "hf_device_map", None) and len(set(model.hf_device_map.values())) > 1:
        notes.append("the model is spread over several devices; every pass pays for the transfers.")
    if model.device.type == "mps":
        notes.append("MPS has not been tested.")
    if model.dtype in (torch.bfloat16, torch.float16):
        notes.append(f"{str(model.dtype).removeprefix('torch.')}: near-ties can flip against plain decoding.")

    sliding = "sliding_attention" in layers or (not layers and getattr(text, "sliding_window", None) is not None)
    place = find_layers(model)
    longrope, dynamic = _rope_limits(text)
    return HFCapabilities(
        trees=trees,
        hidden_layers=0 if place is None else len(place),
        additive=attention == "eager",
        window=int(text.sliding_window) if sliding else None,
        window_by_cache=sliding and not _masks_windows(base),
        mixed=sliding and "full_attention" in layers,
        positions=getattr(text, "max_position_embeddings", None),
        rope_limit=min((limit for limit in (longrope, dynamic) if limit is not None), default=None),
        rope_follows=dynamic is not None,
        rope_rereads=longrope is not None and _rereads(base),
        vocabulary=text.vocab_size,
        keeps_logits="logits_to_keep" in parameters,
        takes_positions="position_ids" in parameters,
        notes=tuple(notes),
    )


def optional_layers(model: Any) -> int:
    """Return how many decoder layers a model has, if passes can leave some out; else 0; raises as `check_model`."""
    capabilities = check_model(base_model(model))
    return capabilities.hidden_layers if capabilities.trees else 0


def base_model(model: Any) -> Any:
    """Return the model that an adapter of PEFT wraps; the model itself where nothing does."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def decode_mode(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Return what transformers' own decoding loop runs its passes in, where this release has it."""
    mode: contextlib.AbstractContextManager[Any] = getattr(
        model, "_optimize_model_for_decode", contextlib.nullcontext
    )()
    return mode


def _rope_limits(config: Any) -> tuple[int | None, int | None]:
    """Return the smallest "longrope" limit of all kinds of layers and that of "dynamic" ones, None for none.

    transformers compares a pass's largest position with them.
    """
    given = getattr(config, "rope_parameters", None) or {}
    kinds = [given, *(kind for kind in given.values() if isinstance(kind, dict))]
    limits = [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
    dynamic = any("dynamic" in (kind.get("rope_type") or "") for kind in kinds)
    return min(limits, default=None), config.max_position_embeddings if dynamic else None


def _rereads(model: Any) -> bool:
    """Return whether the class drops the cache at the limit, as Phi-3 does where `generate` prepares its inputs."""
    code = getattr(type(model).prepare_inputs_for_generation, "__code__", None)
    return code is not None and "original_max_position_embeddings" in code.co_names


def misreads_at_limit(model: Any) -> bool:
    """Return whether `generate` itself gets texts beyond the limit wrong, as Phi-3's does before transformers 5.4.

    There the pass that reads the text anew is masked as if it held one token, so that tokens attend to later ones.
    """
    code = getattr(type(model).prepare_inputs_for_generation, "__code__", None)
    return _rereads(model) and code is not None and "cache_position" in code.co_varnames


def _masks_windows(model: Any) -> bool:
    """Return whether the file of a model's class makes masks of windows; True where it cannot be read."""
    try:
        return "sliding_window" in inspect.getsource(sys.modules[type(model).__module__])
    except (OSError, TypeError, KeyError):
        return True


def _own_way(model: Any, config: Any) -> str:
    """Return what keeps a class from being decoded with a key-value cache and causal masks; "" if nothing does."""
    if config.model_type in OWN_SCHEMES:
        return OWN_SCHEMES[config.model_type]
    if "past_key_values" not in inspect.signature(type(model).forward).parameters:
        return "has no key-value cache: its `forward` takes no `past_key_values`"
    if config.model_type in ENCODERS and not getattr(config, "is_decoder", False):
        return "attends in both directions, since `is_decoder` is False in its config"
    return ""


def _has_alibi(config: Any) -> bool:
    attention = getattr(config, "attn_config", None)
    return bool(
        getattr(config, "alibi", False)
        or getattr(attention, "alibi", False)
        or config.model_type in WITHOUT_POSITIONS
    )  # fmt: skip
