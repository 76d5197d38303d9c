"""Windows of a request: every position with what the target computed there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from speculant.core.drafter import SessionRequest, Verified
from speculant.core.sampler import Sampling
from speculant.core.tree import DraftTree
from speculant.training.online.recorder import RejectionRecorder, from_16_bits, has_rejection, to_16_bits
from speculant.training.online.window import TextWindow
from trees import make_tree


def verified(tree: DraftTree, path: list[int], tokens: list[int], marks: list[int] | None = None) -> Verified:
    """Return a round; row i of its pass is marked by the target's token and state there."""
    rows = np.array([0] * (len(tree) + 1) if marks is None else marks, np.int32)
    return Verified(
        tree=tree,
        path=np.array(path, np.int32),
        tokens=np.array(tokens, np.int32),
        top_ids=np.stack([rows, rows + 1], axis=1),
        top_logits=np.stack([rows, rows - 1.0], axis=1).astype(np.float32),
        hidden=torch.tensor(rows).float()[:, None, None].expand(-1, 2, 3),
    )


def record(
    *rounds: Verified, prompt: list[int], maximum: int = 64, states: bool = False, **options: Any
) -> list[TextWindow]:
    """Return the windows of a request."""
    windows: list[TextWindow] = []
    recorder = RejectionRecorder(
        SessionRequest(prompt=np.array(prompt, np.int32), **options), windows.append, maximum=maximum, states=states
    )
    for each in rounds:
        recorder.observe(each)
    recorder.close()
    return windows


def rounds_by_hand() -> list[Verified]:
    """Return: the prompt's pass, a draft whose second token is wrong, one accepted as a whole, and none."""
    return [
        verified(DraftTree.empty(), [], [20], [42]),
        verified(make_tree([21, 22, 23], [-1, 0, 1]), [0], [21, 30], [43, 44, 45, 46]),
        verified(make_tree([31, 32], [-1, 0]), [0, 1], [31, 32, 33], [47, 48, 49]),
        verified(DraftTree.empty(), [], [34], [50]),
    ]


def test_wrong_positions_by_hand() -> None:
    """Guards the index: wrong is the token after which the draft failed, not the corrected one; a bonus never is."""
    [window] = record(*rounds_by_hand(), prompt=[10, 11, 12])
    assert window.tokens.tolist() == [10, 11, 12, 20, 21, 30, 31, 32, 33]
    assert window.known.tolist() == [False, False] + [True] * 7
    assert window.wrong.tolist() == [0, 0, 0, 0, 2, 0, 0, 0, 0]
    assert window.top_ids is not None
    assert window.top_ids[2:, 0].tolist() == [42, 43, 44, 47, 48, 49, 50]
    assert window.greedy


def test_states_stand_beside_the_same_positions() -> None:
    """Guards heads: the state of a token is that of its own row, over branches too."""
    tree = make_tree([5, 6, 7, 8], [-1, -1, 1, 1])
    rounds = [verified(DraftTree.empty(), [], [4], [1, 2, 3]), verified(tree, [1, 3], [6, 8, 9], [4, 50, 6, 70, 8])]
    [window] = record(*rounds, prompt=[1, 2, 3], states=True)
    assert window.hidden is not None
    assert window.tokens.tolist() == [1, 2, 3, 4, 6, 8]
    assert from_16_bits(window.hidden)[:, 0, 0].tolist() == [1, 2, 3, 4, 6, 8]


def test_what_counts_as_rejected() -> None:
    """Guards each way a round can end: below the root, at a leaf, or in text that the target wrote itself."""
    tree = make_tree([5, 6], [-1, 0])
    assert has_rejection(verified(tree, [], [9]))
    assert has_rejection(verified(tree, [0], [5, 9]))
    assert not has_rejection(verified(tree, [0, 1], [5, 6, 9]))
    assert not has_rejection(verified(tree, [], [5]))
    assert not has_rejection(verified(DraftTree.empty(), [], [5]))


def test_long_texts_make_several_windows() -> None:
    """Guards the bound of a window, and that no position is learned from twice though windows overlap."""
    first = verified(DraftTree.empty(), [], [0], [0])
    wrong = [verified(make_tree([99], [-1]), [], [number], [number - 1] * 2) for number in range(1, 41)]
    windows = record(first, *wrong, prompt=[7] * 20, maximum=16)
    assert all(len(window.tokens) <= 16 for window in windows)
    assert sum(int(window.known.sum()) for window in windows) == 41
    for window in windows[1:]:
        assert window.known.tolist() == [False] * 4 + [True] * (len(window.tokens) - 4)
        assert window.top_ids is not None
        assert window.top_ids[4:, 0].tolist() == window.tokens[4:].tolist()


def test_sampled_requests_are_marked() -> None:
    """Guards the measure of acceptance, which differs between greedy and sampled texts."""
    [window] = record(verified(DraftTree.empty(), [], [1]), prompt=[1], sampling=Sampling(temperature=0.7))
    assert not window.greedy


def test_states_in_16_bits() -> None:
    """Guards large activations, which Float16 would turn into infinity, and bfloat16, which numpy lacks."""
    for states in (torch.tensor([[[1.5, 1e6]]]), torch.tensor([[[1.5, -2.0]]], dtype=torch.bfloat16)):
        assert torch.allclose(from_16_bits(to_16_bits(states)), states.float(), rtol=1e-2)
    assert to_16_bits(torch.ones(1, 1, 1)).dtype == np.float16
