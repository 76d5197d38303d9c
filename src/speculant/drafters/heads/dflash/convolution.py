"""DFlash 2's decoder layer: causal convolutions over the slots of a block, around attention and around the MLP.

z-lab/dflash, inco.ai/blog/dflash2. Slots are denoised in parallel; the convolutions let each see the few before it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from speculant.drafters.heads.dflash.shape import Convolution
from speculant.drafters.heads.layers import DecoderLayer, LayerShape


class GroupedConvolution(nn.Module):
    """y_i[c] = sum over t of (base[t, c] + delta_i[t, g(c)]) x_{i-t}[c], with zeros before the block.

    A pair of convolutions, one on the input of a part of the layer and one on its output; their kernels delta both come
    from a projection of the input. g(c) is the group of channel c.
    """

    def __init__(self, hidden: int, shape: Convolution) -> None:
        super().__init__()
        self._taps, self._groups = shape.taps, hidden // shape.group
        self.base_kernel = nn.Parameter(torch.zeros(2, shape.taps, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * shape.taps * self._groups, bias=False)
        self.reset()

    def reset(self) -> None:
        """Reset to the identity, with which training starts."""
        with torch.no_grad():
            self.base_kernel.zero_()
            self.base_kernel[:, 0] = 1.0
            self.kernel_projection.weight.zero_()

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x [..., b, D] convolved, and the kernels [..., b, taps, groups] for the output."""
        kernels: Tensor = self.kernel_projection(x).reshape(*x.shape[:-1], 2, self._taps, self._groups)
        return self._convolve(x, kernels[..., 0, :, :], 0), kernels[..., 1, :, :]

    def leave(self, x: Tensor, kernels: Tensor) -> Tensor:
        """Return the part's output [..., b, D] convolved."""
        return self._convolve(x, kernels, 1)

    def _convolve(self, x: Tensor, kernels: Tensor, side: int) -> Tensor:
        grouped, size = x.reshape(*x.shape[:-1], self._groups, -1), x.shape[-2]
        base = self.base_kernel[side].reshape(self._taps, self._groups, -1)
        found = torch.zeros_like(grouped)
        for tap in range(min(self._taps, size)):
            shifted = nn.functional.pad(grouped[..., : size - tap, :, :], (0, 0, 0, 0, tap, 0))
            found = found + (base[tap] + kernels[..., tap, :, None]) * shifted
        return found.flatten(-2)


class ConvolvedLayer(DecoderLayer):
    """A pre-norm decoder layer with the convolutions. Context rows skip them on the way to keys and values."""

    def __init__(self, shape: LayerShape, convolution: Convolution) -> None:
        super().__init__(shape)
        self.attention_conv = GroupedConvolution(shape.hidden, convolution)
        self.mlp_conv = GroupedConvolution(shape.hidden, convolution)

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention's input for x [..., b, D], and the kernels for `leave`."""
        return self.attention_conv.enter(self.attention_input(x))

    def leave(self, residual: Tensor, attended: Tensor, kernels: Tensor) -> Tensor:
        """Return the layer's output, like `finish`."""
        x = residual + self.attention_conv.leave(attended, kernels)
        given, kernels = self.mlp_conv.enter(self.post_attention_layernorm(x))
        return x + self.mlp_conv.leave(self.mlp(given), kernels)
