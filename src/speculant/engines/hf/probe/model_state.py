"""The state of a loaded model that affects how its passes compute rows, besides its config, class, dtype and device.

Hooks, forwards replaced on instances, exchanged modules, adapters, gates and flags change a forward pass after loading,
so a probe's findings hold only for the model as it was then. `state_of` is compared before each request
(`watched_state`): classes, code, flags, identities and versions. `digest_of` identifies the same state by value, for
other processes; there is no digest if other processes could not identify the code.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import sys
import types
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as module_hooks
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from speculant.engines.hf.modules_state import HOOKS

SMALL = 1 << 14  # tensors up to this many elements are read whole, larger ones sampled
SAMPLE = 64
TINY = 16  # maximum elements of a buffer that may be a gate; their values are compared
_PLAIN = (bool, int, float, str, type(None))
_IGNORED = ("max_seq_len_cached", "name_or_path")  # attributes: changed by long texts; the folder of a checkpoint
_ROTARY = "inv_freq"  # buffers also changed by long texts; they rotate rows one by one
_ADAPTERS = ("_active_adapter", "merged_adapters")
_KNOWN = ("transformers", "transformers_modules", "torch", "peft", "accelerate")
_PREPARING = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation", "_prefill", "_sample")
_CODE = (types.FunctionType, types.MethodType, functools.partial)
_CACHES = (Cache, DynamicCache, DynamicLayer)
_DENSE = (Tensor, nn.Parameter, nn.Buffer)


def state_of(model: Any) -> tuple[Hashable, ...]:
    """Return a value that compares unequal after anything that affects how passes compute has changed.

    It holds the hooks and functions themselves, so that their ids are not reused, and no tensors.
    """
    parts, kinds, configs = list[Hashable](), set[Any](), dict[int, Any]()
    for module in model.modules():
        attributes = module.__dict__
        kind: Any = type(module)
        kinds.add(kind)
        parts += [id(module), kind, kind.forward, kind.__call__, attributes.get("forward"), flags_of(module)]
        parts += (value for value in attributes.values() if isinstance(value, _CODE))
        if "config" in attributes:
            configs[id(attributes["config"])] = attributes["config"]
        for name in HOOKS:
            parts += attributes[name].values()
        parts += versions_of(module)
    return tuple(parts) + surroundings_of(model, kinds, configs.values())


def surroundings_of(model: Any, kinds: Collection[type], configs: Iterable[Any]) -> tuple[Hashable, ...]:
    """Return the part of the state that lies beside the modules: configs, and functions that passes look up.

    Args:
        model: the model.
        kinds: classes of its modules.
        configs: configs that its modules hold.
    """
    parts = choices_of(model, configs)
    for place in code_places(kinds):
        of_class = isinstance(place, type)
        looked_up = (each for each in vars(place).values() if callable(each))
        parts += (each for each in looked_up if not of_class or isinstance(each, types.FunctionType))
    return tuple(parts)


def choices_of(model: Any, configs: Iterable[Any]) -> list[Hashable]:
    """Return the settings of configs, and the hooks and functions that they and the model choose."""
    chosen = [*_global_hooks(), *_find_functions(model), *_generation(model)]
    return [settings_of(model.config), *chosen, *(settings_of(config) for config in configs)]


def code_places(kinds: Collection[type]) -> list[type | types.ModuleType]:
    """Return the classes and modules in which passes of modules of these classes look up functions."""
    bases = {*_CACHES, *(base for each in kinds for base in each.__mro__ if not _is_torchs(base))}
    return [*bases, *_homes(kinds)]


def versions_of(module: nn.Module) -> Iterator[Hashable]:
    """Yield values that change with the module's tensors, however small buffers are written to."""
    for held in ("_parameters", "_buffers"):
        for name, tensor in module.__dict__[held].items():
            if not name.endswith(_ROTARY):
                yield _version(tensor, gate=held == "_buffers")


