"""Drafts inside vLLM itself; run by `make test-vllm`, in an environment that has it.

Each job is a process of vLLM. Jobs are shared by the tests that look at them. Texts and recordings are read from
$SPECULANT_DATA.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from speculant.memory.file import read_header
from vllm_runs.jobs import RECORDING_PROPOSER, SCHEDULER, Ask, Done, Turn, ours, run
from vllm_runs.recording import FOLDER
from vllm_runs.workloads import (
    bundled_head,
    edits,
    on_bundled_model,
    on_recordings,
    rewrites,
    samples,
    stories,
    total_variation,
)

DRAFTS, FEW = 8, 5
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS}
SUFFIX = {"method": "suffix", "num_speculative_tokens": DRAFTS}
COUNT, TOKENS, TEMPERATURE = 1500, 3, 0.7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where jobs leave their files."""
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def data() -> Path:
    """Return the folder of texts and recordings."""
    if "SPECULANT_DATA" not in os.environ:
        pytest.skip("SPECULANT_DATA names no folder with texts and recordings")
    return Path(os.environ["SPECULANT_DATA"])


def mixed(waves: list[list[Ask]]) -> list[list[Ask]]:
    """Return greedy requests, each followed by a sampled one."""
    found: list[Ask] = []
    for i, ask in enumerate(waves[0][:8]):
        found += [replace(ask, maximum=60), replace(ask, maximum=60, temperature=0.8, top_p=0.9, seed=i)]
    return [found]


def drawn(number: int) -> list[list[Ask]]:
    """Return sampled answers to one prompt; the seeds depend on the number."""
    return samples(COUNT, tokens=TOKENS, temperature=TEMPERATURE, first_seed=number * COUNT)


@pytest.fixture(scope="module")
def plain(folder: Path, data: Path) -> list[Done]:
    """Return what vLLM generates without drafts: stories, requests of both kinds, sampled answers."""
    waves = stories(data)
    return run(on_bundled_model(*(Turn(waves=each) for each in (waves, mixed(waves), drawn(0)))), folder / "plain")


@pytest.fixture(scope="module")
def drafted(folder: Path, data: Path) -> list[Done]:
    """Return the same with drafts, and stories with vLLM's own drafters."""
    waves = stories(data)
    turns = [
        *(Turn(waves=waves, speculative=each) for each in (SUFFIX, NGRAM)),
        *(Turn(waves=each, speculative=ours(DRAFTS)) for each in (waves, mixed(waves), drawn(1))),
    ]
    return run(on_bundled_model(*turns), folder / "drafted")


def assert_same_distribution(first: list[list[int]], second: list[list[int]]) -> None:
    """Assert that the total variation of two samples is one that halves of both together have by chance."""
    random, pooled = np.random.default_rng(0), [*first, *second]
    for length in range(1, TOKENS + 1):
        found = total_variation(first, second, length)
        by_chance = []
        for _ in range(200):
            order = random.permutation(2 * COUNT)
            halves = [[pooled[i] for i in part] for part in (order[:COUNT], order[COUNT:])]
            by_chance.append(total_variation(halves[0], halves[1], length))
        assert found <= max(by_chance), (length, found, max(by_chance))


def test_stories(plain: list[Done], drafted: list[Done]) -> None:
    """50 held-out prompts, greedy: token for token what vLLM generates without drafts, in fewer passes than its own.

    The batch holds 16 rows and requests are of different lengths, so they join and leave.
    """
    suffix, ngram, found = drafted[:3]
    assert found.outputs == plain[0].outputs
    assert max(found.rows) == 16
    assert found.mat > max(suffix.mat, ngram.mat)


def test_edit_conversations(folder: Path, data: Path) -> None:
    """Recorded edit conversations of five turns, replayed: the same two things."""
    waves = edits(data, folder / "replay")
    turns = [Turn(waves=waves, speculative=each) for each in (SUFFIX, NGRAM, ours(DRAFTS))]
    suffix, ngram, found = run(on_recordings(folder / "replay", *turns), folder / "edits")
    recorded = json.loads((folder / "replay" / "recordings.json").read_text())
    answers = {tuple(prompt): output for prompt, output in recorded}
    assert found.outputs == [answers[tuple(ask.prompt)] for wave in waves for ask in wave]
    assert found.mat > max(suffix.mat, ngram.mat)


