"""The report of `speculant check --head`: what a head is, whether it fits a target, and how well it drafts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from speculant.bench.suite.pair_report import ModelFacts
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.checkpoints.formats import Format
from speculant.drafters.heads.drafter import LoadedHead
from speculant.registry import METHODS, default_method


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFacts:
    """The properties of a checkpoint that are known without a target.

    Attributes:
        format: layout of the checkpoint, in words.
        kind: kind of architecture, as named in `Method.heads`.
        method: default method for it.
        methods: methods that can draft with it.
        parameters: number of weights in the checkpoint.
        bytes: size of the weights.
        dtype: dtype of most weights.
    """

    format: str
    kind: str
    method: str
    methods: tuple[str, ...]
    parameters: int
    bytes: int
    dtype: str

    @classmethod
    def of(cls, checkpoint: Checkpoint, format_: Format) -> HeadFacts:
        """Return the facts of a checkpoint."""
        tensors = list(checkpoint.tensors.values())
        largest = max(tensors, key=lambda tensor: tensor.numel())
        fitting = tuple(name for name, method in METHODS.items() if format_.kind in method.heads or "*" in method.heads)
        return cls(
            format=format_.name,
            kind=format_.kind,
            method=default_method(format_.method),
            methods=fitting,
            parameters=sum(tensor.numel() for tensor in tensors),
            bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            dtype=str(largest.dtype).removeprefix("torch."),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadReport:
    """The report on a head and a target.

    Attributes:
        facts: properties of the head.
        target: properties of the model.
        layers: number of the model's layers.
        taps: the decoder layers whose output the head reads, from 0; None if it does not fit.
        vocabulary: number of tokens that the head can draft; None if it does not fit.
        depth: maximum depth of its drafts; None for no limit.
        obstacle: why it does not fit; "" if it does.
        mat: tokens per target pass with drafts of the default method; None if not measured.
        tokens: number of measured tokens.
    """

    facts: HeadFacts
    target: ModelFacts
    layers: int | None = None
    taps: tuple[int, ...] | None = None
    vocabulary: int | None = None
    depth: int | None = None
    obstacle: str = ""
    mat: float | None = None
    tokens: int = 0

    @classmethod
    def of(cls, facts: HeadFacts, target: ModelFacts, head: LoadedHead, **measured: Any) -> HeadReport:
        """Return the report of a head that fits."""
        ids = head.head.ids
        return cls(
            facts=facts,
            target=target,
            layers=head.target.layers,
            taps=tuple(head.head.taps),
            vocabulary=head.target.vocabulary if ids is None else len(ids),
            depth=head.head.depth,
            **measured,
        )

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        facts = self.facts
        count = f"{facts.parameters / 1e6:.2f} M" if facts.parameters < 1e9 else f"{facts.parameters / 1e9:.2f} B"
        lines = [
            f"target      {self.target.line()}",
            f"format      {facts.format}",
            f"kind        {facts.kind}",
            f"method      {facts.method} by default; {', '.join(facts.methods)}",
            f"size        {count} parameters, {facts.bytes / 2**20:.1f} MiB, {facts.dtype}",
        ]
        if self.obstacle:
            return [*lines, f"fits        no: {self.obstacle}"]
        layers = self.layers or 0
        named = ", ".join(str(layers - 1 if tap == -1 else tap) for tap in self.taps or ()) or "none"
        lines += [
            f"taps        outputs of decoder layers {named} (0 to {layers - 1})",
            f"vocabulary  {self.vocabulary} of {self.target.vocabulary} target tokens",
            f"depth       {'any' if self.depth is None else f'{self.depth} tokens at most'}",
            "fits        yes",
        ]
        if self.mat is not None:
            lines.append(
                f"acceptance  {self.mat:.2f} tokens a target pass with {facts.method}, over {self.tokens} tokens"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self) | {"fits": not self.obstacle}
