"""Trees on models with states: every row's logits are those of its own path, whatever was drafted, kept or dropped."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from architecture_matrix.catalogue import build
from architecture_matrix.compare import examine
from interrupts import interrupted
from pairwise import in_turn
from passes import Greedy, opened, plain_text, rows_of
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.tree import DraftTree
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.probe.rounds import wrong_rows
from speculant.engines.hf.target_cache import HFTargetCache
from trees import make_tree, random_draft

STATES = pytest.importorskip("transformers.cache_utils")
if not hasattr(STATES, "LinearAttentionLayer"):
    pytest.skip("this release of transformers keeps states in classes of each model's own", allow_module_level=True)

# One of each recurrence: with decays by head and by channel, alone and beside attention, with several heads' scans, and
# with states that the classes keep on modules and beside the layers of a cache.
MODELS = ["qwen3_5_text", "kimi_linear", "mamba2", "falcon_h1", "jamba", "zamba", "lfm2", "inkling_text"]
MODELS += ["recurrent_gemma", "minimax"]
LOOPS = "kimi_linear"  # whose classes loop over a text in Python; its rows alone are compared among the fast tests
WITHOUT_LOOPS = [pytest.param(name, marks=pytest.mark.slow if name == LOOPS else ()) for name in MODELS]
IDS = torch.tensor([[5, 9, 14, 3, 8, 5, 9, 14, 3, 8, 5, 9]])


@cache
def engine_of(name: str) -> HFEngine:
    """Return an engine of a tiny model of an architecture, of which nothing is ever changed."""
    return HFEngine(build(name, "eager"))


def assert_alike(ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert not wrong_rows(ours, expected, torch.float32).numel()


def paths_to_leaves(tree: DraftTree) -> list[list[int]]:
    """Return the nodes on the way from the root to each leaf; every node is on one of them."""
    inner = set(tree.parents.tolist())
    return [tree.path(node).tolist() for node in range(len(tree)) if node not in inner]


@pytest.mark.parametrize("name", MODELS)
def test_a_row_is_what_one_token_passes_along_its_path_give(name: str) -> None:
    """Guards the closed forms: no row sees siblings, rejected rows or the order of nodes."""
    engine, random = engine_of(name), np.random.default_rng(1)
    sequence = opened(engine, IDS)
    for _ in range(2):
        tree = random_draft(random, 8, 61)
        [result] = engine.forward([(sequence, 7, tree)])
        sequence.rollback()
        for path in paths_to_leaves(tree):
            expected = sequence.plain_logits([7, *(int(tree.tokens[each]) for each in path)])
            assert_alike(result.logits[[0, *(each + 1 for each in path)]], expected)
        sequence.forward(*rows_of(7, tree))
        sequence.keep([0])


@pytest.mark.parametrize(
    ("name", "first"),
    [
        *in_turn([name for name in MODELS if name != LOOPS], [3, 1]),
        *(pytest.param(LOOPS, first, marks=pytest.mark.slow) for first in (3, 1)),
    ],
)
def test_a_tree_grown_in_pieces_gives_the_logits_of_one_pass(name: str, first: int) -> None:
    """Guards records over several passes, behind one of the model's own too."""
    engine = engine_of(name)
    tree = make_tree([4, 9, 11, 4, 8, 20, 31], [-1, -1, 0, 1, 2, 2, 4])
    tokens, parents = rows_of(7, tree)
    sequence = opened(engine, IDS)
    whole = sequence.forward(tokens, parents).logits
    sequence.rollback()
    pieces = [
        sequence.forward(tokens[part], parents[part]).logits for part in (slice(0, first), slice(first, 5), slice(5, 8))
    ]
    assert_alike(torch.cat(pieces), whole)
    sequence.keep([0, 1, 3])
    kept = sequence.plain_logits([13])
    other = opened(engine, torch.tensor([[*IDS[0].tolist(), 7, 4, 11]]))
    assert_alike(kept, other.plain_logits([13]))


PATHS = ([], [0], [0, 1], [0, 1, 3], [0, 2, 4])


@pytest.mark.parametrize(
    ("name", "path"),
    [  # every path on one model, and one past rejected nodes on each without loops
        pytest.param(
            name, path, marks=() if name == MODELS[0] or (path == PATHS[-1] and name != LOOPS) else pytest.mark.slow
        )
        for name in MODELS
        for path in PATHS
    ],
)
def test_a_kept_path_is_a_text_that_was_read(name: str, path: list[int]) -> None:
    """Guards commits: none, the root, and paths past nodes that were rejected."""
    engine, tree = engine_of(name), make_tree([4, 9, 11, 17], [-1, -1, 0, 1])
    sequence = opened(engine, IDS)
    tokens, parents = rows_of(7, tree)
    sequence.forward(tokens, parents)
    sequence.keep(path)
    assert sequence.length == 12 + len(path)
    expected = opened(engine, torch.tensor([[*IDS[0].tolist(), *(int(tokens[row]) for row in path)]]))
    assert_alike(sequence.plain_logits([21, 22]), expected.plain_logits([21, 22]))


