"""The settings of a GGUF file below its architecture's name, read with their defaults and checked.

Every key in the file is either read, known to have no effect, or refused: an overlooked setting would silently change
the model's output. Keys and their meanings are llama.cpp's (`llama-arch.cpp` and `src/models` of
github.com/ggml-org/llama.cpp).
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

from speculant.core.errors import ModelError, UnsupportedError
from speculant.engines.hf.quantized.gguf.architectures import Architecture
from speculant.engines.hf.quantized.gguf.file import GgufFile

SLIDING, FULL = "sliding_attention", "full_attention"
_SIZES = MappingProxyType(
    {
        "context_length": "max_position_embeddings",
        "block_count": "num_hidden_layers",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
    }
)
_READ = (
    *_SIZES,
    "vocab_size",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
)
_WITHOUT_MEANING = ("rope.scaling.finetuned",)  # keys written by llama.cpp that do not affect the output
_ONLY = MappingProxyType({"attention.causal": True, "expert_count": 0, "expert_used_count": 0, "pooling_type": 0})


class Settings:
    """The settings of a file, below its architecture's name."""

    def __init__(self, file: GgufFile, architecture: Architecture) -> None:
        self.file, self.architecture = file, architecture
        self._prefix = f"{architecture.name}."

    def check(self) -> None:
        """Check that no setting would be ignored.

        Raises:
            UnsupportedError: a setting would be ignored.
        """
        known = {*_READ, *_WITHOUT_MEANING, *self.architecture.settings}
        for key, value in self.file.metadata.items():
            setting = key.removeprefix(self._prefix)
            if setting == key or setting in known:
                continue
            if setting not in _ONLY or value != _ONLY[setting]:
                raise UnsupportedError(
                    f"{self.file.path} has the setting '{key}' ({value!r:.40}), which Speculant's own passes do not "
                    "support. Use llama.cpp (--engine llamacpp)."
                )

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer; for a list of equal integers, their value.

        Raises:
            ModelError: it is missing without a default, or below 1.
            UnsupportedError: it differs between layers.
        """
        found: Any = self.file.metadata.get(self._prefix + key, default)
        if isinstance(found, list) and found:
            if any(each != found[0] for each in found):
                raise UnsupportedError(
                    f"'{self._prefix}{key}' of {self.file.path} differs between layers, which Speculant's own passes "
                    "do not support. Use llama.cpp (--engine llamacpp)."
                )
            found = found[0]
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise self.wrong(key, found)
        return found

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number.

        Raises:
            ModelError: it is missing without a default.
        """
        found = self.file.metadata.get(self._prefix + key, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise self.wrong(key, found)
        return float(found)

    def has(self, key: str) -> bool:
        """Return whether the file has a setting."""
        return self._prefix + key in self.file.metadata

    def token(self, key: str) -> int | None:
        """Return the id of a special token, such as "bos_token_id"; None if there is none in the vocabulary."""
        name = {"pad_token_id": "padding_token_id"}.get(key, key)
        found = self.file.metadata.get(f"tokenizer.ggml.{name}")
        return found if isinstance(found, int) and 0 <= found < self.vocabulary() else None

    def vocabulary(self) -> int:
        """Return the number of rows of the embedding.

        Raises:
            ModelError: there is no embedding.
        """
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelError(f"{self.file.path} has no embedding 'token_embd.weight'. Convert the model again.")
        return embedding.shape[0]

    def sizes(self) -> dict[str, Any]:
        """Return the settings that all architectures share.

        Raises:
            ModelError: a size is missing or invalid.
            UnsupportedError: keys and values of a head differ in size.
        """
        found: dict[str, Any] = {name: self.integer(key) for key, name in _SIZES.items() if self.has(key)}
        if self.has("expert_count"):
            found.setdefault("intermediate_size", 1)  # for layers without experts; there are none
        if missing := [key for key, name in _SIZES.items() if name not in found]:
            raise self.wrong(missing[0], None)
        heads = found["num_attention_heads"]
        size = self.integer("attention.key_length", found["hidden_size"] // heads or 1)
        if self.integer("attention.value_length", size) != size:
            raise UnsupportedError(
                f"keys and values of {self.file.path} differ in size. Use llama.cpp (--engine llamacpp)."
            )
        found |= {
            "vocab_size": self.vocabulary(),
            "num_key_value_heads": self.integer("attention.head_count_kv", heads),
            "head_dim": size,
            "rms_norm_eps": self.number("attention.layer_norm_rms_epsilon"),
        }
        if heads % found["num_key_value_heads"]:
            raise self.wrong("attention.head_count_kv", found["num_key_value_heads"])
        self._check_head(size)
        return found

    def _check_head(self, size: int) -> None:
        """Refuse what transformers' models lack: another scaling of scores, rotation of only part of a head."""
        scaled = self.number("attention.scale", size**-0.5)
        rotated = self.integer("rope.dimension_count", size)
        if abs(scaled * size**0.5 - 1) > 1e-5 or (rotated != size and self.architecture.name != "phi3"):
            key = "attention.scale" if rotated == size else "rope.dimension_count"
            raise UnsupportedError(
                f"'{self._prefix}{key}' of {self.file.path} does not follow from the size of a head, {size}, as in "
                "models of transformers. Use llama.cpp (--engine llamacpp)."
            )

    def rope(self) -> dict[str, Any]:
        """Return the rotary settings. Factors in `rope_freqs.weight` are applied to the model, see `model`.

        Raises:
            UnsupportedError: the rotary embedding is of an unknown kind.
        """
        theta, factor = self.number("rope.freq_base", 10000.0), self.number("rope.scaling.factor", 0.0)
        factor = factor or self.number("rope.scale_linear", 0.0) or 1.0
        kind = self.file.metadata.get(f"{self._prefix}rope.scaling.type", "linear")
        if kind == "none" or (kind == "linear" and factor == 1):
            return {"rope_type": "default", "rope_theta": theta}
        if kind == "linear":
            return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
        if kind == "longrope" and self.architecture.name == "phi3":
            return {"rope_type": "default", "rope_theta": theta}  # the file's factors are applied separately
        if kind != "yarn":
            raise UnsupportedError(
                f"the rotary embedding of {self.file.path} is scaled by '{kind!s:.40}', which Speculant's own passes "
                "do not support. Use llama.cpp (--engine llamacpp)."
            )
        found = {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "original_max_position_embeddings": self.integer("rope.scaling.original_context_length"),
            "beta_fast": self.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": self.number("rope.scaling.yarn_beta_slow", 1.0),
        }
        if self.has("rope.scaling.yarn_log_multiplier"):
            found |= {"mscale": 1.0, "mscale_all_dim": self.number("rope.scaling.yarn_log_multiplier")}
        return found

    def outs(self, tensor: str) -> int:
        """Return the number of outputs of a matrix, or of one expert.

        Raises:
            ModelError: there is no such matrix.
        """
        found = self.file.tensors.get(tensor)
        if found is None or len(found.shape) < 2:
            raise ModelError(f"{self.file.path} lacks the tensor '{tensor}'. Convert the model again.")
        return found.shape[-2]

    def layer_types(self, period: int, layers: int) -> list[str]:
        """Return the kind of each layer: windowed except the last of each period, or as listed in the file."""
        given: Any = self.file.metadata.get(self._prefix + "attention.sliding_window_pattern", period)
        if isinstance(given, list):
            if len(given) != layers:
                raise self.wrong("attention.sliding_window_pattern", given)
            return [SLIDING if each else FULL for each in given]
        period = self.integer("attention.sliding_window_pattern", period)
        return [SLIDING if (layer + 1) % period else FULL for layer in range(layers)]

    def wrong(self, key: str, found: Any) -> ModelError:
        """Return the error for a setting that is missing (None) or invalid."""
        what = "is missing" if found is None else f"is {found!r:.40}"
        return ModelError(f"{self.file.path} cannot be used: '{self._prefix}{key}' {what}. Convert the model again.")
