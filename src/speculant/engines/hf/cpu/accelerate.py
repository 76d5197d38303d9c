"""Accelerated passes on CPUs: the model's own forward, with parts of it replaced by code for a draft's few rows.

A pass over a few dozen rows should cost little more than one over a single row, since reading the weights dominates
both; PyTorch's matrix products on CPUs are far from that. Decoder layers that `decoder_layer.py` recognises are
computed as a whole, other `torch.nn.Linear` modules one by one (`linear.py`), and attention as described in `gqa.py`.
For each weight shape and number of rows the fastest kernel is used, PyTorch's own included (`products.py`,
`measuring.py`).

The model is never changed. A pass runs shadows of its modules (`shadow.py`), which share all its state, so other
threads, the model's own `generate` and an interrupt at any moment find the model unchanged. Other modules (experts of a
mixture, GPT-2's Conv1D) run as they are.

Models with `quantized/` weights are always prepared: only this code can multiply by them, and their rows must be
independent of each other to the last bit. So the kernels and the attention are the same for any number of rows, and
nothing is measured; `fast=False` only excludes the layers that are computed as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from tqdm import tqdm
from transformers.cache_utils import DynamicCache

from speculant.core.errors import UnsupportedError
from speculant.core.sublayers import Sublayers
from speculant.engines.hf.acceleration import LayerOutputs, LayerPass
from speculant.engines.hf.cpu.build import BuildError, load_native
from speculant.engines.hf.cpu.decoder_layer import FusedLayer
from speculant.engines.hf.cpu.direct_passes import DirectPasses, find_direct_passes
from speculant.engines.hf.cpu.gqa import GQAttention
from speculant.engines.hf.cpu.huge_pages import use_huge_pages
from speculant.engines.hf.cpu.kernel_table import MAX_ROWS, ROW_COUNTS, KernelTable, shapes_to_pack
from speculant.engines.hf.cpu.linear import AcceleratedLinear, can_accelerate
from speculant.engines.hf.cpu.measuring import kernel_times
from speculant.engines.hf.cpu.norm import find_norms
from speculant.engines.hf.cpu.packing import PackedWeight, memory_allows
from speculant.engines.hf.cpu.pass_plan import PassPlans, find_fused_layers
from speculant.engines.hf.cpu.products import Products, multiplies_bf16
from speculant.engines.hf.cpu.shadow import Forward, Shadows
from speculant.engines.hf.quantized.model_weights import rounding_dtype
from speculant.engines.hf.quantized.modules import quantized_modules
from speculant.engines.hf.quantized.products import native

if TYPE_CHECKING:
    from speculant.engines.hf.cuda.graph_runner import GraphRunner

# Smaller weights are left to PyTorch by default.
MIN_WEIGHTS = 1 << 18  # of a single matrix; below, the call costs what it saves
MIN_LAYER = 1 << 15  # of a decoder layer; one call replaces about twenty


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuAcceleration:
    """A model prepared for fast passes, or the reason why it was not prepared.

    Attributes:
        linears: all prepared linear layers, including those of fused layers.
        layers: decoder layers that are computed as a whole.
        attention: the attention function for query heads that share key-value heads.
        table: kernel choice for the linear layers.
        shadows: the modules that an accelerated pass runs.
        graphs: CUDA passes that are recorded and replayed instead.
        plans: plans of the passes over the fused layers.
        direct: passes that call the model's parts themselves.
        quantized: description of how many matrices of each size and layout are quantised.
        notes: messages for the user.
    """

    linears: tuple[AcceleratedLinear, ...] = ()
    layers: tuple[FusedLayer, ...] = ()
    attention: GQAttention | None = None
    table: KernelTable | None = None
    shadows: Shadows | None = None
    graphs: GraphRunner | None = None
    plans: PassPlans | None = None
    direct: DirectPasses | None = None
    quantized: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def model_for(self, model: Any, rows: int, *, whole: bool = True, run: Sublayers | None = None) -> Any:
        """Return the callable for a pass over `rows` rows: the model's shadow, or the model if that is as fast.

        Any number of threads may run passes concurrently, accelerated or not.

        Args:
            model: the model.
            rows: number of rows in the pass.
            whole: whether the pass runs its layers in sequence, with nothing changed between them.
            run: the sublayers that it runs; None for all, or for those from any layer on.
        """
        if self.plans is not None:
            self.plans.begin(ahead=whole, run=run)
        if self.shadows is None or self.shadows.model is not model:
            return model
        if not self.quantized and not self.layers and not any(linear.gains(rows) for linear in self.linears):
            return model  # shadows cost time too
        return self.shadows.of(model)

    def run_layers(self, model: Any, asked: LayerPass) -> LayerOutputs | None:
        """Run layers of a model and what surrounds them in a few calls; see `Acceleration`."""
        return None if self.direct is None or self.direct.model is not model else self.direct.run(asked)

    def keep(self, cache: DynamicCache, start: int, rows: list[int]) -> bool:
        """Keep rows as `keep_rows` does; return False, with nothing changed, if there is no faster code for a cache."""
        if self.graphs is not None:
            return self.graphs.keep(cache, start, rows)
        return self.plans is not None and self.plans.stack.keep(cache, start, rows)

    @property
    def prompt_rows(self) -> int | None:
        """Maximum rows for which kernels are measured; None for a model that is not prepared, or on another device."""
        return MAX_ROWS if self.linears or self.quantized else None

    def attention_for(self, implementation: str) -> str:
        """Return the attention function that accelerated passes use in place of the one that the config names."""
        name: str = implementation if self.attention is None else self.attention.rename(implementation)
        return name

    def check_weights(self) -> None:
        """Detect all changes of the weights, as before a request, and repack changed ones."""
        for linear in self.linears:
            weight = linear.module._parameters.get("weight")
            if linear.packed is not None and weight is not None:
                linear.packed.refresh(weight)

    def settings(self) -> tuple[Any, ...]:
        """Return everything but the model that affects the cost of a pass: a key for stored costs."""
        table = self.table
        chosen = sorted(
            (shape, [table.kernel(table.dtype, shape, rows) for rows in ROW_COUNTS])
            for shape in (table.times if table and table.dtype else ())
            if table and table.dtype
        )
        return (len(self.linears), len(self.layers), chosen, *self.quantized)


def prepare_model(model: Any, fast: bool | CpuAcceleration | None) -> CpuAcceleration:
    """Prepare a model where that is faster (None), wherever possible (True), or not at all (False).

    Args:
        model: a causal LM.
        fast: whether to prepare; an existing acceleration is returned unchanged.

    Raises:
        UnsupportedError: the model has quantised weights, and the compiled code for them is not available.
    """
    if isinstance(fast, CpuAcceleration):
        return fast
    if any(True for _ in quantized_modules(model)):
        return _prepare_quantized(model, fuse=fast is not False)
    if fast is False:
        return CpuAcceleration()
    if fast and model.device.type == "cuda":
        from speculant.engines.hf.cuda.graph_runner import GraphError, GraphRunner

        try:
            return CpuAcceleration(graphs=GraphRunner(model))
        except GraphError as error:
            return CpuAcceleration(notes=(f"not prepared for fast passes: {error}.",))
    reason = _reason(model)
    modules = [] if reason else [module for module in model.modules() if can_accelerate(module)]
    if not reason and not modules:
        reason = "it has no linear layer that the compiled code supports"
    if reason:  # with None it was not requested, and the user cannot change it
        return CpuAcceleration(notes=(f"not prepared for fast passes: {reason}.",)) if fast else CpuAcceleration()
    if not fast and sum(module.weight.numel() for module in modules) < MIN_LAYER:
        return CpuAcceleration()
    try:
        return _prepare(model, modules, fast=bool(fast))
    except BuildError as error:
        return CpuAcceleration(notes=(f"not prepared for fast passes: {error}.",))


def _prepare(model: Any, modules: Sequence[nn.Linear], *, fast: bool) -> CpuAcceleration:
    """Prepare the linear layers and the layers and attention around them.

    Raises:
        BuildError: the compiled code is not available.
    """
    products, dtype = Products(load_native()), modules[0].weight.dtype
    alike = [module for module in modules if module.weight.dtype is dtype]
    use_huge_pages(module.weight for module in modules)
    times = kernel_times(alike, products, minimum=MIN_WEIGHTS)
    if not times and not fast and dtype is torch.bfloat16 and multiplies_bf16():
        return CpuAcceleration()  # too small to measure, and PyTorch's product is fast
    table, notes = _with_packing(alike, KernelTable(products=products, dtype=dtype, times=times))
    attention = GQAttention(products.native)
    attention.register()
    plans = PassPlans()
    layers = find_fused_layers(model, table, attention, minimum=0 if fast else MIN_LAYER, plans=plans)
    linears = {id(linear.module): linear for layer in layers for linear in layer.products.values()}
    for module in modules:
        if fast or module.weight.numel() >= MIN_WEIGHTS:
            linears.setdefault(id(module), AcceleratedLinear(module, table))
    if not linears:
        return CpuAcceleration()
    _pack(tuple(linears.values()), table)
    shadows, direct = _shadows(model, linears.values(), layers, attention, plans)
    return CpuAcceleration(
        linears=tuple(linears.values()),
        layers=layers,
        attention=attention,
        table=table,
        shadows=shadows,
        plans=plans,
        direct=direct,
        notes=notes,
    )


def _prepare_quantized(model: Any, *, fuse: bool) -> CpuAcceleration:
    """Prepare a model with quantised weights; its float matrices and attention are computed row by row too."""
    try:
        products = Products(native())
    except BuildError as error:
        raise UnsupportedError(
            f"quantised weights are multiplied by compiled code only: {error}. Load the model's own weights instead."
        ) from error
    if reason := _reason(model):
        raise UnsupportedError(f"a model with quantised weights is run by compiled code of its own, but {reason}.")
    use_huge_pages(part for _, module in quantized_modules(model) for part in module.buffers())
    table, attention = KernelTable(products=products, exact=True), GQAttention(products.native, exact=True)
    plans = PassPlans()
    attention.register()
    layers = find_fused_layers(model, table, attention, minimum=0, plans=plans) if fuse else ()
    linears = tuple(AcceleratedLinear(module, table) for module in model.modules() if can_accelerate(module))
    shadows, direct = _shadows(model, linears, layers, attention, plans, groups=1)
    notes: tuple[str, ...] = ()
    if fuse and not layers and rounding_dtype(model) is not model.dtype:
        reason = "last bits can depend on the number of rows, and the inputs of products are rounded to 8 bits"
        notes = (f"its layers run operation by operation, whose {reason}: near-ties can flip against plain decoding.",)
    matrices = Counter(
        f"{each.outs} x {each.k}, {each.bits} bits in groups of {each.group}"
        for _, module in quantized_modules(model)
        for each in module.matrices.values()
    )
    return CpuAcceleration(
        linears=linears,
        layers=layers,
        attention=attention,
        table=table,
        shadows=shadows,
        plans=plans,
        direct=direct,
        notes=notes,
        quantized=tuple(f"{count} of {matrix}" for matrix, count in sorted(matrices.items())),
    )


def _shadows(
    model: Any,
    linears: Iterable[AcceleratedLinear],
    layers: Sequence[FusedLayer],
    attention: GQAttention,
    plans: PassPlans,
    *,
    groups: int = 2,
) -> tuple[Shadows, DirectPasses | None]:
    """Return the shadows of a model whose prepared parts run their own forwards, and its direct passes."""
    norms = find_norms(model, layers)
    forwards: dict[nn.Module, Forward] = {linear.module: linear for linear in linears}
    forwards |= {layer.module: layer for layer in layers} | {norm.module: norm for norm in norms}
    shadows = Shadows(model, forwards, attention.rename, plans.stack, groups=groups)
    return shadows, find_direct_passes(model, shadows, plans.stack, norms)


def _with_packing(modules: Sequence[nn.Linear], table: KernelTable) -> tuple[KernelTable, tuple[str, ...]]:
    """Return the table with the shapes to pack, and a note about the memory that packing takes or lacks."""
    counts = Counter((module.weight.shape[0], module.weight.shape[1]) for module in modules)
    shapes = shapes_to_pack(table.times, counts)
    if not shapes:
        return table, ()
    allowed, size = memory_allows(module.weight for module in modules if tuple(module.weight.shape) in shapes)
    if allowed:
        note = f"packed copies of weights take {size / 1e9:.1f} GB; fast=False avoids them."
        return replace(table, packed=shapes), (note,)
    return table, (f"packed weights would be faster, but take {size / 1e9:.1f} GB, over half of the free memory.",)


def _pack(linears: Sequence[AcceleratedLinear], table: KernelTable) -> None:
    if not table.packed:
        return
    for linear in tqdm(linears, "packing weights", leave=False, disable=None):
        weight = linear.module.weight
        if weight.dtype is table.dtype and tuple(weight.shape) in table.packed:
            linear.packed = PackedWeight(table.products.native, weight)


def _reason(model: Any) -> str | None:
    if model.device.type != "cpu":
        return f"there are none for {model.device.type} yet"
    if hasattr(model, "_orig_mod"):
        return "it is compiled already"
    return None
