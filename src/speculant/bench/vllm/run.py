"""The process of one run of vLLM: `python -m speculant.bench.vllm.run JOB.json DONE.json`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from speculant.bench.vllm.jobs import Ask, Done, Job, read_job


def main(asked: Path, done: Path) -> None:
    """Run the job in a file and write what came of it to another."""
    done.write_text(json.dumps(asdict(run_job(read_job(asked)))))


def run_job(job: Job) -> Done:
    """Run a job in this process."""
    import vllm
    from vllm import LLM

    if job.replay:
        from vllm.model_executor.models.registry import ModelRegistry

        from speculant.bench.vllm.replay_model import ARCHITECTURE, replay_model_class

        ModelRegistry.register_model(ARCHITECTURE, replay_model_class())
    engine = LLM(
        model=job.model,
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=job.rows,
        max_model_len=job.longest,
        max_num_batched_tokens=job.longest
        * (4 if job.replay else 2),  # replayed prompts are found by their whole text,
        tensor_parallel_size=job.ranks,
        enable_prefix_caching=False,
        disable_log_stats=False,
        seed=0,
        skip_tokenizer_init=job.replay,
        load_format="dummy" if job.replay else "auto",
        speculative_config=job.speculative,
    )
    if job.repair:
        from speculant.integrations.vllm_cpu import repair_expansion

        repair_expansion()
    meter = _Meter()
    if job.speculative is not None and job.ranks == 1:
        meter.watch(engine)
    outputs: list[list[int]] = []
    began = time.perf_counter()
    for wave in job.waves:
        prompts: Any = [{"prompt_token_ids": ask.prompt} for ask in wave]
        results = engine.generate(prompts, [_sampling(ask) for ask in wave], use_tqdm=False)
        outputs += [list(result.outputs[0].token_ids) for result in results]
    seconds = time.perf_counter() - began
    counts = {metric.name: getattr(metric, "value", 0) for metric in engine.get_metrics()}
    return Done(
        outputs=outputs,
        passes=meter.passes,
        drafted=int(counts.get("vllm:spec_decode_num_draft_tokens", 0)),
        accepted=int(counts.get("vllm:spec_decode_num_accepted_tokens", 0)),
        propose_us=meter.microseconds,
        rows=meter.rows,
        seconds=seconds,
        version=str(vllm.__version__),
    )


def _sampling(ask: Ask) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=ask.temperature, top_p=ask.top_p, max_tokens=ask.most, seed=ask.seed, detokenize=False
    )


class _Meter:
    """Counts the rows of each step and times the drafter, whichever it is."""

    def __init__(self) -> None:
        self.passes = 0
        self.microseconds: list[float] = []
        self.rows: list[int] = []

    def watch(self, engine: Any) -> None:
        """Put itself in front of the drafter of an engine in this process."""
        executor = engine.llm_engine.engine_core.engine_core.model_executor
        drafter = executor.driver_worker.worker.model_runner.drafter
        propose = drafter.propose

        def timed(*args: Any, **kwargs: Any) -> Any:
            sampled = next(each for each in args if isinstance(each, list))
            rows = sum(bool(tokens) for tokens in sampled)
            began = time.perf_counter()
            found = propose(*args, **kwargs)
            self.microseconds.append((time.perf_counter() - began) * 1e6)
            self.rows.append(rows)
            self.passes += rows
            return found

        drafter.propose = timed


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
