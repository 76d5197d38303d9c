"""What a model's generation config asks for that is not decoding one token after the other, and how it is left out.

Checkpoints come with such values: BART's summaries with `num_beams`, older ones with a static cache. Options given to
`generate` have precedence over them, also if they are None.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any

from transformers import GenerationConfig

MODES: Mapping[str, Any] = MappingProxyType(  # names, and the values with which one token follows the other
    {
        **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), 1),
        **dict.fromkeys(("penalty_alpha", "dola_layers", "constraints", "force_words_ids"), None),
        **dict.fromkeys(("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp"), None),
        "cache_implementation": None,
    }
)
DECIDING = tuple(name for name in MODES if name not in ("cache_implementation", "num_return_sequences"))  # the mode
_GROWING = ("dynamic", "dynamic_full", "hybrid")  # caches to which rows are added; "hybrid" is an old name
_RULES = (  # what rules tokens out or ends texts, beside end-of-text tokens
    *("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids"),
    *("sequence_bias", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"),
    *("guidance_scale", "max_time", "stop_strings"),
)

CONTRADICTING = ("min_new_tokens", "min_length", "forced_bos_token_id", "forced_eos_token_id")  # constraints


def contradicts(name: str, settings: Any) -> bool:
    """Return whether settings rule out tokens that a constraint may allow, by a setting of `CONTRADICTING`."""
    value = getattr(settings, name, None)
    return bool(value) if name.startswith("min_") else value is not None  # a forced token may be number 0


def leave_out_modes(
    own: GenerationConfig, *, asked: GenerationConfig | None = None, given: Container[str] = ()
) -> dict[str, Any]:
    """Return the options for `generate` that leave out the modes of a model's own config, by name.

    Args:
        own: the model's generation config.
        asked: the config of the request, which has precedence; or None.
        given: options of the request, which have precedence.
    """
    found = {}
    for name, without in MODES.items():
        value, other = getattr(own, name, None), getattr(asked, name, None)
        usual = value in (None, False, without) or (name == "cache_implementation" and value in _GROWING)
        if not (usual or name in given or other not in (None, False)):
            found[name] = without
    return found


def leave_out_all(own: GenerationConfig) -> dict[str, Any]:
    """Return the options for `generate` that leave out modes, and what rules tokens out, of a model's own config."""
    return dict.fromkeys(name for name in _RULES if getattr(own, name, None) is not None) | leave_out_modes(own)
