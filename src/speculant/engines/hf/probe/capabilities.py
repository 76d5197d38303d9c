"""The capabilities of a transformers model: what `class_checks` reads off its class, and `probing` then confirms."""

from __future__ import annotations

from dataclasses import dataclass

from speculant.core.engine import Capabilities
from speculant.engines.hf.states.mixers import Mixers


@dataclass(frozen=True, slots=True)
class InputNames:
    """A class's names for the inputs of text rows."""

    ids: str = "input_ids"
    mask: str = "attention_mask"
    positions: str = "position_ids"


TEXT_INPUTS = InputNames()
DECODER_INPUTS = InputNames("decoder_input_ids", "decoder_attention_mask", "decoder_position_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class HFCapabilities(Capabilities):
    """How drafts are verified on a transformers model.

    Attributes:
        additive: whether masks must be added to scores as floats (eager attention).
        window: number of positions that a sliding layer sees, or None.
        window_by_cache: whether the class itself has no window, but `generate` passes it a cache that forgets older
            rows: prompts are read without a window, in one pass, and the mask of every later row has it.
        mixed: whether full and sliding layers alternate, so that masks are passed as a dict by layer type.
        rope_limit: the position from which on rotary factors change for all rows of a pass, or None.
        rope_follows: whether beyond it they depend on the longest position of a pass ("dynamic"), so that nothing can
            be drafted there; otherwise they change once ("longrope").
        rope_rereads: whether `generate` rereads the text when it reaches the limit.
        takes_positions: whether the model accepts position ids.
        first_position: the position id of a text's first token.
        reads_padding: whether padding in front of a text affects it by the class or config; see also `padding`.
        slots: maximum rows of a cache, including drafts, if the class has a mask of fixed size; or None.
        batches: whether several sequences may share a pass.
        attends: whether there are attention layers, so that passes need masks and positions.
        indexed: whether there are layers that select the tokens they attend to by an index.
        mixers: the layers with states, which passes over drafts record; None without any.
        replays: whether the cache can only be copied: chains are verified, and accepted tokens may be read again.
        inputs: the class's names for its text inputs.
        placing: modules that place rows by slots, and get a tree's positions from a view.
        encoder: whether there is an encoder, whose states every pass reads.
        text_alone: whether the model accepts prompts without media.
        both_ways: whether prompt tokens also attend to later ones, so that a prompt is read in one pass.
        source_layers: the decoder's cross-attention layers, whose cached rows are those of an image.
    """

    additive: bool = False
    window: int | None = None
    window_by_cache: bool = False
    mixed: bool = False
    rope_limit: int | None = None
    rope_follows: bool = False
    rope_rereads: bool = False
    takes_positions: bool = False
    first_position: int = 0
    reads_padding: bool = False
    slots: int | None = None
    batches: bool = True
    attends: bool = True
    indexed: bool = False
    mixers: Mixers | None = None
    replays: bool = False
    inputs: InputNames = TEXT_INPUTS
    placing: tuple[str, ...] = ()
    encoder: bool = False
    text_alone: bool = True
    both_ways: bool = False
    source_layers: tuple[int, ...] = ()

    @property
    def states(self) -> bool:
        """Whether there are layers that cache a state."""
        return self.mixers is not None
