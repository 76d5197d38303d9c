"""Tiny random models that read images or sound, and prompts for them as a processor would make them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING

from architecture_matrix.catalogue import CHANGES
from architecture_matrix.media_families import BUILT, FAMILIES, Family
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
ORDINARY = 45  # ids from here on stand for media, and are in no prompt
PLACES = {"image": 0, "video": 1, "audio": 2}


def build_media(name: str, kind: Any, attention: str) -> tuple[Any, dict[str, Any]]:
    """Return a tiny random fp32 model and the inputs of a prompt.

    Args:
        name: the model type.
        kind: the class.
        attention: "eager" or "sdpa".

    Raises:
        Exception: whatever the class raises if it cannot be built with these sizes, or reads none of the inputs.
    """
    family = FAMILIES.get(name, Family())
    with quiet():
        if name in BUILT:
            config = BUILT[name]()
        else:
            whole = CONFIG_MAPPING[name](**CHANGES.get(name, {}) | family.given)
            config = tiny_config(whole)
            shrink_media(config, whole)
        change(config, family.changes)
        model = tiny_model(kind, config, attention=attention)
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
        for option, value in values.items():
            if re.search(r"_token_(id|index)$", option) and isinstance(value, int) and value >= ORDINARY:
                medium = next((place for each, place in PLACES.items() if option.startswith(f"{each}_token_")), None)
                setattr(part, option, place_of(option) if medium is None else ORDINARY + medium)


def place_of(option: str) -> int:
    """Return the id of a token that begins or ends media, the same one for an option of the same name."""
    return ORDINARY + len(PLACES) + sum(option.encode()) % (VOCABULARY - ORDINARY - len(PLACES))


def parts(config: Any) -> Iterator[Any]:
    """Yield a config and the configs in it."""
    yield config
    for value in list(config.__dict__.values()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from parts(value)


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


def find_inputs(model: Any, family: Family) -> dict[str, Any]:
    """Return the inputs of a prompt with media that the model reads.

    Raises:
        ValueError: it reads none.
    """
    wrong = ["it takes no input for media that is known here"]
    for media in [family.media(model.config)] if family.media else candidates(model):
        counts = [family.count or (4 if "image_grid_thw" in media else 1)]
        while counts:
            inputs = prompt(model, media, counts.pop(), family)
            try:
                with torch.no_grad(), quiet():
                    model.generate(**inputs, max_new_tokens=1, min_new_tokens=1, do_sample=False)
                return inputs
            except Exception as error:  # whatever a class makes of inputs of another shape
                wrong.append(f"{sorted(media)}: {type(error).__name__}: {error}")
                asked = re.search(r"features:? (\d+)", str(error))
                if asked and not family.count:  # the number of their rows, or of all numbers in them
                    before = int((inputs["input_ids"] >= ORDINARY).sum())
                    counts += [
                        each for each in (int(asked[1]), int(asked[1]) // 32) if 0 < each < 99 and each != before
                    ][:1]
    raise ValueError("; ".join(dict.fromkeys(each.splitlines()[0] for each in wrong[1:] or wrong)))


def prompt(model: Any, media: Mapping[str, Any], count: int, family: Family) -> dict[str, Any]:
    """Return ids around so many placeholders, what the media are, and the types of tokens where the class has them."""
    random = np.random.default_rng(count)
    config, parameters = model.config, inspect.signature(type(model).forward).parameters
    medium = "audio" if any(each in name for name in media for each in ("audio", "input_")) else "image"
    place = next(
        (
            value
            for part in parts(config)
            for option in (f"{medium}_token_id", f"{medium}_token_index")
            if isinstance(value := getattr(part, option, None), int)
        ),
        ORDINARY + PLACES[medium],
    )
    begin = getattr(config, "vision_start_token_id", None) or getattr(config, "image_start_token_id", None)
    before, behind = ([int(each) for each in random.integers(3, ORDINARY, length)] for length in (5, 7))
    begun = [begin] if isinstance(begin, int) and medium == "image" else []
    ids = torch.tensor([[1, *before, *begun, *[place] * count, *behind]])
    inputs = {"input_ids": ids, **media, "attention_mask": torch.ones_like(ids)}
    for types in ("token_type_ids", "mm_token_type_ids"):
        if types in parameters:
            inputs[types] = (ids == place).long() * (3 if medium == "audio" and types[0] == "m" else 1)
    return inputs | (family.more(inputs) if family.more else {})


def candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Yield media in the forms that classes take them in, random and small."""
    torch.manual_seed(3)
    config, parameters = model.config, set(inspect.signature(type(model).forward).parameters)
    vision = getattr(config, "vision_config", None) or config
    patch = getattr(vision, "patch_size", 4)
    patch = patch if isinstance(patch, int) else patch[0]
    size = getattr(vision, "image_size", None) or 16
    size = size if isinstance(size, int) else size[0]
    if "image_grid_thw" in parameters:
        grid = torch.tensor([[1, 4, 4]])
        for frames in (2, 1):
            yield {"pixel_values": torch.randn(16, 3 * frames * patch * patch), "image_grid_thw": grid}
        yield {"pixel_values": torch.randn(16, 3, patch, patch), "image_grid_thw": grid}
        yield {"pixel_values": torch.randn(1, 16, 3, patch, patch), "image_grid_thw": grid}
    elif "pixel_values" in parameters:
        sizes = {"image_sizes": torch.tensor([[size, size]])} if "image_sizes" in parameters else {}
        yield {"pixel_values": torch.randn(1, 3, size, size), **sizes}
        for images in (1, 2, 5):
            yield {"pixel_values": torch.randn(1, images, 3, size, size), **sizes}
    if "input_features" in parameters:
        masks = [name for name in ("feature_attention_mask", "input_features_mask") if name in parameters]
        for shape, length in (((1, 8, 16), 16), ((1, 16, 8), 16), ((1, 8, 32), 32), ((1, 32, 8), 32)):
            for kind in (torch.long, torch.bool):
                yield {
                    "input_features": torch.randn(shape),
                    **{each: torch.ones(1, length, dtype=kind) for each in masks},
                }
    if "input_values" in parameters:
        for length in (320, 1280, 6400):
            yield {"input_values": torch.randn(1, length)}
            yield {"input_values": torch.randn(1, 1, length)}