def test_greedy_beside_sampled_requests(plain: list[Done], drafted: list[Done]) -> None:
    """A greedy request is not disturbed by sampled ones in its batch."""
    assert drafted[3].outputs[::2] == plain[1].outputs[::2]


def test_sampling_is_lossless(plain: list[Done], drafted: list[Done]) -> None:
    """Answers sampled with drafts are distributed as those without, as far as so many samples can tell."""
    assert drafted[4].drafted > COUNT
    assert_same_distribution(plain[2].outputs, drafted[4].outputs)


def test_tensor_parallel_ranks(folder: Path, data: Path) -> None:
    """Two ranks generate what one does and draft the same in every step; one of them saves the memory."""
    waves = [stories(data)[0][:12]]
    (alone,) = run(on_bundled_model(Turn(waves=waves), rows=4), folder / "one")
    memory, drafts = folder / "memory" / "m.speculant", folder / "drafts"
    drafts.mkdir()
    settings = {"SPECULANT_MEMORY": str(memory), FOLDER: str(drafts)}
    turn = Turn(waves=waves, speculative=ours(DRAFTS, RECORDING_PROPOSER), settings=settings)
    (done,) = run(on_bundled_model(turn, rows=4, ranks=2), folder / "two")
    assert done.outputs == alone.outputs
    ranks = [path.read_text() for path in sorted(drafts.iterdir())]
    assert len(ranks) == 2
    assert ranks[0] == ranks[1]
    assert len(ranks[0].splitlines()) > 100
    assert [path.name for path in memory.parent.iterdir()] == [memory.name]
    assert read_header(memory)[0]["kind"] == "mix"


def both(data: Path) -> list[list[Ask]]:
    """Return stories and rewrites in turns: a head drafts the former best, a memory the latter."""
    return [[ask for pair in zip(stories(data)[0][:16], rewrites(data)[0][:16], strict=True) for ask in pair]]


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_head_and_a_memory(folder: Path, data: Path, kind: str) -> None:
    """Outputs are those of plain decoding, in fewer passes than with either alone; what is learned is kept."""
    waves, head = both(data), bundled_head(kind, FEW)
    (plain,) = run(on_bundled_model(Turn(waves=waves)), folder / "plain-heads")
    (alone,) = run(on_bundled_model(Turn(waves=waves, speculative=head)), folder / kind)
    (memory,) = run(on_bundled_model(Turn(waves=waves, speculative=ours(FEW))), folder / "memory-alone")
    turn = Turn(waves=waves, speculative=head, settings={"SPECULANT_MEMORY": str(folder / f"{kind}.speculant")})
    (found,) = run(on_bundled_model(turn, scheduler=SCHEDULER), folder / f"{kind}-memory")
    assert found.outputs == plain.outputs
    assert found.mat > max(alone.mat, memory.mat)
    assert read_header(folder / f"{kind}.speculant")[0]["kind"] == "mix"


def test_sampling_with_a_head_and_a_memory_is_lossless(folder: Path, plain: list[Done], data: Path) -> None:
    """Answers sampled with drafts of both are distributed as those without, and greedy rows beside them undisturbed."""
    head = bundled_head("eagle", FEW)
    sampled = on_bundled_model(Turn(waves=[*drawn(2), *mixed(stories(data))], speculative=head), scheduler=SCHEDULER)
    (found,) = run(sampled, folder / "sampled-heads")
    first, second = plain[2].outputs, found.outputs[:COUNT]
    assert_same_distribution(first, second)
    assert found.outputs[COUNT::2] == plain[1].outputs[::2]


def test_lossy_acceptance_is_refused(folder: Path, data: Path) -> None:
    """VLLM ends with our message before it serves anything."""
    lossy = {**ours(DRAFTS), "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    job = on_bundled_model(Turn(waves=[stories(data)[0][:1]], speculative=lossy))
    with pytest.raises(RuntimeError, match="not lossless"):
        run(job, folder / "lossy")
