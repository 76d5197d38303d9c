"""How drafts are verified on a model, by its class and config: as trees, as chains or not at all, and why.

What no config states, `probing` determines before the first draft.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch

from speculant.core.engine import make_refused
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.probe.capabilities import DECODER_INPUTS, TEXT_INPUTS, HFCapabilities
from speculant.engines.hf.states.mixers import Mixers, find_mixers
from speculant.engines.hf.views.model_view import find_layers
from speculant.engines.hf.views.row_positions import find_placing
from speculant.engines.hf.views.unwrapping import base_model, check_generates

TREE_ATTENTION = ("sdpa", "eager")
INDEXED_LAYERS = {"indexed_attention"}
INDEXED_BY_PLACE = ("glm5_next_text",)  # the index pools cache rows in order, and reads no mask but padding
KNOWN_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
STATE_LAYERS = ("linear_attention", "conv", "hybrid", "hybrid_sliding")
CACHE_ARGUMENTS = ("past_key_values", "cache_params", "state")  # names of the cache argument
MEDIA_INPUTS = {"image_patches", "mm_encoder_outputs", "pixel_values"}  # for classes whose config has no text part
WITHOUT_CACHE = {"moe", "mlp"}
WITHOUT_POSITIONS = ("alibi", "bloom", "mpt")
ENCODERS = (  # classes that attend in both directions unless the config's `is_decoder` is True
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
    *("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl", "xmod"),
)
STATE_ON_MODULES = ("recurrent_gemma",)  # shared by all texts on the model
JOINED = ("encoder-decoder", "speech-encoder-decoder", "vision-encoder-decoder")  # of two models of other classes
OWN_SCHEMES = {  # model types with special rules for passes -> those rules
    "cpmant": "puts prompt tokens of its own in front of every text, and builds its masks from the whole text",
    "prophetnet": "predicts several tokens ahead in streams that attend in a way of their own, one token a pass",
    "xlm-prophetnet": "predicts several tokens ahead in streams that attend in a way of their own, one token a pass",
    "fsmt": "masks nothing in passes that go on from a cache, so each of them reads one token",
    "hrm_text": "attends to a prompt in both directions, and stores it once per cycle",
    "moshi": "decodes audio and text streams together",
    "blt": "reads bytes in patches, whose borders depend on the bytes that follow",
}


def check_model(model: Any) -> HFCapabilities:
    """Return how drafts can be verified on a transformers model.

    Raises:
        UnsupportedError: they cannot; the message gives the reason.
    """
    config, base, name = model.config, base_model(model), type(base_model(model)).__name__
    text = config.get_text_config(decoder=True)
    check_generates(model)
    if getattr(config, "is_encoder_decoder", False):
        return _check_decoder(model, base)
    parameters = inspect.signature(base.forward).parameters
    layers = set(getattr(text, "layer_types", None) or ())
    others = layers - KNOWN_LAYERS - INDEXED_LAYERS - WITHOUT_CACHE
    keeps_rows = not others and not getattr(model, "_is_stateful", False)
    mixers = None if keeps_rows or others - set(STATE_LAYERS) else find_mixers(base)
    replays = not keeps_rows and mixers is None
    if mixers is None and config.model_type in STATE_ON_MODULES:
        raise UnsupportedError(f"{name} keeps the state of a text on its modules, where it cannot be taken back.")
    if reason := _find_own_way(base, config):
        raise UnsupportedError(f"{name} {reason}.")
    if model.generation_config.use_cache is False:
        raise UnsupportedError(
            f"{name} decodes without a key-value cache, as its config says. Set `model.generation_config.use_cache` "
            "to True."
        )

    attention = getattr(text, "_attn_implementation", None) or "eager"
    by_slot = "position_ids" not in parameters and not _has_alibi(text) and _attends(mixers, layers)
    placing = find_placing(base) if by_slot else ()
    chains = _find_chain_reason(name, text, attention, layers, replays=replays, unplaced=by_slot and not placing)
    sliding = bool({"sliding_attention", "hybrid_sliding"} & layers) or (
        not layers and getattr(text, "sliding_window", None) is not None
    )
    place = find_layers(model)
    longrope, dynamic = _rope_limits(text)
    rereads = longrope is not None and _rereads(base)
    return HFCapabilities(
        trees=not chains,
        hidden_layers=0 if place is None else len(place),
        additive=attention == "eager",
        window=int(text.sliding_window) if sliding else None,
        window_by_cache=sliding and not _masks_windows(base),
        mixed=sliding and bool({"full_attention", "hybrid", *INDEXED_LAYERS} & layers),
        indexed=bool(layers & INDEXED_LAYERS),
        positions=_positions(text),
        rope_limit=min((limit for limit in (longrope, dynamic) if limit is not None), default=None),
        rope_follows=dynamic is not None,
        rope_rereads=rereads,
        vocabulary=text.vocab_size,
        keeps_logits="logits_to_keep" in parameters,
        takes_positions="position_ids" in parameters,
        first_position=_first_position(base),
        by_slot=by_slot,
        reads_padding=by_slot or rereads,
        slots=_slots(base),
        media=text is not config or bool(MEDIA_INPUTS & set(parameters)),
        attends=_attends(mixers, layers),
        mixers=mixers,
        replays=replays,
        placing=() if chains else placing,
        both_ways=attention != "eager" and getattr(text, "use_bidirectional_attention", None) is True,
        source_layers=tuple(getattr(text, "cross_attention_layers", None) or ()),
        cache_argument=next((each for each in CACHE_ARGUMENTS if each in parameters), CACHE_ARGUMENTS[0]),
        notes=(*([chains] if chains else ()), *_find_notes(model)),
    )


def _find_chain_reason(name: str, text: Any, attention: str, layers: set[str], *, replays: bool, unplaced: bool) -> str:
    """Return why a class can verify chains but no trees; "" if it can verify trees.

    Args:
        name: name of the class.
        text: config of its text part.
        attention: name of its attention.
        layers: kinds of its layers.
        replays: whether its cache can only be copied.
        unplaced: whether it positions rows by slots, and no view can place those of a tree.
    """
    if replays:
        return (
            f"the cache of {name} keeps no rows to choose from: drafts are verified as chains, and accepted tokens are "
            "read again after a rejected one."
        )
    if attention not in TREE_ATTENTION:
        return (
            f"{attention} attention takes no tree mask: drafts are verified as chains. "
            "Load the model with attn_implementation='sdpa' for trees."
        )
    if text.model_type in INDEXED_BY_PLACE:
        return (
            f"{name} chooses the tokens that it attends to by their places in the cache, not by a mask: drafts are "
            "verified as chains."
        )
    if "chunked_attention" in layers:
        return f"{name} attends in chunks: drafts are verified as chains."
    if _has_alibi(text) or unplaced:
        return f"{name} takes no position ids: drafts are verified as chains."
    return ""


def _find_notes(model: Any) -> list[str]:
    """Return remarks on a model's weights and devices."""
    notes = list[str]()
    quantised = getattr(model.config, "quantization_config", None)
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
    return [*notes, *_find_dtype_notes(model)]