def digest_of(model: Any) -> str | None:
    """Return a digest of the same state by value; None if another process could not identify the code involved.

    Large tensors affect the results of a pass but hardly how it computes them, so only a sample of them is read.
    """
    found, kinds = hashlib.blake2b(digest_size=8), set[Any]()
    if _global_hooks():
        return None
    for name, module in model.named_modules():
        kind, attributes = type(module), module.__dict__
        own_code = "forward" in attributes or any(attributes[hooks] for hooks in HOOKS)
        if (own_code and not _is_dispatched(module)) or kind.__module__ == "__main__":
            return None
        found.update(f"{name} {kind.__module__}.{kind.__qualname__} {flags_of(module)}".encode())
        kinds.add(kind)
    ordered = sorted(kinds, key=lambda each: f"{each.__module__}.{each.__qualname__}")
    functions = [function for kind in ordered for function in (kind.forward, kind.__call__)]
    for home in (*_homes(kinds), *_CACHES):
        functions += (each for _, each in sorted(vars(home).items()) if isinstance(each, types.FunctionType))
    chosen = [*_find_functions(model), *_generation(model)]
    if any(_home_of(function).split(".")[0] not in _KNOWN for function in chosen):
        return None  # what this function calls may differ between processes
    for function in (*functions, *chosen):
        code = _code_of(function)
        if code is None:
            return None
        found.update(code)
    for name, tensor in _tensors(model):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(_values(tensor))
    return found.hexdigest()


def settings_of(config: Any) -> Hashable:
    """Return the attributes of a config and its sub-configs in a hashable form."""
    if isinstance(config, _PLAIN):
        return config
    if isinstance(config, dict):
        return tuple((str(name), settings_of(value)) for name, value in config.items())
    if isinstance(config, list | tuple | set):
        return tuple(settings_of(value) for value in config)
    if hasattr(config, "model_type"):
        return settings_of(config.__dict__)
    return str(config)


def _code_of(function: Any) -> bytes | None:
    """Return a digest of a function's code and of what it wraps; None if other processes cannot identify it.

    They cannot if it is defined in a script, or is a closure from outside the known packages.
    """
    found, layer = hashlib.blake2b(digest_size=8), getattr(function, "__func__", function)
    if not isinstance(layer, types.FunctionType):
        return None
    found.update(f"{type(layer).__qualname__} {getattr(layer, '__qualname__', '')}".encode())
    while isinstance(layer, types.FunctionType):
        home = str(layer.__globals__.get("__name__"))
        if home == "__main__" or (layer.__closure__ and home.split(".")[0] not in _KNOWN):
            return None
        defaults = [*enumerate(layer.__defaults__ or ()), *(layer.__kwdefaults__ or {}).items()]
        found.update(f"{home} {[(place, _name_of(value)) for place, value in defaults]}".encode())
        found.update(_instructions(layer.__code__))
        layer = getattr(layer, "__wrapped__", None)
    return found.digest()


@functools.lru_cache(maxsize=1 << 12)  # requests on one model after another meet the same few hundred functions
def _instructions(code: types.CodeType) -> bytes:
    """Return a digest of instructions, names and constants, those of functions inside included."""
    found, codes = hashlib.blake2b(digest_size=8), [code]
    for each in codes:
        codes += (inner for inner in each.co_consts if isinstance(inner, types.CodeType))
        constants = [value for value in each.co_consts if isinstance(value, (*_PLAIN, bytes))]
        found.update(each.co_code + repr((each.co_names, constants)).encode())
    return found.digest()


def _name_of(value: Any) -> str:
    """Return a process-independent name of a default value where there is one; most objects' `repr` has an address."""
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__ and _home_of(kind).split(".")[0] in _KNOWN:
        value = kind
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)


def _home_of(function: Any) -> str:
    return str(getattr(getattr(function, "__func__", function), "__module__", None))


def _is_torchs(kind: type) -> bool:
    return kind.__module__.split(".")[0] in ("torch", "builtins")


