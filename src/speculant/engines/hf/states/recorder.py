"""One pass over draft rows through layers with states: computes each row's output and records its contribution.

A recorder replaces the functions that a mixer's forward calls: convolutions and recurrences, by their names in
transformers. These functions do not know whose state they work on; the mixer asks the cache for a state first, so the
recorder remembers which. Rows of several sequences may be concatenated in one pass: each sequence's layers have their
own records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.cache_utils import DynamicCache

from speculant.engines.hf.draft_rows import DraftRows
from speculant.engines.hf.states.branching import Branching
from speculant.engines.hf.states.delta_rule import DeltaRule
from speculant.engines.hf.states.layers import Place, StateLayer
from speculant.engines.hf.states.record import Record
from speculant.engines.hf.states.selective_scan import SelectiveScan
from speculant.engines.hf.states.state_space import StateSpace
from speculant.engines.hf.states.window import ConvolutionWindow, convolve

Grow = Callable[[Any, Tensor, Branching, slice], tuple[Record, Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRows:
    """A sequence's part of a pass.

    Attributes:
        cache: cache of the sequence.
        rows: all its uncommitted rows, including those of the pass.
        new: number of rows in the pass, the last ones of `rows`.
    """

    cache: DynamicCache
    rows: DraftRows
    new: int


class StateRecorder:
    """Runs the convolutions and recurrences of one pass, and records its rows' contributions to each state."""

    def __init__(self, sequences: Sequence[RecordedRows], device: torch.device) -> None:
        self._layers = [each.cache.layers for each in sequences]
        self._rows, self._new = [each.rows for each in sequences], [each.new for each in sequences]
        self._device = device
        self._branching = [Branching(each.rows, each.new, _trunk(each.cache), device) for each in sequences]
        self._conv, self._recurrent, self._scans = (0, 0), (0, 0), 0

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The replacements for transformers' functions, by the names that mixers call."""
        return {
            "causal_conv1d_fn": self.convolve,
            "causal_conv1d_update": self.convolve_step,
            "torch_chunk_gated_delta_rule": self.delta_rule,
            "torch_recurrent_gated_delta_rule": self.delta_rule,
            "chunk_kimi_delta_attention": self.delta_rule,
            "recurrent_kimi_delta_attention": self.delta_rule,
            "mamba2_chunk_scan": self.state_space,
            "mamba2_selective_state_update": self.state_space_step,
            "mamba_selective_scan": self.selective_scan,
            "mamba_selective_state_update": self.selective_step,
        }

    def offsets(self, before: int) -> tuple[Tensor, Tensor]:
        """Return position minus slot, for all cached rows of the only sequence and for the pass's rows.

        Args:
            before: number of cached rows before the pass.
        """
        [rows], [new] = self._rows, self._new
        committed = before + new - len(rows)
        places = np.arange(len(rows)) + committed
        positions = rows.depths + (committed - 1)
        apart = np.concatenate([np.zeros(committed, np.int64), positions - places])
        of_pass = positions[len(rows) - new :] - np.arange(new)
        return torch.from_numpy(apart).to(self._device), torch.from_numpy(of_pass).to(self._device)

    def turn_to(self, kind: str, layer: int, state: int) -> Tensor | None:
        """Select the state that the next function works on; return the first sequence's."""
        held = self._layers[0][layer]
        if kind == "conv":
            self._conv = layer, state
            found: Tensor | None = held.conv_states[state]
        else:
            self._recurrent, self._scans = (layer, state), 0
            found = held.recurrent_states[state]
        return found

    def _sequences(self, kind: str, head: int = 0) -> Iterator[tuple[StateLayer, Place, Branching, slice]]:
        """Yield each sequence's layer, record place, branching of its rows, and slice of the pass's rows."""
        layer, state = self._conv if kind == "conv" else self._recurrent
        begin = 0
        for layers, branching in zip(self._layers, self._branching, strict=True):
            yield layers[layer], (kind, state, head), branching, slice(begin, begin + branching.count)
            begin += branching.count

    def grown(self, shape: tuple[int, ...], grow: Grow, *, head: int = 0) -> Iterator[Tensor]:
        """Yield the outputs of each sequence's rows in one recurrence, after storing its record.

        Args:
            shape: shape of a state, without the batch dimension.
            grow: returns a record extended by a sequence's rows of the pass, and their outputs.
            head: index of the scan in a mixer with several, whose states are concatenated.
        """
        for layer, place, branching, part in self._sequences("recurrent", head):
            state = layer.recurrent_states[place[1]]
            if state is None:
                state = torch.zeros((1, *shape), device=self._device)
            elif state.ndim > len(shape) + 1:
                state = state[:, head]
            record, found = grow(layer.record(place), state, branching, part)
            layer.set_record(place, record)
            yield found

    def convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
    ) -> Tensor:
        """Replace `causal_conv1d_fn` over inputs [1, C, n] of rows."""
        return convolve(self.windows(x, weight.shape[-1]), weight, bias, activation)

    def windows(self, x: Tensor, kernel: int) -> list[Tensor]:
        """Record inputs [1, C, n]; return the last `kernel` inputs on the path of each row, K of [n, C]."""
        windows = []
        for layer, place, branching, part in self._sequences("conv"):
            state = layer.conv_states[place[1]]
            if state is None:
                state = x.new_zeros((1, x.shape[1], kernel))
            places = branching.windows(kernel, state.shape[-1])
            record, found = ConvolutionWindow.grown(layer.record(place), x[0].T[part], state, places)
            layer.set_record(place, record)
            windows.append(found)
        return windows[0] if len(windows) == 1 else [torch.cat(each) for each in zip(*windows, strict=True)]

    def convolve_step(
        self,
        x: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        """Replace `causal_conv1d_update` in a pass with one row."""
        return self.convolve(x, weight, bias, activation)

    def delta_rule(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        initial_state: Tensor | None = None,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """Replace the gated delta rule over rows [1, n, H, d]; g is [1, n, H], or [1, n, H, dk] per channel."""
        share = value.shape[2] // key.shape[2]
        if use_qk_l2norm_in_kernel:
            query, key = _normalise_rows(query.float()), _normalise_rows(key.float())
        queries, keys, values = (each[0].transpose(0, 1).float() for each in (query, key, value))
        queries = (queries * query.shape[-1] ** -0.5).repeat_interleave(share, dim=0)
        keys = keys.repeat_interleave(share, dim=0)
        rates = g[0].float().transpose(0, 1)
        decays = rates[..., None] if rates.ndim == 2 else rates
        betas = beta[0].float().transpose(0, 1)[..., None]

        def grow(record: Any, state: Tensor, branching: Branching, part: slice) -> tuple[Record, Tensor]:
            return DeltaRule.grown(
                record,
                state,
                branching.ancestors,
                queries=queries[:, part],
                keys=keys[:, part],
                values=values[:, part],
                decays=decays[:, part],
                beta=betas[:, part],
            )

        outputs = self.grown((len(keys), keys.shape[-1], values.shape[-1]), grow)
        output = torch.cat([*outputs], dim=1).transpose(0, 1)[None].to(value.dtype)
        return output.contiguous(), value if initial_state is None else initial_state

    def state_space(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        *,
        D: Tensor | None = None,
        z: Tensor | None = None,
        dt_bias: Tensor | None = None,
        initial_states: Tensor | None = None,
        dt_softplus: bool = False,
        return_final_states: bool = False,
        **_: Any,
    ) -> Any:
        """Replace `mamba2_chunk_scan` over rows x [1, n, H, P], dt [1, n, H], B and C [1, n, G, N].

        dt is not clamped, like in the classes' one-token function, which defines plain decoding.
        """
        inputs = x[0].transpose(0, 1).float()  # [H, n, P]
        steps = _steps(dt[0], dt_bias, dt_softplus).T  # [H, n]
        directions, readers = (each[0].transpose(0, 1).float() for each in (B, C))

        def grow(record: Any, state: Tensor, branching: Branching, part: slice) -> tuple[Record, Tensor]:
            return StateSpace.grown(
                record,
                state,
                branching.ancestors,
                inputs=inputs[:, part] * steps[:, part, None],
                directions=directions[:, part],
                readers=readers[:, part],
                decays=steps[:, part] * A.float()[:, None],
            )

        outputs = self.grown((len(inputs), inputs.shape[-1], directions.shape[-1]), grow)
        found = torch.cat([*outputs], dim=1)
        if D is not None:
            found = found + inputs * D.float()[:, None, None]
        output = _gate_output(found.transpose(0, 1)[None], z).to(x.dtype).contiguous()
        return (output, initial_states) if return_final_states else output

    def state_space_step(
        self,
        state: Tensor,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        *,
        z: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        **_: Any,
    ) -> Tensor:
        """Replace `mamba2_selective_state_update` on a row x [1, H, P]; per-head values arrive expanded."""
        found: Tensor = self.state_space(
            x[:, None],
            dt[:, None, :, 0],
            A[:, 0, 0],
            B[:, None],
            C[:, None],
            D=None if D is None else D[:, 0],
            z=None if z is None else z[:, None],
            dt_bias=None if dt_bias is None else dt_bias[:, 0],
            dt_softplus=dt_softplus,
        )
        return found[:, 0]

    def selective_scan(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        *,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **_: Any,
    ) -> Any:
        """Replace `mamba_selective_scan` over rows x and dt [1, d, n], B and C [1, N, n].

        Mixers with several heads call it once per head.
        """
        steps = _steps(dt[0].T, delta_bias, delta_softplus)  # [n, d]
        inputs, rates = x[0].T.float(), A.float()
        directions, readers = B[0].T.float(), C[0].T.float()
        head, self._scans = self._scans, self._scans + 1

        def grow(record: Any, state: Tensor, branching: Branching, part: slice) -> tuple[Record, Tensor]:
            return SelectiveScan.grown(
                record,
                state,
                branching.levels,
                steps=steps[part],
                inputs=inputs[part] * steps[part],
                directions=directions[part],
                readers=readers[part],
                rates=rates,
            )

        found = torch.cat([*self.grown(tuple(rates.shape), grow, head=head)])
        if D is not None:
            found = found + inputs * D.float()
        output = _gate_output(found.T[None], z).to(x.dtype)
        return (output, rates[None]) if return_last_state else output

    def selective_step(
        self,
        state: Tensor,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        *,
        z: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        **_: Any,
    ) -> Tensor:
        """Replace `mamba_selective_state_update` on a row x and dt [1, d], B and C [1, N]."""
        found: Tensor = self.selective_scan(
            x[..., None],
            dt[..., None],
            A,
            B[..., None],
            C[..., None],
            D=D,
            z=None if z is None else z[..., None],
            delta_bias=dt_bias,
            delta_softplus=dt_softplus,
        )
        return found[..., 0]


def _trunk(cache: DynamicCache) -> int:
    return next((layer.trunk for layer in cache.layers if isinstance(layer, StateLayer)), 0)


def _normalise_rows(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)


def _steps(dt: Tensor, bias: Tensor | None, activated: bool) -> Tensor:
    """Return dt [n, H] as the classes' one-token functions compute it: in its own dtype, and not clamped."""
    if bias is not None:
        dt = dt + bias.to(dt.dtype)
    return (F.softplus(dt) if activated else dt).float()


def _gate_output(output: Tensor, z: Tensor | None) -> Tensor:
    return output if z is None else output * F.silu(z)
