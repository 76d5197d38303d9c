"""What a parallel block is: its slots, how its layers see them, and what corrects its logits."""

from __future__ import annotations

from dataclasses import dataclass

MARKOV_KINDS = ("vanilla", "gated", "rnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Domino:
    """The sizes of Domino's correction.

    Attributes:
        state: numbers of its recurrent state.
        inner: of the layer in front of the logits.
        plain: how many tokens from the root on are drafted without it.
    """

    state: int
    inner: int
    plain: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """The sizes of DFlash 2's selector.

    Attributes:
        rank: of its scores.
        candidates: tokens of a slot that it chooses from, the most probable ones.
    """

    rank: int
    candidates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """The sizes of the convolutions.

    Attributes:
        taps: slots that a slot sees, itself included.
        group: channels that share a dynamic kernel.
    """

    taps: int
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """What a block is and how its layers see it.

    Attributes:
        layers: decoder layers.
        size: b, the slots of a block, the root's included.
        mask: the token that stands for an unknown one.
        anchored: whether a slot predicts the token after it, so that the root's slot drafts too (DeepSpec).
        windows: of each layer, how many positions back it sees, itself included; None for any number. () if none does.
        causal: of each layer, whether a slot sees those before it only; () if none does.
        markov: the rank of the Markov head, which adds a bias that depends on the token before; 0 without one.
        markov_kind: one of MARKOV_KINDS.
        confidence: whether a head predicts the acceptance of each token.
        confidence_markov: whether it reads the Markov head's row of the token before.
        domino, selector: the correction of Domino, or of DFlash 2, in place of a Markov head.
        convolution: of DFlash 2's layers.
        multiplier: that the logits are multiplied by.
        softcap: that bounds them, as c tanh(logits / c); 0 for none.
        scale: that rows of the embeddings' weights are multiplied by; None for embeddings as the target reads them.
        own_embeddings, own_output: whether embeddings and output projection are the head's own.
        vocabulary: of its own embeddings and Markov head, V.
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
        """K, how many tokens a block drafts."""
        return self.size if self.anchored else self.size - 1
