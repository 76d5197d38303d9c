"""The config of a model of transformers from the metadata of a GGUF file.

Every key below the architecture's name that is in the file is read, is known to change nothing, or is refused: a
setting that was overlooked would change the model's output without a word. Keys and their meanings are those of
llama.cpp (`llama-arch.cpp` and `src/models` of github.com/ggml-org/llama.cpp). What a file does not say stands in
`_SPECIAL`, as llama.cpp has it in its code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from speculant.core.errors import ModelError, UnsupportedError
from speculant.engines.hf.quantized.gguf_architectures import ARCHITECTURES, HEAD, LONG, MIXTRAL, SHORT, Architecture
from speculant.engines.hf.quantized.gguf_file import GgufFile

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
_WITHOUT_MEANING = ("rope.scaling.finetuned",)  # keys that llama.cpp writes and that change no output
_ONLY = MappingProxyType({"attention.causal": True, "expert_count": 0, "expert_used_count": 0, "pooling_type": 0})
_SLIDING, _FULL = "sliding_attention", "full_attention"


def find_architecture(file: GgufFile) -> Architecture:
    """Return the architecture of a file.

    Raises:
        ModelError: the file does not name one.
        UnsupportedError: it is none of `ARCHITECTURES`.
    """
    name = file.read("general.architecture", str)
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            f"models of the architecture '{name}' do not run on Speculant's own passes, which know "
            f"{', '.join(ARCHITECTURES)}. Use llama.cpp (--engine llamacpp)."
        )
    return MIXTRAL if name == "llama" and file.metadata.get("llama.expert_count") else ARCHITECTURES[name]


def read_config(file: GgufFile) -> Any:
    """Return the config of a file's model, of the class that transformers has for it.

    Raises:
        ModelError: a setting is missing or makes no sense.
        UnsupportedError: the architecture, or a setting of it, is not known here.
    """
    from transformers import CONFIG_MAPPING

    architecture = find_architecture(file)
    if architecture.model_type not in CONFIG_MAPPING:
        raise UnsupportedError(
            f"this release of transformers has no {architecture.model_type} models; install a newer one, or use "
            "llama.cpp (--engine llamacpp)."
        )
    found = _Settings(file, architecture)
    found.check()
    values = found.sizes() | {"rope_parameters": found.rope()}
    if architecture.model_type in _SPECIAL:
        values |= _SPECIAL[architecture.model_type](found, values)
    values |= {
        "tie_word_embeddings": HEAD not in file.tensors,
        **{key: found.token(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }
    try:
        return CONFIG_MAPPING[architecture.model_type](**values)
    except Exception as error:  # validators of transformers raise what they like
        raise ModelError(f"{file.path} cannot be used: its settings are not possible: {error}.") from error


class _Settings:
    """The settings of a file, below its architecture's name."""

    def __init__(self, file: GgufFile, architecture: Architecture) -> None:
        self.file, self.architecture = file, architecture
        self._prefix = f"{architecture.name}."

    def check(self) -> None:
        """Check that no setting would be ignored.

        Raises:
            UnsupportedError: one would.
        """
        known = {*_READ, *_WITHOUT_MEANING, *self.architecture.settings}
        for key, value in self.file.metadata.items():
            setting = key.removeprefix(self._prefix)
            if setting == key or setting in known:
                continue
            if setting not in _ONLY or value != _ONLY[setting]:
                raise UnsupportedError(
                    f"{self.file.path} has the setting '{key}' ({value!r:.40}), which Speculant's own passes do not "
                    "know. Use llama.cpp (--engine llamacpp)."
                )

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number, above 0; of a list of equal ones, the one.

        Raises:
            ModelError: there is none and no default, or it is below 1.
            UnsupportedError: layers differ in it.
        """
        found: Any = self.file.metadata.get(self._prefix + key, default)
        if isinstance(found, list) and found:
            if any(each != found[0] for each in found):
                raise UnsupportedError(
                    f"'{self._prefix}{key}' of {self.file.path} differs between layers, which Speculant's own passes "
                    "do not know. Use llama.cpp (--engine llamacpp)."
                )
            found = found[0]
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise self.wrong(key, found)
        return found

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number.

        Raises:
            ModelError: there is none and no default.
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
        """Return how many rows the embedding has.

        Raises:
            ModelError: there is no embedding.
        """
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelError(f"{self.file.path} has no embedding 'token_embd.weight'. Convert the model again.")
        return embedding.shape[0]

    def sizes(self) -> dict[str, Any]:
        """Return what all architectures have.

        Raises:
            ModelError: a size is missing or makes no sense.
            UnsupportedError: keys and values of a head differ in size.
        """
        found: dict[str, Any] = {name: self.integer(key) for key, name in _SIZES.items() if self.has(key)}
        if self.has("expert_count"):
            found.setdefault("intermediate_size", 1)  # of layers without experts, of which there are none
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
        """Refuse what the models of transformers do not have: scores scaled otherwise, a part of a head rotated."""
        scaled = self.number("attention.scale", size**-0.5)
        rotated = self.integer("rope.dimension_count", size)
        if abs(scaled * size**0.5 - 1) > 1e-5 or (rotated != size and self.architecture.name != "phi3"):
            key = "attention.scale" if rotated == size else "rope.dimension_count"
            raise UnsupportedError(
                f"'{self._prefix}{key}' of {self.file.path} does not follow from the size of a head, {size}, as in "
                "models of transformers. Use llama.cpp (--engine llamacpp)."
            )

    def rope(self) -> dict[str, Any]:
        """Return the rotary embedding. Factors of `rope_freqs.weight` are applied to the model, see `gguf_model`.

        Raises:
            UnsupportedError: it is of a kind that is not known here.
        """
        theta, factor = self.number("rope.freq_base", 10000.0), self.number("rope.scaling.factor", 0.0)
        factor = factor or self.number("rope.scale_linear", 0.0) or 1.0
        kind = self.file.metadata.get(f"{self._prefix}rope.scaling.type", "linear")
        if kind == "none" or (kind == "linear" and factor == 1):
            return {"rope_type": "default", "rope_theta": theta}
        if kind == "linear":
            return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
        if kind == "longrope" and self.architecture.name == "phi3":
            return {"rope_type": "default", "rope_theta": theta}  # what the factors in the file become
        if kind != "yarn":
            raise UnsupportedError(
                f"the rotary embedding of {self.file.path} is scaled by '{kind!s:.40}', which Speculant's own passes "
                "do not know. Use llama.cpp (--engine llamacpp)."
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
        """Return how many outputs a matrix has, or those of an expert.

        Raises:
            ModelError: there is no such matrix.
        """
        found = self.file.tensors.get(tensor)
        if found is None or len(found.shape) < 2:
            raise ModelError(f"{self.file.path} lacks the tensor '{tensor}'. Convert the model again.")
        return found.shape[-2]

    def layer_types(self, period: int, layers: int) -> list[str]:
        """Return which layers see a window: all but the last of each period, or as a list in the file says."""
        given: Any = self.file.metadata.get(self._prefix + "attention.sliding_window_pattern", period)
        if isinstance(given, list):
            if len(given) != layers:
                raise self.wrong("attention.sliding_window_pattern", given)
            return [_SLIDING if each else _FULL for each in given]
        period = self.integer("attention.sliding_window_pattern", period)
        return [_SLIDING if (layer + 1) % period else _FULL for layer in range(layers)]

    def wrong(self, key: str, found: Any) -> ModelError:
        """Return the error of a setting that is missing (None) or makes no sense."""
        what = "is missing" if found is None else f"is {found!r:.40}"
        return ModelError(f"{self.file.path} cannot be used: '{self._prefix}{key}' {what}. Convert the model again.")


def _llama(found: _Settings, _: Mapping[str, Any]) -> dict[str, Any]:
    tensors = found.file.tensors
    return {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}


def _gemma2(found: _Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_attention_scale(values, largest=46),
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": found.integer("attention.sliding_window", 4096),
        "layer_types": found.layer_types(2, values["num_hidden_layers"]),
        "attn_logit_softcapping": found.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": found.number("final_logit_softcapping", 30.0),
    }


def _gemma3(found: _Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    local = {"rope_type": "default", "rope_theta": found.number("rope.freq_base_swa", 10000.0)}
    windows = found.integer("attention.sliding_window") if found.has("attention.sliding_window") else None
    capped = found.has("final_logit_softcapping")
    return {
        **_attention_scale(values, largest=62),
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": windows or values["max_position_embeddings"],
        "layer_types": found.layer_types(6 if windows else 1, values["num_hidden_layers"]),
        "rope_parameters": {_FULL: values["rope_parameters"], _SLIDING: local},
        "final_logit_softcapping": found.number("final_logit_softcapping") if capped else None,
    }


def _attention_scale(values: Mapping[str, Any], *, largest: int) -> dict[str, Any]:
    """Return the number whose root divides scores: of a head, but in Gemma's models of the most layers."""
    of_a_head = values["hidden_size"] // values["num_attention_heads"]
    return {"query_pre_attn_scalar": of_a_head if values["num_hidden_layers"] == largest else values["head_dim"]}