def _find_functions(model: Any) -> list[Any]:
    """Return the functions for attention, masks and experts that names in the model's config refer to."""
    config = model.config.get_text_config(decoder=True)
    attention = getattr(config, "_attn_implementation", None)
    experts = getattr(config, "_experts_implementation", None)
    found = [registry.get(attention) for registry in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS)]
    found.append(ALL_EXPERTS_FUNCTIONS.get(experts))
    return [function for function in found if function is not None]


def _generation(model: Any) -> list[Any]:
    """Return the functions that `generate` uses to prepare passes."""
    return [getattr(model, name) for name in _PREPARING if hasattr(model, name)]


def _homes(kinds: Iterable[Any]) -> list[types.ModuleType]:
    """Return the modules of these classes and torch's functions, whose names classes look up in every pass."""
    names = sorted({kind.__module__ for kind in kinds if not kind.__module__.startswith("torch.")})
    return [functional, *(sys.modules[name] for name in names if name in sys.modules)]


def _global_hooks() -> list[Any]:
    return [*module_hooks._global_forward_hooks.values(), *module_hooks._global_forward_pre_hooks.values()]


def _is_dispatched(module: nn.Module) -> bool:
    """Return whether a module was patched by accelerate, which only moves inputs between devices."""
    hook = module.__dict__.get("_hf_hook")
    return hook is not None and type(hook).__module__.startswith("accelerate.") and not module._forward_hooks


def flags_of(module: nn.Module) -> tuple[Hashable, ...]:
    """Return the plain attributes of a module: flags, sizes, windows, active adapters."""
    held = module.__dict__
    flags = [(name, value) for name, value in held.items() if type(value) in _PLAIN and name not in _IGNORED]
    several = [(name, value) for name, value in held.items() if name[0] != "_" and type(value) in (dict, list, tuple)]
    flags += [(name, settings_of(value)) for name, value in several if _is_plain(value)]
    return (*flags, *(str(held[name]) for name in _ADAPTERS if name in held))


def _is_plain(value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else value
    return all(type(each) in _PLAIN for each in values)


def _version(tensor: Tensor | None, *, gate: bool) -> Hashable:
    """Return a value that changes with a tensor; with `gate`, however the tensor is written to."""
    if tensor is None:
        return None
    version, address = -1 if tensor.is_inference() else tensor._version, _address(tensor)
    values = _values(tensor) if gate and tensor.numel() <= TINY else _spot(tensor, address)
    return id(tensor), version, address, values


def _spot(tensor: Tensor, address: int) -> int:
    """Return eight bytes from the middle of a tensor in the host's memory: writes through `.data` change no version."""
    if not address:
        return 0
    size = tensor.nbytes
    if size < 16 or not tensor.is_cpu or not tensor.is_contiguous() or tensor.untyped_storage().nbytes() < size:
        return 0  # the last for one that was freed
    return ctypes.c_uint64.from_address(address + size // 16 * 8).value


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if type(tensor) in _DENSE and _has_values(tensor) else 0


def _has_values(tensor: Tensor) -> bool:
    """Return whether a tensor's elements lie in memory one by one."""
    return tensor.device.type != "meta" and tensor.layout is torch.strided


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    for name, tensor in model.named_buffers(remove_duplicate=False):
        if not name.endswith(_ROTARY):
            yield name, tensor


def _values(tensor: Tensor) -> bytes:
    """Return elements of a tensor: all of a small one, a sample of a large one, none if it is elsewhere."""
    if not _has_values(tensor) or type(tensor).__name__ not in ("Tensor", "Parameter", "Buffer"):
        return b""
    with torch.no_grad():
        tensor = tensor.detach().resolve_conj().resolve_neg()
        flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[:1].reshape(-1)
        picked = flat if flat.numel() <= SMALL else flat[:: -(-flat.numel() // SAMPLE)]
        return picked.cpu().contiguous().view(torch.uint8).numpy().tobytes()
