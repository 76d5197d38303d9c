"""The fast pass: a model's own forward, with its linear layers done by code that is made for the rows of a draft.

A pass over a few dozen rows should cost little more than one over a single row, since reading the weights is most of
either; PyTorch's matrix products on CPUs are far from that. `linear.cpp` comes closer, and reads the weights where
they lie, so nothing is packed, memory stays what it was, and adapters or changed weights need no second preparation.

Only for the length of a pass do the `torch.nn.Linear` modules answer with it, and does attention skip the copies that
`grouped.py` tells of; the model itself is not changed. Other modules (experts of a mixture, GPT-2's Conv1D, quantised
ones) run as they are.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from speculant.targets.captured import CapturedPasses, CaptureError
from speculant.targets.grouped import grouped_attention
from speculant.targets.native import BuildError, load_native, processor

DTYPES = (torch.float32, torch.bfloat16)
LEAST_ROWS = 3  # with fewer, torch's own products are a little faster
LEAST_WEIGHTS = 1 << 18  # smaller layers are left alone by default: the call costs what it saves


@dataclass(frozen=True, slots=True, kw_only=True)
class Fast:
    """A prepared model, or the reason why it is not.

    Attributes:
        forwards: each prepared module with its fast forward.
        captured: passes that are replayed instead, on CUDA.
        notes: what the user should know.
    """

    forwards: tuple[tuple[nn.Module, Callable[[Tensor], Tensor]], ...] = ()
    captured: CapturedPasses | None = None
    notes: tuple[str, ...] = ()

    @contextlib.contextmanager
    def active(self, rows: int) -> Iterator[None]:
        """Let the prepared modules answer fast, except those that have got a forward of their own meanwhile.

        A pass over too few rows to gain from it is left alone, since the detour of every module costs time too.

        Another thread's pass over the same model may end first; then the rest of this one runs torch's products.
        """
        forwards = self.forwards if rows >= LEAST_ROWS else ()
        try:
            for module, forward in forwards:
                module.__dict__.setdefault("forward", forward)
            with grouped_attention() if forwards else contextlib.nullcontext():
                yield
        finally:
            for module, forward in forwards:
                if module.__dict__.get("forward") is forward:
                    module.__dict__.pop("forward", None)


def prepare_model(model: Any, fast: bool | None) -> Fast:
    """Prepare a model where it pays (None), wherever it is possible (True) or not at all (False)."""
    if fast is False:
        return Fast()
    if fast and model.device.type == "cuda":
        try:
            return Fast(captured=CapturedPasses(model))
        except CaptureError as error:
            return Fast(notes=(f"not prepared for fast passes: {error}.",))
    reason = _reason(model)
    least = 0 if fast else LEAST_WEIGHTS
    modules = [] if reason else [module for module in model.modules() if _fits(module, least)]
    if not reason and not modules:
        reason = "it has no linear layer that its code can do"
    elif not reason and not fast and not _pays(modules[0]):
        reason = "the processor multiplies bfloat16 itself; fast=True prepares it all the same"
    if not reason:
        try:
            native = load_native()
            return Fast(forwards=tuple((module, _Forward(module, native)) for module in modules))
        except BuildError as error:
            reason = str(error)
    elif not fast:
        return Fast()  # nobody asked, and nothing can be done about it
    return Fast(notes=(f"not prepared for fast passes: {reason}.",))


def _reason(model: Any) -> str | None:
    if model.device.type != "cpu":
        return f"there are none for {model.device.type} yet"
    if hasattr(model, "_orig_mod"):
        return "it is compiled already"
    return None


def _fits(module: nn.Module, least: int) -> bool:
    """Say whether a module is an ordinary linear layer. One with a forward of its own (offloading) is not."""
    if type(module) is not nn.Linear or not isinstance(module.__dict__.get("forward"), _Forward | None):
        return False
    return _usable(module.weight) and module.weight.numel() >= least


def _usable(weight: Tensor) -> bool:
    plain = type(weight) in (nn.Parameter, Tensor) and weight.layout is torch.strided
    return plain and weight.device.type == "cpu" and weight.dtype in DTYPES and weight.is_contiguous()


def _pays(module: nn.Module) -> bool:
    return module.weight.dtype == torch.float32 or "avx512_bf16" not in processor()


class _Forward:
    """The forward of one linear layer. Its weight is looked up in every call, so a new one is used at once."""

    __slots__ = ("_linear", "_module", "_most")

    def __init__(self, module: nn.Module, native: ctypes.CDLL) -> None:
        self._module, self._linear, self._most = module, native.linear, native.most_rows()

    def __call__(self, input: Tensor) -> Tensor:  # noqa: A002  (the name that torch gives it)
        """Return [..., outs] of [..., k]."""
        weight: Any = self._module.weight
        bias: Any = self._module.bias
        *shape, k = input.shape
        rows = input.numel() // max(k, 1)
        fits = (
            LEAST_ROWS <= rows <= self._most
            and tuple(weight.shape[1:]) == (k,)
            and not torch.is_autocast_enabled("cpu")
            and input.dtype == weight.dtype
            and input.device.type == "cpu"
            and _usable(weight)
        )
        if not fits or torch.is_grad_enabled():
            return F.linear(input, weight, bias)
        # In float whatever the weights are, so that sums are rounded once.
        x, outs, narrow = input.float().contiguous(), weight.shape[0], weight.dtype == torch.bfloat16
        y = torch.empty((*shape, outs), dtype=torch.float32)
        self._linear(x.data_ptr(), weight.data_ptr(), y.data_ptr(), rows, outs, k, narrow, torch.get_num_threads())
        if bias is not None:
            y += bias
        return y.to(input.dtype)