def _phi3(found: _Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    size, window = values["head_dim"], found.file.metadata.get("phi3.attention.sliding_window", 0)
    if size != values["hidden_size"] // values["num_attention_heads"]:
        raise UnsupportedError(
            f"a head of {found.file.path} has {size} dimensions, which Phi-3 models of transformers cannot have. Use "
            "llama.cpp (--engine llamacpp)."
        )
    original = found.integer("rope.scaling.original_context_length", values["max_position_embeddings"])
    rope = dict(values["rope_parameters"])
    rope["partial_rotary_factor"] = found.integer("rope.dimension_count", size) / size
    factors = {"short_factor": found.file.tensors.get(SHORT), "long_factor": found.file.tensors.get(LONG)}
    if None not in factors.values():
        rope |= {name: each.floats().tolist() for name, each in factors.items() if each is not None}
        rope |= {"rope_type": "longrope", "original_max_position_embeddings": original}
        rope["factor"] = values["max_position_embeddings"] / original
        if found.has("rope.scaling.attn_factor"):
            rope["attention_factor"] = found.number("rope.scaling.attn_factor")
    return {
        "rope_parameters": rope,
        "original_max_position_embeddings": original,
        # llama.cpp reads this and runs full attention; the model was trained with the window.
        "sliding_window": window if isinstance(window, int) and window > 0 else None,
    }


def _mistral3(found: _Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    rope = dict(values["rope_parameters"])
    rope["llama_4_scaling_beta"] = found.number("attention.temperature_scale", 0.0)
    rope.setdefault("original_max_position_embeddings", values["max_position_embeddings"])
    return {"rope_parameters": rope}


def _mixtral(found: _Settings, _: Mapping[str, Any]) -> dict[str, Any]:
    return {"num_local_experts": found.integer("expert_count"), "num_experts_per_tok": _used(found)}


def _qwen2moe(found: _Settings, _: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_experts(found),
        "shared_expert_intermediate_size": found.outs("blk.0.ffn_up_shexp.weight"),
        "norm_topk_prob": False,
    }


def _qwen3moe(found: _Settings, _: Mapping[str, Any]) -> dict[str, Any]:
    return {**_experts(found), "norm_topk_prob": True}


def _gpt_oss(found: _Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    rope = dict(values["rope_parameters"])
    if rope["rope_type"] == "yarn":
        rope["truncate"] = False  # as the model was trained; no key of the file says so
    return {
        "num_local_experts": found.integer("expert_count"),
        "num_experts_per_tok": _used(found),
        "intermediate_size": found.outs("blk.0.ffn_up_exps.weight"),
        "sliding_window": found.integer("attention.sliding_window"),
        "layer_types": found.layer_types(2, values["num_hidden_layers"]),
        "rope_parameters": rope,
    }


def _experts(found: _Settings) -> dict[str, Any]:
    return {
        "num_experts": found.integer("expert_count"),
        "num_experts_per_tok": _used(found),
        "moe_intermediate_size": found.outs("blk.0.ffn_up_exps.weight"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _used(found: _Settings) -> int:
    """Return how many experts a row chooses.

    Raises:
        ModelError: there are fewer.
    """
    used = found.integer("expert_used_count")
    if used > found.integer("expert_count"):
        raise found.wrong("expert_used_count", used)
    return used


_SPECIAL: Mapping[str, Callable[[_Settings, Mapping[str, Any]], dict[str, Any]]] = MappingProxyType(
    {
        "llama": _llama,
        "ministral3": _mistral3,
        "mixtral": _mixtral,
        "qwen2_moe": _qwen2moe,
        "qwen3_moe": _qwen3moe,
        "gpt_oss": _gpt_oss,
        "gemma2": _gemma2,
        "gemma3_text": _gemma3,
        "phi3": _phi3,
    }
)
