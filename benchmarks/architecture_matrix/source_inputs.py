"""Prompts with media or an encoder's source, as a processor would make them, for tiny random models."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from architecture_matrix.media_families import Family
from speculant.engines.hf.probe.tiny import quiet

ORDINARY = 45  # ids from here on stand for media, and are in no prompt
PLACES = {"image": 0, "video": 1, "audio": 2}
_SOURCE = 11  # tokens of a text that an encoder reads


def find_inputs(model: Any, family: Family) -> dict[str, Any]:
    """Return the inputs of a prompt, with media or a source, that the model reads.

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
    raise ValueError("; ".join(dict.fromkeys((each.splitlines() or [""])[0] for each in wrong[1:] or wrong)))


def prompt(model: Any, media: Mapping[str, Any], count: int, family: Family) -> dict[str, Any]:
    """Return what is read beside media: ids around so many placeholders, or nothing where media alone are encoded."""
    if model.config.is_encoder_decoder and (not media or {model.main_input_name, "input_features"} & set(media)):
        inputs = dict(media) or encoded_text()
    else:
        inputs = _around(model, media, count)
    return inputs | (family.more(inputs) if family.more else {})


def encoded_text() -> dict[str, Any]:
    """Return a text that an encoder reads."""
    ids = torch.tensor([np.random.default_rng(3).integers(3, ORDINARY, _SOURCE).tolist()])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _around(model: Any, media: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return ids around so many placeholders, the media, and the types of tokens where the class has them."""
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
    return inputs


def parts(config: Any) -> Iterator[Any]:
    """Yield a config and the configs in it."""
    yield config
    for value in list(config.__dict__.values()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from parts(value)


def candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Yield media in the forms that classes take them in, random and small; none at all for an encoder of text."""
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
    if config.is_encoder_decoder and model.main_input_name == "input_ids":
        yield {}
