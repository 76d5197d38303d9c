"""Tiny random models of every class that reads media, or an encoder's source, and a prompt for each."""

from __future__ import annotations

from typing import Any

import transformers
from transformers.models.auto import modeling_auto as auto

from architecture_matrix.media_models import build_media

GROUPS: dict[str, dict[str, str]] = {  # by the Auto class that knows them, their model types and classes
    "AutoModelForImageTextToText": auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    "AutoModelForMultimodalLM": auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    "AutoModelForSeq2SeqLM": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForSpeechSeq2Seq": auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
}


def source_names(group: str) -> list[str]:
    """Return the model types of a group that no group before it has with the same class."""
    before = [known for other, known in GROUPS.items() if list(GROUPS).index(other) < list(GROUPS).index(group)]
    return sorted(name for name, kind in GROUPS[group].items() if all(each.get(name) != kind for each in before))


def source_class(group: str, name: str) -> str:
    """Return the class of a model type."""
    return str(GROUPS[group][name])


def build_with_source(group: str, name: str, attention: str) -> tuple[Any, dict[str, Any]]:
    """Return a tiny random fp32 model and the inputs of a prompt.

    Raises:
        Exception: whatever the class raises if it cannot be built with these sizes, or reads none of the inputs.
    """
    kind = getattr(transformers, source_class(group, name))
    return build_media(name, kind, attention)
