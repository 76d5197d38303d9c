"""The process of one run of vLLM: `python -m vllm_runs.run JOB.json DONE.json`."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from speculant.integrations.vllm_checks import HEADS
from vllm_runs.jobs import Ask, Done, Job, Turn, read_job


def main(asked: Path, done: Path) -> None:
    """Run the job in a file and write its results to another."""
    done.write_text(json.dumps([asdict(each) for each in run_job(read_job(asked))]))


def run_job(job: Job) -> list[Done]:
    """Run a job in this process."""
    from vllm import LLM

    if job.replay:
        from vllm.model_executor.models.registry import ModelRegistry

        from vllm_runs.replay_model import ARCHITECTURE, replay_model_class

        ModelRegistry.register_model(ARCHITECTURE, replay_model_class())
    os.environ.update(job.turns[0].settings)
    engine = LLM(
        model=job.model,
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=job.rows,
        max_model_len=job.longest,
        max_num_batched_tokens=job.longest * (4 if job.replay else 2),  # replayed prompts are found by their whole text
        tensor_parallel_size=job.ranks,
        scheduler_cls=job.scheduler or None,
        enable_prefix_caching=False,
        disable_log_stats=False,
        seed=0,
        skip_tokenizer_init=job.replay,
        load_format="dummy" if job.replay else "auto",
        speculative_config=job.turns[0].speculative,
    )
    heads = any((turn.speculative or {}).get("method") in HEADS for turn in job.turns)
    return [
        _decode(engine, turn, watch=job.ranks == 1 and not heads, first=not number)
        for number, turn in enumerate(job.turns)
    ]


def _decode(engine: Any, turn: Turn, *, watch: bool, first: bool) -> Done:
    import vllm

    meter, before = _Meter(), _counts(engine)
    if turn.speculative is not None and watch:
        runner = engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        if not first:
            runner.drafter = _drafter(runner.vllm_config, turn)
        meter.watch(runner.drafter)
    if not watch:
        meter.watch_scheduler(engine.llm_engine.engine_core)
    outputs: list[list[int]] = []
    began = time.perf_counter()
    for wave in turn.waves:
        prompts: Any = [{"prompt_token_ids": ask.prompt} for ask in wave]
        results = engine.generate(prompts, [_sampling(ask) for ask in wave], use_tqdm=False)
        outputs += [list(result.outputs[0].token_ids) for result in results]
    seconds = time.perf_counter() - began
    after = _counts(engine)
    return Done(
        outputs=outputs,
        passes=sum(meter.rows) if watch else after[2] - before[2] + len(outputs) if after[2] else 0,
        drafted=after[0] - before[0],
        accepted=after[1] - before[1],
        propose_us=meter.microseconds,
        rows=meter.rows,
        seconds=seconds,
        version=str(vllm.__version__),
    )


def _drafter(vllm_config: Any, turn: Turn) -> Any:
    """Return what vLLM would build for a turn; its runner asks the configuration in each step which method it is."""
    speculative = vllm_config.speculative_config
    defaults = {
        "prompt_lookup_min": 5,
        "prompt_lookup_max": 5,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
    }
    for name, value in {**defaults, **(turn.speculative or {})}.items():
        setattr(speculative, name, value)
    os.environ.update(turn.settings)
    try:
        if speculative.method == "ngram":
            from vllm.v1.spec_decode.ngram_proposer import NgramProposer

            return NgramProposer(vllm_config)
        if speculative.method == "suffix":
            from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

            return SuffixDecodingProposer(vllm_config)
        from vllm.v1.spec_decode.custom_class_proposer import create_custom_proposer

        return create_custom_proposer(vllm_config)
    finally:
        for name in turn.settings:
            del os.environ[name]


def _sampling(ask: Ask) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=ask.temperature, top_p=ask.top_p, max_tokens=ask.maximum, seed=ask.seed, detokenize=False
    )


def _counts(engine: Any) -> tuple[int, int, int]:
    """Return how many tokens were drafted and accepted so far, and how many drafts there were."""
    counts = {metric.name: getattr(metric, "value", 0) for metric in engine.get_metrics()}
    names = ("draft_tokens", "accepted_tokens", "drafts")
    drafted, accepted, drafts = (int(counts.get(f"vllm:spec_decode_num_{name}", 0)) for name in names)
    return drafted, accepted, drafts


class _Meter:
    """Counts the rows of each step and times a drafter, whichever it is."""

    def __init__(self) -> None:
        self.microseconds: list[float] = []
        self.rows: list[int] = []

    def watch(self, drafter: Any) -> None:
        """Put itself in front of a drafter."""
        propose = drafter.propose

        def timed(*args: Any, **kwargs: Any) -> Any:
            sampled = next(each for each in args if isinstance(each, list))
            rows = sum(bool(tokens) for tokens in sampled)
            began = time.perf_counter()
            found = propose(*args, **kwargs)
            self.microseconds.append((time.perf_counter() - began) * 1e6)
            self.rows.append(rows)
            return found

        drafter.propose = timed

    def watch_scheduler(self, core: Any) -> None:
        """Put itself in front of a uniting scheduler; others, and those of other processes, are left alone."""
        scheduler: Any = getattr(getattr(core, "engine_core", None), "scheduler", None)
        unite = getattr(scheduler, "unite", None)
        if unite is None:
            return

        def timed(drafts: Any) -> Any:
            began = time.perf_counter()
            found = unite(drafts)
            self.microseconds.append((time.perf_counter() - began) * 1e6)
            self.rows.append(len(drafts.req_ids))
            return found

        scheduler.unite = timed


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
