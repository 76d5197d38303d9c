"""Prepares a request as `generate` prepared an earlier one with the same options, without calling it again.

transformers' `generate` inspects signatures and copies configs for milliseconds, as long as several passes of a small
model. For text alone and the usual options, what it prepares depends on the prompt in a few known places only: ids,
positions, mask, length and an empty cache. A call in which anything else might depend on it is not repeated.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from speculant.engines.hf.sampling.generate_capture import GenerateCall
from speculant.engines.hf.sampling.sampler import row_wise

LIMIT = 64  # combinations of options that are remembered
_PLAIN = (bool, int, float, str, type(None))
_IN_LOOP = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")  # they prepare passes, not calls
_METHODS = (FunctionType, staticmethod, classmethod)
_PREPARING = tuple(
    name for name, each in vars(GenerationMixin).items() if isinstance(each, _METHODS) and name not in _IN_LOOP
)


@dataclass(frozen=True, slots=True, eq=False)
class _Input:
    """An input of the model that depends on the prompt of T tokens: its kind and form."""

    kind: Literal["cache", "mask", "positions"]
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """What `generate` prepared for some options, without what depends on the prompt.

    Attributes:
        processors: its logits processors, which keep nothing of a text.
        criteria: its stopping criteria: end of text and length.
        config: its generation config.
        cache: an empty cache; None if `generate` leaves it to the loop.
        inputs: the inputs of the model by name: plain values, and where the others come from.
    """

    processors: tuple[Any, ...]
    criteria: tuple[Any, ...]
    config: Any
    cache: DynamicCache | None
    inputs: Mapping[str, Any]


class RepeatedCalls:
    """The calls that a model's `generate` prepared, by options. They hold for one state of the model's modules.

    The model's generation config may change at any time; the calls prepared before are then forgotten.
    """

    def __init__(self, model: Any) -> None:
        """Begin without calls.

        Args:
            model: the model whose own `generate` prepares them.
        """
        self._model = model
        self._usual = all(_is_usual(model, name) for name in _PREPARING)
        self._config: Any = None  # a copy of the model's generation config
        self._prepared: dict[tuple[tuple[str, str], ...], _Prepared] = {}  # least recently used first

    def find(self, ids: Tensor, options: Mapping[str, Any], *, max_new_tokens: int) -> GenerateCall | None:
        """Return the call that `generate` would prepare; None if it must be asked.

        Args:
            ids: Int64[1, T], the prompt.
            options: options of `generate` besides these.
            max_new_tokens: the maximum number of new tokens.
        """
        key = _key(ids, options)
        if key is None or not self._holds() or (found := self._prepared.pop(key, None)) is None:
            return None
        self._prepared[key] = found  # the latest
        length, cache = ids.shape[1], _copy_cache(found.cache)
        config = copy.copy(found.config)
        config.max_length, config.max_new_tokens = length + max_new_tokens, max_new_tokens
        if hasattr(config, "_mask_length"):
            config._mask_length = length
        inputs = {name: _make_input(value, ids, cache) for name, value in found.inputs.items()}
        criteria = [_limit_criterion(each, config.max_length) for each in found.criteria]
        call = GenerateCall()
        call(self._model, ids, found.processors, criteria, config, **inputs)
        return call

    def keep(self, call: GenerateCall, ids: Tensor, options: Mapping[str, Any], *, max_new_tokens: int) -> None:
        """Remember what `generate` prepared, before it is used; the arguments as in `find`."""
        key, length = _key(ids, options), ids.shape[1] + max_new_tokens
        lengths = [each.max_length for each in call.criteria if type(each) is MaxLengthCriteria]
        if (
            key is None
            or not self._usual
            or call.model is not self._model
            or not torch.equal(call.ids, ids)
            or not row_wise(call.processors)
            or any(type(each) not in (MaxLengthCriteria, EosTokenCriteria) for each in call.criteria)
            or {*lengths, call.config.max_length} != {length}
            or call.config.max_new_tokens != max_new_tokens
            or not (call.cache is None or _is_usual_cache(call.cache))
        ):
            return
        inputs = {name: _pattern(value, ids, call.cache) for name, value in call.inputs.items()}
        if any(type(value) not in (*_PLAIN, _Input) for value in inputs.values()):
            return
        if not self._holds():
            self._prepared.clear()
            self._config = copy.deepcopy(self._model.generation_config)
        config = copy.copy(call.config)
        self._prepared[key] = _Prepared((*call.processors,), (*call.criteria,), config, _copy_cache(call.cache), inputs)
        if len(self._prepared) > LIMIT:
            del self._prepared[next(iter(self._prepared))]

    def _holds(self) -> bool:
        """Return whether the model's generation config is what it was when the calls were prepared."""
        now, then = self._model.generation_config, self._config
        try:
            return type(now) is type(then) and bool(vars(now) == vars(then))
        except (RuntimeError, ValueError):  # a value that cannot be compared, such as an array
            return False


