"""States of heads that read the newest target state: histories of rounds leave no trace but the text."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from feed_forward_heads import HEADS, HIDDEN, heads, tiny_target
from models import VOCABULARY
from speculant.drafters.heads.head import HeadState

NAMES = tuple(heads())


def drafts(state: HeadState) -> Tensor:
    """Return the logits of a fixed tree below the root, grown in two calls, the second of two depths."""
    first = state.grow([5, 9], [-1, -1])
    second = state.grow([7, 11, 13], [0, 1, -1])
    return torch.cat([state.start(), first, second])


@pytest.mark.parametrize("name", NAMES)
def test_a_history_of_rounds_equals_one_reading(name: str) -> None:
    """Guards rows kept and dropped: drafts, rejections and a second turn, against a state that saw the text once."""
    target, head, chance = tiny_target(), heads()[name], random.Random(3)
    hidden = torch.randn(40, 1, HIDDEN, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(0, VOCABULARY, (40,), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        state, done = head.open(0, target), 0  # type: ignore[operator]
        while done < 40:
            count = min(40 - done, chance.randint(1, 6))
            state.drop()
            state.extend(hidden[done : done + count], tokens[done : done + count])
            done += count
            drafts(state)
            if chance.random() < 0.3 and done < 30:  # another turn, which goes on from an earlier place
                done -= chance.randint(1, count)
                state.crop(done)
                state.extend(hidden[done : done + 1], tokens[done : done + 1])
                done += 1
            assert state.length == done
        state.drop()
        whole = head.open(0, target)  # type: ignore[operator]
        whole.extend(hidden, tokens)
        torch.testing.assert_close(drafts(state), drafts(whole), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_node_sees_its_own_path_alone(name: str) -> None:
    """Guards drafts that branch: each path of a tree has the logits it has as a chain, whichever call it came in."""
    target, head = tiny_target(), heads()[name]
    hidden = torch.randn(4, 1, HIDDEN, generator=torch.Generator().manual_seed(1))

    def opened() -> HeadState:
        state: HeadState = head.open(0, target)  # type: ignore[operator]
        state.extend(hidden, torch.tensor([1, 2, 3, 4]))
        return state

    with torch.inference_mode():
        tree = opened()
        tree.grow([5, 6], [-1, -1])
        found = tree.grow([7, 8], [0, 1])
        for node, path in enumerate(([5, 7], [6, 8])):
            chain = opened()
            for depth, token in enumerate(path):
                logits = chain.grow([token], [depth - 1])
            torch.testing.assert_close(found[node], logits[0], atol=1e-5, rtol=1e-5)
        differ = not torch.allclose(found[0], found[1])
        assert differ == (name.startswith(("hydra", "mlp")))


@pytest.mark.parametrize("name", NAMES)
def test_first_position_and_depth(name: str) -> None:
    """Guards texts whose beginning was cached by other means, and the depth that bounds drafts."""
    head = heads()[name]
    assert head.depth == HEADS
    state = head.open(10, tiny_target())  # type: ignore[operator]
    assert state.length == 10
    state.extend(torch.randn(2, 1, HIDDEN), torch.tensor([1, 2]))
    assert state.length == 12
