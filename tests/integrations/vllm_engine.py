"""Drafts inside vLLM itself; run by `make test-vllm`, in an environment that has it.

Each job is a process of vLLM. Jobs are shared by the tests that look at them. Texts and recordings are read from
$SPECULANT_DATA.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculant.bench.vllm.jobs import RECORDING_PROPOSER, Ask, Done, Job, ours, run
from speculant.bench.vllm.workloads import edits, samples, stories, total_variation
from speculant.memory.file import read_header

DRAFTS = 8
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS}
SUFFIX = {"method": "suffix", "num_speculative_tokens": DRAFTS}
COUNT, TOKENS, TEMPERATURE = 1500, 3, 0.7
Runner = Callable[[str, Any], Done]


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


@pytest.fixture(scope="module")
def decoded(folder: Path, data: Path) -> Runner:
    """Return the result of a workload, "stories" or "edits", with a speculative configuration; each is run once."""
    jobs = {"stories": stories(data), "edits": edits(data, folder / "replay")}

    @cache
    def once(name: str, speculative: str) -> Done:
        return run(replace(jobs[name], speculative=json.loads(speculative)), folder / name)

    return lambda name, speculative: once(name, json.dumps(speculative))


@pytest.mark.parametrize("workload", ["stories", "edits"])
def test_greedy_output_is_identical(decoded: Runner, workload: str) -> None:
    """50 held-out prompts and the edit conversations: token for token what vLLM generates without drafts.

    The batch holds 16 rows at most and requests are of different lengths, so they join and leave.
    """
    plain, drafted = decoded(workload, None), decoded(workload, ours(DRAFTS))
    assert drafted.outputs == plain.outputs
    assert drafted.accepted > 0
    assert max(drafted.rows) == (16 if workload == "stories" else 8)


@pytest.mark.parametrize("workload", ["stories", "edits"])
@pytest.mark.parametrize("other", [NGRAM, SUFFIX], ids=["ngram", "suffix"])
def test_more_tokens_a_pass_than_vllms_own(decoded: Runner, workload: str, other: dict[str, Any]) -> None:
    """The same requests with vLLM's own drafters, at their defaults."""
    assert decoded(workload, ours(DRAFTS)).mat > decoded(workload, other).mat


def test_tensor_parallel_ranks(folder: Path, data: Path) -> None:
    """Two ranks decode as one does and draft the same in every step; one of them saves the memory."""
    whole = stories(data)
    job = replace(whole, waves=[whole.waves[0][:12]], rows=4)
    plain = run(job, folder / "one")
    memory, drafts = folder / "memory" / "m.speculant", folder / "drafts"
    drafts.mkdir()
    two = replace(job, ranks=2, speculative=ours(DRAFTS, RECORDING_PROPOSER))
    environment = {"SPECULANT_MEMORY": str(memory), "DRAFTS_FOLDER": str(drafts)}
    done = run(two, folder / "two", environment=environment)
    assert done.outputs == plain.outputs
    ranks = [path.read_text() for path in sorted(drafts.iterdir())]
    assert len(ranks) == 2
    assert ranks[0] == ranks[1]
    assert len(ranks[0].splitlines()) > 100
    assert [path.name for path in memory.parent.iterdir()] == [memory.name]
    assert read_header(memory)[0]["kind"] == "mix"


def test_sampling_is_lossless(folder: Path) -> None:
    """Answers sampled with drafts are distributed as those without, as far as so many samples can tell."""
    plain, drafted = (
        run(
            replace(
                samples(COUNT, tokens=TOKENS, temperature=TEMPERATURE, first_seed=i * COUNT), speculative=speculative
            ),
            folder / "sampling",
        )
        for i, speculative in enumerate([None, ours(DRAFTS)])
    )
    assert drafted.drafted > COUNT
    random, pooled = np.random.default_rng(0), [*plain.outputs, *drafted.outputs]
    for length in range(1, TOKENS + 1):
        found = total_variation(plain.outputs, drafted.outputs, length)
        by_chance = []
        for _ in range(200):
            order = random.permutation(2 * COUNT)
            halves = [[pooled[i] for i in part] for part in (order[:COUNT], order[COUNT:])]
            by_chance.append(total_variation(*halves, length))
        assert found <= max(by_chance), (length, found, max(by_chance))


def test_greedy_beside_sampled_requests(folder: Path, data: Path) -> None:
    """A greedy request is not disturbed by sampled ones in its batch."""
    whole = stories(data)
    greedy = [replace(ask, most=60) for ask in whole.waves[0][:8]]
    mixed: list[Ask] = []
    for i, ask in enumerate(greedy):
        mixed += [ask, replace(ask, temperature=0.8, top_p=0.9, seed=i)]
    job = replace(whole, waves=[mixed])
    plain, drafted = (run(replace(job, speculative=each), folder / "mixed") for each in (None, ours(DRAFTS)))
    assert drafted.outputs[::2] == plain.outputs[::2]


def test_lossy_acceptance_is_refused(folder: Path, data: Path) -> None:
    """VLLM ends with our message before it serves anything."""
    lossy = {**ours(DRAFTS), "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    whole = stories(data)
    job = Job(model=whole.model, waves=[whole.waves[0][:1]], speculative=lossy)
    with pytest.raises(RuntimeError, match="not lossless"):
        run(job, folder / "lossy")