def _is_usual(model: Any, name: str) -> bool:
    """Return whether a method of a model is transformers' own."""
    home = next((kind for kind in type(model).__mro__ if name in vars(kind)), None)
    return home is GenerationMixin and name not in vars(model)


def _key(ids: Tensor, options: Mapping[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """Return what identifies options; None if they are more than plain values and a mask of ones."""
    mask, found = options.get("attention_mask"), list[tuple[str, str]]()
    if len(ids) != 1 or not isinstance(mask, Tensor) or mask.shape != ids.shape or not bool((mask == 1).all()):
        return None
    found.append(("attention_mask", f"{mask.dtype} {mask.device} {ids.dtype} {ids.device}"))
    for name, value in options.items():
        if name == "attention_mask":
            continue
        if type(value) not in _PLAIN and not (type(value) is list and all(type(each) is int for each in value)):
            return None
        found.append((name, repr(value)))
    return tuple(sorted(found))


def _pattern(value: Any, ids: Tensor, cache: Any) -> Any:
    """Return how an input follows from the prompt; the value itself if it does not, or is not known to."""
    if value is cache and cache is not None:
        return _Input("cache")
    if not isinstance(value, Tensor) or value.device != ids.device or value.numel() != ids.shape[1]:
        return value
    form = value.shape[:-1], value.dtype
    row = value.reshape(-1)
    if torch.equal(row, torch.arange(len(row), dtype=value.dtype, device=ids.device)):
        return _Input("positions", *form)
    return _Input("mask", *form) if bool((row == 1).all()) else value


def _make_input(value: Any, ids: Tensor, cache: DynamicCache | None) -> Any:
    """Return an input for a prompt; see `_pattern`."""
    if type(value) is not _Input:
        return value
    if value.kind == "cache":
        return cache
    length = ids.shape[1]
    if value.kind == "mask":
        return torch.ones((*value.shape, length), dtype=value.dtype, device=ids.device)
    return torch.arange(length, dtype=value.dtype, device=ids.device).reshape(*value.shape, length)


def _limit_criterion(criterion: Any, length: int) -> Any:
    """Return a stopping criterion for texts of a maximum length."""
    if type(criterion) is not MaxLengthCriteria:
        return criterion
    made = copy.copy(criterion)
    made.max_length = length
    return made


def _is_usual_cache(cache: Any) -> bool:
    """Return whether a cache is transformers' usual one, with nothing but plain settings besides its layers."""
    settings = [value for name, value in vars(cache).items() if name != "layers"] if type(cache) is DynamicCache else []
    return bool(settings) and all(type(value) in _PLAIN for value in settings)


def _copy_cache(cache: DynamicCache | None) -> DynamicCache | None:
    """Return a copy of an empty cache, whose layers share nothing that can be written to; None for none."""
    if cache is None:
        return None
    made = copy.copy(cache)
    plain = [all(type(value) in _PLAIN for value in vars(layer).values()) for layer in cache.layers]
    made.layers = [
        copy.copy(layer) if shallow else copy.deepcopy(layer)
        for layer, shallow in zip(cache.layers, plain, strict=True)
    ]
    return made
