"""Passes through some layers or sublayers of a model, and passes that continue from the states after the first layers.

Models that can skip layers run these passes on a view. Models of the Llama family run layer by layer, since their
classes' work around the layers (masks, options, unneeded logits) takes longer than a few layers of a small model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.engine import RequestedOutputs
from speculant.core.sublayers import Part, Sublayers
from speculant.engines.hf.acceleration import LayerPass
from speculant.engines.hf.cpu.decoder_layer import FusedLayer
from speculant.engines.hf.cpu.layer_matching import FAMILIES, SUBLAYERS, is_untouched
from speculant.engines.hf.forward_pass import ModelRunner, PassInput, PassOutput, out_of_memory
from speculant.engines.hf.views.layer_parts import split_layer
from speculant.engines.hf.views.layer_selection import Entry, check_layers
from speculant.engines.hf.views.model_view import find_layers


class PartialPasses:
    """Runs the passes of one model."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._shares = dict[int, float]()

    def share(self, layers: int) -> float:
        """Return the share of a few-row pass that the first layers take: their share of the weights read."""
        if layers not in self._shares:
            model = self._runner.model
            place, output = find_layers(model), model.get_output_embeddings()
            sizes = (
                [] if place is None else [sum(each.numel() for each in layer.parameters()) for layer in place.layers]
            )
            rest = 0 if output is None else output.weight.numel()
            self._shares[layers] = sum(sizes[:layers]) / max(1, sum(sizes) + rest)
        return self._shares[layers]

    def first(self, given: PassInput, cache: Any, layers: int, *, logits: bool, total: int) -> PassOutput:
        """Run rows through the first layers, appending to the cache; return their states [n, 1, D].

        Args:
            given: n rows.
            cache: cache of the sequence.
            layers: number of first layers.
            logits: whether to compute the logits of the states, [n, V]; otherwise they are empty.
            total: see `ModelRunner.run`.
        """
        if not self._is_direct(given):
            needs = RequestedOutputs(hidden_layers=(layers - 1,))
            return self._runner.verify(given, cache, needs=needs, layers=Sublayers.whole(range(layers)), total=total)
        with self._runner.decode_mode(), torch.no_grad(), out_of_memory(f"{total} cached tokens"):
            model, acceleration, run = self._runner.model, self._runner.acceleration, Sublayers.whole(range(layers))
            direct = acceleration.run_layers(
                model,
                LayerPass(
                    given.ids,
                    given.positions,
                    given.mask,
                    cache,
                    layers=range(layers),
                    kept=0 if logits else None,
                    taps=(layers - 1,),
                ),
            )
            if direct is not None:
                states = direct.states[layers - 1][0]
                return PassOutput(states.new_empty(0) if direct.logits is None else direct.logits[0], states[:, None])
            source = self._source(given, run)
            x = source.model.embed_tokens(given.ids.to(self._runner.device))
            states = self._run_layers(source.model, x, given, cache, run)[layers - 1]
            found = source.lm_head(source.model.norm(states))[0] if logits else states.new_empty(0)
            return PassOutput(found, states[0][:, None])

    def run_sublayers(
        self, given: PassInput, cache: Any, run: Sublayers, *, needs: RequestedOutputs, total: int
    ) -> PassOutput | None:
        """Run rows through some sublayers, appending to the cache; return None if this needs a view.

        Args:
            given: n rows.
            cache: cache of the sequence.
            run: the sublayers.
            needs: requested outputs; with hidden states, a view is needed.
            total: see `ModelRunner.run`.
        """
        if needs.hidden_layers or not self._is_direct(given):
            return None
        check_layers(run, len(self._runner.model.model.layers))
        with self._runner.decode_mode(), torch.no_grad(), out_of_memory(f"{total} cached tokens"):
            source = self._source(given, run)
            x = source.model.embed_tokens(given.ids.to(self._runner.device))
            outputs = self._run_layers(source.model, x, given, cache, run)
            states = outputs[run.layers[-1]] if outputs else x
            return PassOutput(source.lm_head(source.model.norm(states))[0])

    def rest(
        self, given: PassInput, states: Tensor, cache: Any, layers: int, *, needs: RequestedOutputs, total: int
    ) -> PassOutput:
        """Run rows through the remaining layers, given their states [n, 1, D] after the first ones.

        Args:
            given: n rows, which the first layers of the cache already have.
            states: states of the rows.
            cache: cache of the sequence.
            layers: number of first layers.
            needs: may tap the last of the first layers and the remaining ones.
            total: see `ModelRunner.run`.
        """
        if not self._is_direct(given):
            return self._runner.verify(given, cache, needs=needs, entry=Entry(layers, states[:, 0]), total=total)
        with self._runner.decode_mode(), torch.no_grad(), out_of_memory(f"{total} cached tokens"):
            model, acceleration = self._runner.model, self._runner.acceleration
            count, x = len(model.model.layers), states[None, :, 0]
            left = range(layers, count)
            wanted = [tap % count for tap in needs.hidden_layers]
            taps = [tap for tap in wanted if tap in left]
            asked = LayerPass(x, given.positions, given.mask, cache, layers=left, taps=taps)
            direct = acceleration.run_layers(model, asked)
            outputs: dict[int, Tensor] = {layers - 1: x}
            if direct is not None and direct.logits is not None:
                outputs.update(direct.states)
                logits = direct.logits[0]
            else:
                source = self._source(given)
                outputs |= self._run_layers(source.model, x, given, cache, Sublayers.whole(left))
                logits = source.lm_head(source.model.norm(outputs[count - 1]))[0]
            tapped = [outputs[tap][0] for tap in wanted]
            return PassOutput(logits, torch.stack(tapped, dim=1) if tapped else None)

    def _run_layers(self, base: Any, x: Tensor, given: PassInput, cache: Any, run: Sublayers) -> dict[int, Tensor]:
        """Return the output [1, n, D] of each layer of a Llama-like model of which a sublayer runs."""
        positions, own = given.positions.to(x.device), self._runner.model.model.layers
        angles, found, modules = base.rotary_emb(x, position_ids=positions), dict[int, Tensor](), base.layers
        for index in run.layers:
            layer, only = getattr(modules, str(index)), run.only(index)  # indexing would create shadows of all of them
            output = (layer if only is None else _alone(own[index], layer, only))(
                x,
                attention_mask=given.mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                position_embeddings=angles,
            )
            x = found[index] = output[0] if isinstance(output, tuple) else output
        return found

    def _source(self, given: PassInput, run: Sublayers | None = None) -> Any:
        runner = self._runner
        return runner.acceleration.model_for(runner.model, given.ids.shape[1], run=run)

    def _is_direct(self, given: PassInput) -> bool:
        """Return whether the model's class runs its layers in sequence, and the model is unmodified."""
        model = self._runner.model
        home = type(model).__module__
        if home not in FAMILIES or given.others or given.cross is not None or given.places:
            return False
        base, config, name = model._modules.get("model"), model.config, FAMILIES[home]
        plain = not (given.mask is not None and not isinstance(given.mask, Tensor)) and given.positions.ndim == 2
        kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
        owners = ((model, f"{name}ForCausalLM"), (base, f"{name}Model"))
        return plain and not kinds and all(is_untouched(owner, home, kind) for owner, kind in owners)


def _alone(own: nn.Module, layer: Any, only: Part) -> Callable[..., Any]:
    """Return one sublayer of a Llama-like layer; compiled if the layer is compiled and has no hooks.

    Args:
        own: the model's layer.
        layer: the layer that the pass runs, which may be a shadow.
        only: the sublayer to return.
    """
    fused = getattr(layer, "_speculant_forward", None)
    hooked = "forward" in own.__dict__ or own._forward_hooks or own._forward_pre_hooks
    if isinstance(fused, FusedLayer) and not hooked:
        return partial(fused.alone(only), layer)
    return split_layer(own, layer, SUBLAYERS, only)