def _find_dtype_notes(model: Any) -> list[str]:
    if model.dtype not in (torch.bfloat16, torch.float16):
        return []
    return [f"{str(model.dtype).removeprefix('torch.')}: near-ties can flip against plain decoding."]


def _check_decoder(model: Any, base: Any) -> HFCapabilities:
    """Return how drafts may be verified on the decoder of an encoder-decoder; its first prompt shows whether they can.

    Raises:
        UnsupportedError: they cannot.
    """
    config, name, parameters = base.config, type(base).__name__, inspect.signature(base.forward).parameters
    if config.model_type in OWN_SCHEMES:
        raise UnsupportedError(f"{name} {OWN_SCHEMES[config.model_type]}.")
    if "decoder_input_ids" not in parameters or "past_key_values" not in parameters:
        raise UnsupportedError(f"{name} is an encoder-decoder model without a cache of its decoder's rows.")
    attention = getattr(config, "_attn_implementation", None) or "eager"
    placing, positions = find_placing(base), DECODER_INPUTS.positions in parameters
    if config.model_type in JOINED:  # these pass on only inputs named for the decoder
        positions = TEXT_INPUTS.positions in inspect.signature(base.decoder.forward).parameters
    text = config.get_text_config(decoder=True)
    layers = set(getattr(text, "layer_types", None) or ())
    sliding = "sliding_attention" in layers
    trees = attention in TREE_ATTENTION and (positions or bool(placing))
    notes = _find_dtype_notes(model)
    if not trees:
        notes.insert(0, f"{name} takes no positions for its decoder: drafts are verified as chains.")
    slots = [getattr(config, each, None) for each in ("max_target_positions", "max_position_embeddings")]
    return HFCapabilities(
        trees=trees,
        additive=attention == "eager",
        window=int(text.sliding_window) if sliding else None,
        mixed=sliding and "full_attention" in layers,
        vocabulary=text.vocab_size,
        keeps_logits="logits_to_keep" in parameters,
        takes_positions=positions,
        slots=next((int(each) for each in slots if each), None),
        media=True,
        inputs=DECODER_INPUTS,
        placing=() if positions else placing,
        encoder=True,
        notes=tuple(notes),
    )


