"""Tiny random models that read images or sound, and prompts for them as a processor would make them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING

from architecture_matrix.catalogue import CHANGES
from architecture_matrix.media_families import BUILT, FAMILIES, Family
from architecture_matrix.source_inputs import ORDINARY, PLACES, find_inputs, parts
from speculant.engines.hf.probe.tiny import POSITIONS, VOCABULARY, quiet, tiny_config, tiny_model

SMALL: dict[str, Any] = {  # what an option of a config is in its part for media, where there is one of that name
    **dict.fromkeys(("depth", "num_hidden_layers", "n_layers", "encoder_layers"), 2),
    **dict.fromkeys(("image_size", "max_image_size"), 16),
    "patch_size": 4,
    **dict.fromkeys(("spatial_merge_size", "temporal_patch_size", "merge_size"), 2),
    **dict.fromkeys(("hidden_size", "embed_dim", "out_hidden_size", "projection_dim", "output_dim"), 32),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "mlp_dim"), 48),
    **dict.fromkeys(("num_heads", "num_attention_heads", "attention_heads", "encoder_attention_heads"), 4),
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [1],
    "global_attn_indexes": [1],
    "window_size": 16,
    **dict.fromkeys(("num_mel_bins", "n_mel_bins", "feature_size"), 8),
    "max_source_positions": 8,
}
STATES = ("hidden_size", "d_model", "embed_dim", "hidden_dim", "out_hidden_size", "output_dim", "projection_dim")


def build_media(name: str, kind: Any, attention: str) -> tuple[Any, dict[str, Any]]:
    """Return a tiny random fp32 model and the inputs of a prompt.

    Args:
        name: the model type.
        kind: the class.
        attention: "eager" or "sdpa".

    Raises:
        Exception: whatever the class raises if it cannot be built with these sizes, or reads none of the inputs.
    """
    speech = f"{name} (speech)" if kind.main_input_name == "input_features" else name
    family = FAMILIES.get(speech) or FAMILIES.get(name, Family())
    with quiet():
        if name in BUILT:
            config = BUILT[name]()
        else:
            whole = CONFIG_MAPPING[name](**CHANGES.get(name, {}) | family.given)
            config = tiny_config(whole)
            shrink_media(config, whole)
        change(config, family.changes)
        model = tiny_model(kind, config, attention=attention)
    if family.ready:
        family.ready(model)
    return model, find_inputs(model, family)


def shrink_media(config: Any, whole: Any) -> None:
    """Make the parts of a config for media small, give media ids that are in no prompt, and texts many positions.

    A size that was that of some part's states in the whole config stays one, whatever its name is.
    """
    text = config.get_text_config(decoder=True)
    states = {size for part in parts(whole) for name in STATES if isinstance(size := getattr(part, name, 0), int)}
    for part in parts(config):
        values = dict(part.__dict__)
        for option, value in values.items():
            if part is not text and isinstance(value, int) and value > 128:
                if value in states and re.search("dim|size|hidden|channels|features", option):
                    setattr(part, option, 32)
                elif value // 4 in states and value % 4 == 0 and re.search("dim|size|hidden", option):
                    setattr(part, option, 128)
        if part is text or part is config:
            for limit in (each for each in POSITIONS if isinstance(values.get(each), int)):
                setattr(part, limit, 512)
        else:
            for option, small in SMALL.items():
                if option in values and values[option] is not None and not isinstance(values[option], bool):
                    setattr(part, option, _alike(values[option], small))
        if isinstance(values.get("num_decoder_layers"), int) and "num_layers" in values:
            part.num_decoder_layers = part.num_layers
        for option, value in values.items():
            if not re.search(r"_token_(id|index)$", option):
                continue
            medium = next((place for each, place in PLACES.items() if option.startswith(f"{each}_token_")), None)
            if medium is not None if value is None else isinstance(value, int) and value >= ORDINARY:
                setattr(part, option, place_of(option) if medium is None else ORDINARY + medium)


def place_of(option: str) -> int:
    """Return the id of a token that begins or ends media, the same one for an option of the same name."""
    return ORDINARY + len(PLACES) + sum(option.encode()) % (VOCABULARY - ORDINARY - len(PLACES))


def change(config: Any, changes: Mapping[str, Any]) -> None:
    """Set options of a config, those of its parts by a dictionary."""
    for option, value in changes.items():
        part = getattr(config, option, None)
        if isinstance(value, dict) and hasattr(part, "to_dict"):
            change(part, value)
        else:
            setattr(config, option, value)


def _alike(before: Any, small: Any) -> Any:
    """Return a size in the form in which the option has it: a number, or one for each side."""
    if isinstance(before, list | tuple) and not isinstance(small, list):
        return type(before)([small] * len(before))
    return small
