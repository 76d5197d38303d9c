"""The options of `speculant bench`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from speculant.options import kinds, option
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions

TRIALS, FORCED_TRIALS = 3, 1
NEW_TOKENS = 256

_output = partial(option.option, panel="Output")
_decoded = partial(option.option, panel="What is decoded")
_how = partial(option.option, panel="How")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to measure, and how.

    Attributes:
        out: folder of the results.
        restart: whether to discard the results of an earlier run there.
        tasks, forced: what to decode: prompts of tasks, or recorded outputs.
        tokenizer: tokenizer of the recordings.
        config: config of a model with random weights.
        data: folder of the tasks' prompts.
        limit: maximum items of each task.
        growth: whether to measure cost by length.
        max_new_tokens: maximum tokens per answer.
        methods: comma-separated names; None for the default.
        temperature: temperatures.
        seed: seed of sampling; None for 0.
        batch: maximum numbers of requests per pass.
        trials: number of repetitions; None for the default.
        inflate: layers and MLP width to which the model is padded.
        loading, drafting: option groups for loading the model and making drafts.
    """

    out: str = _output(option.REQUIRED, "folder for the results", kinds.name(metavar="DIR"))
    restart: bool = _output(False, "discard what an earlier run left in DIR", kinds.FLAG)
    tasks: str | None = _decoded(
        None, "prompts: spec-bench, humaneval, gsm8k, mbpp, or .jsonl files", kinds.name(metavar="NAME,...")
    )
    forced: tuple[str, ...] = _decoded(
        (), "follow these recorded outputs (token ids); one or more files", kinds.name(metavar="TRACES"), several=True
    )
    tokenizer: str | None = _decoded(
        None,
        "with --forced: the recordings' tokenizer, for --base and for rows that hold text",
        kinds.name(metavar="PATH|ID"),
    )
    config: str | None = _decoded(None, "with --forced or --growth: run random weights of this config", kinds.FILE_NAME)
    data: str | None = _decoded(None, "folder of prompts; default: $SPECULANT_DATA/prompts", kinds.name(metavar="DIR"))
    limit: int | None = _decoded(None, "only the first N items of each task", kinds.whole(1))
    growth: bool = _decoded(False, "also measure, or only, how cost grows up to 8192 tokens and 256 nodes", kinds.FLAG)
    max_new_tokens: int | None = _decoded(
        None, f"maximum tokens per answer to --tasks; default: {NEW_TOKENS}", kinds.whole(1)
    )
    methods: str | None = _how(
        None,
        "from `speculant methods`, hf:generate, hf:prompt-lookup, hf:assisted, llamacpp; default: none, mix and the "
        "head's",
        kinds.name(metavar="NAME,..."),
    )
    temperature: tuple[float, ...] = _how(
        (0.0,), "one or more temperatures; default: 0, greedy", kinds.comma_separated(kinds.TEMPERATURE)
    )
    seed: int | None = _how(None, "sampling seed; default: 0", kinds.whole(0))
    batch: tuple[int, ...] = _how(
        (1,), "batch sizes, one or more such as 1,4,8; default: 1", kinds.comma_separated(kinds.whole(1))
    )
    trials: int | None = _how(
        None, f"number of timed runs; default: {TRIALS}, in forced runs {FORCED_TRIALS}", kinds.whole(1)
    )
    inflate: str | None = _how(
        None,
        "pad the model to this many layers and this MLP width, without changing its outputs",
        kinds.name(metavar="LAYERS[xMLP]"),
    )
    loading: ModelOptions = field(default_factory=ModelOptions)
    drafting: DraftingOptions = field(default_factory=DraftingOptions)
