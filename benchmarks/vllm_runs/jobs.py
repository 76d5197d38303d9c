"""What a run of vLLM is asked to do, and its results, exchanged as JSON between processes.

Each run is a process of its own: vLLM holds its model, threads and process groups until the process ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from speculant.core.stats import compute_mat

PROPOSER = "speculant.integrations.vllm.Proposer"
RECORDING_PROPOSER = "vllm_runs.recording.RecordingProposer"
SCHEDULER = "speculant.integrations.vllm_scheduler.UnitingScheduler"
RECORDING_SCHEDULER = "vllm_runs.recording_scheduler.RecordingScheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: its prompt's ids, how many tokens may follow, and how they are sampled."""

    prompt: list[int]
    maximum: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Requests that one engine decodes with one drafter, which begins with nothing learned.

    Attributes:
        waves: requests that are submitted together; a wave begins when the one before has ended.
        speculative: vLLM's speculative_config; None for plain decoding.
        settings: environment variables of the drafter.
    """

    waves: list[list[Ask]]
    speculative: dict[str, Any] | None = None
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run: one engine, whose drafter is replaced from turn to turn, so that all have the same conditions.

    Plain turns and others need engines of their own. All turns draft as many tokens.

    Attributes:
        model: a checkpoint's folder, or one that `replay_model.write_replay_model` wrote.
        turns: what is decoded, in order.
        rows: maximum requests in a batch.
        ranks: of tensor parallelism; with several there is one turn, whose drafter cannot be watched.
        scheduler: the class of vLLM's scheduler, with which there is one turn; "" for vLLM's own.
        replay: whether the model replays recordings.
        longest: the model's length.
    """

    model: str
    turns: list[Turn]
    rows: int = 16
    ranks: int = 1
    scheduler: str = ""
    replay: bool = False
    longest: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of a turn.

    Attributes:
        outputs: of each request, in order of the waves, the ids including an end token.
        passes: target passes of all requests, the prompt's last included; without drafts, 0. With a head those that
            verified drafts, and one for each prompt.
        drafted, accepted: tokens, as vLLM counts them.
        propose_us: for each step, the microseconds that proposing took.
        rows: for each step, the rows that drafts were asked for.
        seconds: of all waves.
        version: of vLLM.
    """

    outputs: list[list[int]]
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    propose_us: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    seconds: float = 0.0
    version: str = ""

    @property
    def mat(self) -> float:
        """Mean tokens per target pass; the prompt's pass and its token belong to no round."""
        tokens, requests = sum(map(len, self.outputs)), len(self.outputs)
        return compute_mat(tokens, self.passes - requests, texts=requests) if self.passes > requests else 0.0


def ours(drafts: int = 8, proposer: str = PROPOSER) -> dict[str, Any]:
    """Return vLLM's speculative_config that selects this project's drafts."""
    return {"method": "custom_class", "model": proposer, "num_speculative_tokens": drafts}


def run(job: Job, folder: Path, *, environment: Mapping[str, str] | None = None) -> list[Done]:
    """Run a job in a process of its own, whose output is kept in the folder; return the results of its turns.

    Raises:
        RuntimeError: it failed; the message holds the end of its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked, done, log = folder / "job.json", folder / "done.json", folder / "log.txt"
    asked.write_text(json.dumps(asdict(job)))
    done.unlink(missing_ok=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPECULANT_")}
    own |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])),
        **(environment or {}),
    }
    with log.open("w") as output:
        command = [sys.executable, "-m", "vllm_runs.run", str(asked), str(done)]
        code = subprocess.run(command, env=own, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    if code or not done.exists():
        raise RuntimeError(f"vLLM ended with code {code}; the end of {log}:\n{log.read_text()[-4000:]}")
    return [Done(**each) for each in json.loads(done.read_text())]


def read_job(path: Path) -> Job:
    """Return a job that `run` wrote."""
    content = json.loads(path.read_text())
    turns = [
        Turn(**{**turn, "waves": [[Ask(**ask) for ask in wave] for wave in turn["waves"]]})
        for turn in content.pop("turns")
    ]
    return Job(**content, turns=turns)
