"""The common part of the format readers: integers packed in words, and groups, scales and zero points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.checkpoint_files import CheckpointFiles
from speculant.engines.hf.quantized.weight import GROUPS, GroupedValues, GroupScales

_WIDEST = GROUPS[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMatrix:
    """A quantised matrix of a checkpoint.

    Attributes:
        name: name of the parameter that it replaces, such as "model.layers.0.mlp.up_proj.weight".
        values: the matrix; its inputs are permuted by `order` if set.
        tensors: names of the tensors that it was made from.
        order: Int64 [k], the order in which the matrix takes its inputs; None for the original order.
    """

    name: str
    values: GroupedValues
    tensors: tuple[str, ...]
    order: Tensor | None = None


class Reader(Protocol):
    """A reader for one format."""

    def __call__(self, files: CheckpointFiles, settings: Mapping[str, Any], /) -> Iterator[PackedMatrix]:
        """Yield the packed matrices of a checkpoint, one at a time.

        Args:
            files: files of the checkpoint.
            settings: its config's `quantization_config`.

        Raises:
            UnsupportedError: a matrix is packed in an unknown way; the message names it.
        """


def unpack_words(words: Tensor, bits: int, *, order: tuple[int, ...] | None = None) -> Tensor:
    """Return the unsigned integers that are packed in the words of each row, lowest bits first.

    Args:
        words: Int32 [rows, n].
        bits: 4 or 8.
        order: the place in a word of each of its integers; None for bit order.

    Returns:
        UInt8 [rows, n * 32 / bits].
    """
    data = words.contiguous().view(torch.uint8)  # little-endian, as all machines that this runs on
    if bits == 4:
        data = torch.stack((data & 15, data >> 4), dim=-1).reshape(len(words), -1)
    if order is not None:
        data = data.reshape(len(words), -1, len(order))[..., list(order)].reshape(len(words), -1)
    return data


def unpack_halves(data: Tensor) -> Tensor:
    """Return the 4-bit integers of bytes, the lower half first: UInt8 [rows, 2 n] of Int8 or UInt8 [rows, n]."""
    data = data.contiguous().view(torch.uint8)
    return torch.stack((data & 15, data >> 4), dim=-1).reshape(len(data), -1)


def group_values(
    name: str,
    values: Tensor,
    scales: Tensor,
    *,
    bits: int,
    group: int,
    zeros: Tensor | None = None,
    offset: int = 0,
    minima: Tensor | None = None,
    table: Tensor | None = None,
) -> GroupedValues:
    """Return a matrix of (value - offset - zero) * scale + minimum.

    Args:
        name: name of the matrix, for messages.
        values: UInt8 [outs, k].
        scales: [outs, groups], any float dtype.
        bits: 4 or 8.
        group: number of inputs that share a scale; k or more for all.
        zeros: integers [outs, groups] subtracted from values; None for none.
        offset: subtracted from all values.
        minima: [outs, groups], added after scaling, in place of zeros; None for none.
        table: values that 4-bit codes encode, see `GroupedValues`.

    Raises:
        UnsupportedError: there is no layout for this group size.
    """
    outs, k = values.shape
    if zeros is not None and bool((zeros == zeros.flatten()[0]).all()):
        offset, zeros = offset + int(zeros.flatten()[0]), None
    if zeros is not None:
        minima = -scales.float() * zeros.float()  # exact: 11 bits of a scale times 8 bits of a zero
    repeats = 1
    if group not in GROUPS:
        if group < k and group % _WIDEST:
            raise UnsupportedError(
                f"{name} has groups of {group} inputs; supported are {', '.join(map(str, GROUPS))} and multiples of "
                f"{_WIDEST}."
            )
        group, repeats = _WIDEST, -(-min(group, k) // _WIDEST)
    groups = -(-k // group)

    def spread(numbers: Tensor) -> GroupScales:
        each = numbers.expand(outs, -1).repeat_interleave(repeats, dim=1)[:, :groups]
        return GroupScales(numbers=_shortest(each).contiguous())

    return GroupedValues(
        values=values,
        bits=bits,
        group=group,
        scales=spread(scales),
        minima=None if minima is None else spread(minima),
        offset=offset,
        table=table,
    )


def find_group(k: int, groups: int, *named: Any) -> int:
    """Return how many of k inputs share a scale: the first number from the config that fits, else k / groups."""
    fitting = (int(each) for each in named if each and int(each) > 0)
    return next((size for size in fitting if -(-k // size) == groups), -(-k // groups))


def order_inputs(name: str, groups: Tensor, size: int) -> Tensor | None:
    """Return an order of inputs in which each group is contiguous; None if they already are.

    Args:
        name: name of the matrix, for messages.
        groups: Int [k], the group of each input.
        size: number of inputs per group.

    Raises:
        UnsupportedError: the groups do not have this size.
    """
    expected = torch.arange(len(groups)) // size
    groups = groups.long()
    if torch.equal(groups, expected):
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups[order], expected):
        raise UnsupportedError(f"{name} has groups of unequal sizes (g_idx), which is not supported.")
    return order


def _shortest(numbers: Tensor) -> Tensor:
    """Return numbers as float16 if that is exact, else as float32."""
    wide = numbers.float()
    halved = wide.half()
    return halved if torch.equal(halved.float(), wide) else wide