@pytest.mark.parametrize("name", WITHOUT_LOOPS)
def test_several_sequences_share_a_pass(name: str) -> None:
    """Guards batches: rows of other texts leave no trace, and no model is run text by text for it."""
    engine, random = engine_of(name), np.random.default_rng(5)
    prompts = [IDS, IDS[:, :5], torch.tensor([[3, 30, 40]])]
    sequences = [opened(engine, ids) for ids in prompts]
    for _ in range(2):
        trees = [random_draft(random, 6, 61) for _ in prompts]
        alone = []
        for sequence, tree in zip(sequences, trees, strict=True):
            alone.append(engine.forward([(sequence, 7, tree)])[0].logits)
            sequence.rollback()
        together = engine.forward([(each, 7, tree) for each, tree in zip(sequences, trees, strict=True)])
        for expected, result, sequence in zip(alone, together, sequences, strict=True):
            assert_alike(result.logits, expected)
            sequence.keep([0, 1])
    one_by_one = ("inkling_text", "kimi_linear")  # positions counted by the cache, and latent keys
    assert (engine.batch_note == "") == (name not in one_by_one)


@pytest.mark.parametrize("name", ["qwen3_5_text", "mamba2", "jamba", "recurrent_gemma", "minimax"])
def test_a_pass_that_fails_leaves_the_state_as_it_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a full device in the middle of a pass, of the model's own and of a recorded one."""
    engine = engine_of(name)
    sequence = opened(engine, IDS)
    expected = sequence.plain_logits([7, 9])
    tree = make_tree([4, 9], [-1, -1])
    for tokens, parents in (rows_of(7, tree), rows_of(7, DraftTree.empty())):
        with monkeypatch.context() as patch:
            patch.setattr(engine.model.lm_head, "forward", _full)
            with pytest.raises(torch.OutOfMemoryError, match="full"):
                raise torch.OutOfMemoryError(str(_failure(sequence, tokens, parents)))
        assert sequence.uncommitted == 0
        assert_alike(sequence.plain_logits([7, 9]), expected)


def _full(*_: Any) -> None:
    raise torch.OutOfMemoryError("full")


def _failure(sequence: HFTargetCache, tokens: Any, parents: Any) -> BaseException:
    try:
        sequence.forward(tokens, parents)
    except Exception as error:
        return error.__cause__ or error
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("name", ["qwen3_5_text", "mamba2", "zamba", "recurrent_gemma", "minimax"])
def test_interrupts_at_any_line_lose_nothing(name: str) -> None:
    """Guards Ctrl-C: a text goes on behind it as if nothing had been."""
    engine = engine_of(name)
    text = plain_text(engine.model, IDS, 8)
    for line in range(5, 900, 149):
        greedy = Greedy(engine, IDS, text)
        while not greedy.ended:
            tree = greedy.draft()
            interrupted(lambda: engine.forward([(greedy.cache, greedy.ids[-1], tree)]), line)  # noqa: B023
            greedy.cache.rollback()
            [result] = engine.forward([(greedy.cache, greedy.ids[-1], tree)])
            greedy.commit(tree, result.logits)
        assert greedy.ids[: len(text)] == text


# Fast tests in `test_end_to_end` compare texts of the others, but for those whose layers these have.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("qwen3_5_text", "mamba2", "lfm2") else pytest.mark.slow)
        for name in MODELS
    ],
)
def test_texts_are_those_of_generate(name: str) -> None:
    """Guards whole texts behind short and long prompts: greedy, sampled with a seed, and in a batch."""
    found = examine(name, ("eager",))
    assert (found.verdict, found.mismatches) == ("trees", [])
    assert found.comparisons == 7
    assert found.accepted > 20


def test_what_states_cannot_do_is_refused() -> None:
    """Guards messages: tokens read again through some layers, and rows beside an own pass."""
    sequence = opened(engine_of("qwen3_5_text"), IDS)
    with pytest.raises(UnsupportedError, match="rolled back"):
        sequence.reread(np.array([1, 2, 3], np.int32), [0])
    sequence.forward(np.array([7], np.int32), np.array([-1], np.int32))
    with pytest.raises(UsageError, match="in one pass"):
        sequence.forward(np.array([8, 9], np.int32), np.array([-1, 0], np.int32))
