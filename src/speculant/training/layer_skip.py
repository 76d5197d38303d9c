"""LayerSkip: training of a whole model for early exit, by layer dropout and a loss at every layer.

Elhoushi et al. 2024, arXiv 2404.16710, section 4.1. For models trained from scratch or further: the model's weights
change. A frozen target gets an adapter instead (`drafters.heads.exit`). Layers are counted from 0 to L - 1; training
progress goes from 0 to 1, t / (T - 1) in the paper.

- Layer dropout skips a layer for a sequence with probability p = S(t) D(l) p_max (equations 2 to 4): D(l) =
  exp(l ln 2 / (L - 1)) - 1 from the first layer to the last; S(t) = exp(t ln 2 / (T - 1)) - 1 for training from scratch
  and 1 for continued training.
- The loss is the cross-entropy of final norm and head after each layer, weighted by C(t, l) e(l), normalised (equation
  5). e(l) = e_scale (0 + 1 + ... + l) below the last layer, and L - 1 + e_scale (0 + 1 + ... + L - 2) for that (6).
- The curriculum C(t, l) is 1 for the last layer. "rotational" adds every R-th layer, a different set in each step;
  "gradual" starts with the last layer and adds the one below every T / 2L steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.errors import UsageError

CURRICULA = ("rotational", "gradual", "none")
IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSkipSettings:
    """The settings that the paper varies.

    Attributes:
        dropout: p_max, the probability of skipping the last layer; 0 for no layer dropout.
        from_scratch: whether dropout grows over the training.
        scale: e_scale of the early losses; 0 for the last layer's alone.
        curriculum: "rotational", "gradual", or "none" for all layers in every step.
        interval: R of the rotational curriculum.
    """

    dropout: float = 0.1
    from_scratch: bool = True
    scale: float = 0.2
    curriculum: str = "rotational"
    interval: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be from 0 to below 1, not {self.dropout}.")
        if not 0 <= self.scale <= 1:
            raise UsageError(f"scale must be from 0 to 1, not {self.scale}.")
        if self.curriculum not in CURRICULA:
            raise UsageError(f"curriculum must be one of {', '.join(CURRICULA)}, not {self.curriculum!r}.")
        if self.interval < 1:
            raise UsageError(f"interval must be 1 or more, not {self.interval}.")


def dropout_rate(settings: LayerSkipSettings, layer: int, layers: int, progress: float) -> float:
    """Return the probability that a layer is skipped (equations 2 to 4)."""
    share = layer / (layers - 1) if layers > 1 else 1.0
    over_layers = math.exp(share * math.log(2)) - 1
    over_time = math.exp(progress * math.log(2)) - 1 if settings.from_scratch else 1.0
    return over_time * over_layers * settings.dropout


def loss_weights(settings: LayerSkipSettings, layers: int, *, step: int, progress: float) -> list[float]:
    """Return the weights of all layers' losses, which sum to 1 (equations 5 and 6)."""
    last = layers - 1
    weights = [settings.scale * layer * (layer + 1) / 2 for layer in range(last)]
    weights.append(last + settings.scale * last * (last - 1) / 2 if last else 1.0)
    for layer in range(last):
        if settings.curriculum == "rotational":
            on = layer % settings.interval == step % settings.interval
        else:
            on = settings.curriculum == "none" or last - layer <= progress * 2 * layers
        weights[layer] *= on
    total = sum(weights)
    return [weight / total for weight in weights]


class LayerSkip:
    """Layer dropout and early losses of one model, implemented by hooks on its layers.

    In evaluation mode nothing is dropped.
    """

    def __init__(
        self, layers: Sequence[nn.Module], head: Callable[[Tensor], Tensor], settings: LayerSkipSettings
    ) -> None:
        """Attach to a model.

        Args:
            layers: its decoder layers, which take hidden states [B, T, D] first and return them, or a tuple starting
                with them.
            head: final norm and output projection, [..., D] to [..., V].
            settings: training settings.
        """
        self._settings, self._head, self._count = settings, head, len(layers)
        self._progress = 0.0
        self._outputs: dict[int, Tensor] = {}
        self._hooks = [
            layer.register_forward_hook(self._hook(index), with_kwargs=True) for index, layer in enumerate(layers)
        ]

    def begin(self, progress: float) -> None:
        """Start a step; the model's next pass belongs to it.

        Args:
            progress: training progress, from 0 to 1.
        """
        self._progress, self._outputs = progress, {}

    def loss(self, targets: Tensor, *, step: int) -> Tensor:
        """Return the loss of the step's pass.

        Args:
            targets: Int64[B, T], the next token of each; -100 if there is none.
            step: step number, from 0.

        Raises:
            UsageError: the model has not run all layers since `begin`.
        """
        if len(self._outputs) != self._count:
            raise UsageError("the model must run once between `begin` and `loss`.")
        weights = loss_weights(self._settings, self._count, step=step, progress=self._progress)
        losses = [
            weight
            * nn.functional.cross_entropy(
                self._head(self._outputs[layer]).flatten(0, -2), targets.flatten(), ignore_index=IGNORED
            )
            for layer, weight in enumerate(weights)
            if weight
        ]
        return torch.stack(losses).sum()

    def detach(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, index: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
            hidden = output[0] if isinstance(output, tuple) else output
            rate = dropout_rate(self._settings, index, self._count, self._progress) if module.training else 0.0
            if rate:
                given = args[0] if args else options["hidden_states"]
                kept = torch.rand(len(hidden), 1, 1, device=hidden.device) >= rate
                hidden = torch.where(kept, hidden, given)
            self._outputs[index] = hidden
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        return hook