def _attends(mixers: Mixers | None, layers: set[str]) -> bool:
    """Return whether a class has attention layers, besides those with states."""
    return mixers is None or bool(layers - {"linear_attention", "conv"} - WITHOUT_CACHE)


def plain_capabilities(model: Any, reason: str) -> HFCapabilities:
    """Return the capabilities of a model that is decoded without drafts for this reason."""
    config = model.config
    text = config.get_text_config(decoder=True)
    positions = None if getattr(config, "is_encoder_decoder", False) else _positions(text)  # a prompt is the encoder's
    found = HFCapabilities(vocabulary=text.vocab_size, positions=positions, trees=False, batches=False)
    return make_refused(found, reason)


def optional_layers(model: Any) -> int:
    """Return the number of decoder layers if passes can skip some, else 0; raises as `check_model`."""
    capabilities = check_model(base_model(model))
    return capabilities.hidden_layers if capabilities.trees else 0


def _first_position(base: Any) -> int:
    """Return the position id of a text's first token.

    Kosmos-2 takes entries of its table, which begin after the padding's; its `generate` lets the table count them.
    """
    for name, module in base.named_modules():
        if name.endswith("embed_positions") and hasattr(module, "create_position_ids_from_input_ids"):
            return int(module.padding_idx) + 1
    return 0


def _positions(config: Any) -> int | None:
    """Return the number of positions of a model; None for no limit."""
    found = (getattr(config, name, None) for name in ("max_position_embeddings", "max_target_positions", "max_seq_len"))
    return next((int(positions) for positions in found if positions and positions > 0), None)  # XLNet has -1


def _slots(model: Any) -> int | None:
    """Return the size of the causal mask that a class keeps as a buffer [.., P, P], as GPT-Neo does; None for none."""
    masks = [mask for mask in model.buffers() if mask.ndim > 1 and mask.shape[-1] == mask.shape[-2] > 1]
    sizes = [int(mask.shape[-1]) for mask in masks if mask.dtype in (torch.bool, torch.uint8)]
    return min(sizes, default=None)


def _rope_limits(config: Any) -> tuple[int | None, int | None]:
    """Return the smallest "longrope" limit over all kinds of layers, and that of "dynamic" ones; None for none.

    transformers compares them with a pass's largest position.
    """
    given = getattr(config, "rope_parameters", None) or {}
    kinds = [given, *(kind for kind in given.values() if isinstance(kind, dict))]
    limits = [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
    dynamic = any("dynamic" in (kind.get("rope_type") or "") for kind in kinds)
    return min(limits, default=None), config.max_position_embeddings if dynamic else None


def _rereads(model: Any) -> bool:
    """Return whether the class drops the cache at the limit, as Phi-3 does when `generate` prepares its inputs."""
    code = getattr(type(model).prepare_inputs_for_generation, "__code__", None)
    return code is not None and "original_max_position_embeddings" in code.co_names


def misreads_at_limit(model: Any) -> bool:
    """Return whether `generate` itself is wrong for texts beyond the rotary limit, which the model may reach.

    Before transformers 5.4 the rereading pass of Phi-3 is masked as if it had a single token, so that tokens attend to
    later ones. Since then a class that drops the cache must also ask transformers for the whole text, as Phi-3 does in
    later releases and Phi-4-multimodal does not, whose passes beyond the limit see a single token.
    """
    config, code = model.config, getattr(type(model).prepare_inputs_for_generation, "__code__", None)
    if code is None or not _rereads(model):
        return False
    limit, positions = getattr(config, "original_max_position_embeddings", None), _positions(config)
    if limit is None or (positions is not None and positions <= limit):
        return False
    partly = "prepare_inputs_for_generation" in code.co_names and "next_sequence_length" not in code.co_consts
    return partly or "cache_position" in code.co_varnames


def _masks_windows(model: Any) -> bool:
    """Return whether the file of a model's class creates window masks; True if it cannot be read."""
    try:
        return "sliding_window" in inspect.getsource(sys.modules[type(model).__module__])
    except (OSError, TypeError, KeyError):
        return True


def _find_own_way(model: Any, config: Any) -> str:
    """Return why a class cannot be decoded with a key-value cache and causal masks; "" if it can."""
    if config.model_type in OWN_SCHEMES:
        return OWN_SCHEMES[config.model_type]
    if not set(CACHE_ARGUMENTS) & set(inspect.signature(type(model).forward).parameters):
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
