"""The structs of layer.h as ctypes, for decoder layers and for the layers of trained heads."""

from __future__ import annotations

import ctypes

from speculant.core.sublayers import Part as Sublayer
from speculant.engines.hf.cpu.layer_matching import LINEARS

ONLY: dict[Sublayer | None, int] = {None: 0, "attention": 1, "mlp": 2}  # values of `LayerArguments.only`


class LinearArguments(ctypes.Structure):
    """The struct `Linear` of layer.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int) for name in ("narrow", "keep")),
        ("quantized", ctypes.c_void_p),
    )


class LayerArguments(ctypes.Structure):
    """The struct `Layer` of layer.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("input_norm", "post_norm", "q_norm", "k_norm")),
        *((name, LinearArguments) for name in LINEARS),
        *((name, ctypes.c_int64) for name in ("hidden", "inner", "given")),
        *((name, ctypes.c_float) for name in ("input_eps", "post_eps", "q_eps", "k_eps")),
        *((name, ctypes.c_int) for name in ("is_bf16", "native_bf16", "only")),
    )


class PositionArguments(ctypes.Structure):
    """The struct `Positions` of layer.h."""

    _fields_ = (
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("shared", ctypes.c_int),
        ("rows", ctypes.c_void_p),
    )
