"""The shape of a parallel block: its slots, how its layers see them, and the corrections of its logits."""

from __future__ import annotations

from dataclasses import dataclass

MARKOV_KINDS = ("vanilla", "gated", "rnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Domino:
    """The sizes of Domino's correction.

    Attributes:
        state: size of its recurrent state.
        inner: size of the layer before the logits.
        plain: number of tokens from the root on that are drafted without it.
    """

    state: int
    inner: int
    plain: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """The sizes of DFlash 2's selector.

    Attributes:
        rank: rank of its scores.
        candidates: number of most probable tokens in a slot that it chooses from.
    """

    rank: int
    candidates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """The sizes of the convolutions.

    Attributes:
        taps: number of slots that a slot sees, including itself.
        group: number of channels that share a dynamic kernel.
    """

    taps: int
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """What a block consists of, and how its layers see it.

    Attributes:
        layers: number of decoder layers.
        size: b, slots per block, including the root's.
        mask: token that stands for unknown ones.
        anchored: whether a slot predicts the token after it, so that the root's slot drafts too (DeepSpec).
        windows: for each layer, number of positions that it sees back, including its own; None for no limit. () if no
            layer has a window.
        causal: for each layer, whether a slot sees only those before it; () if no layer is causal.
        markov: rank of the Markov head, which adds a bias that depends on the preceding token; 0 for none.
        markov_kind: one of MARKOV_KINDS.
        confidence: whether a head predicts the acceptance of each token.
        confidence_markov: whether it reads the Markov head's row of the preceding token.
        domino, selector: correction of Domino or of DFlash 2, instead of a Markov head.
        convolution: convolutions of DFlash 2's layers.
        multiplier: factor for the logits.
        softcap: bound c of the logits, as c tanh(logits / c); 0 for none.
        scale: factor for rows of the embedding weights; None for embeddings as the target computes them.
        own_embeddings, own_output: whether the head has its own embeddings and output projection.
        vocabulary: V, of its own embeddings and Markov head.
    """

    layers: int
    size: int
    mask: int
    anchored: bool = False
    windows: tuple[int | None, ...] = ()
    causal: tuple[bool, ...] = ()
    markov: int = 0
    markov_kind: str = "vanilla"
    confidence: bool = False
    confidence_markov: bool = True
    domino: Domino | None = None
    selector: Selector | None = None
    convolution: Convolution | None = None
    multiplier: float = 1.0
    softcap: float = 0.0
    scale: float | None = None
    own_embeddings: bool = False
    own_output: bool = False
    vocabulary: int = 0

    @property
    def drafted(self) -> int:
        """K, number of tokens that a block drafts."""
        return self.size if self.anchored else self.size - 1
