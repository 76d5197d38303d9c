"""lm-evaluation-harness, unchanged, against the server of the bundled model: scores are those of the model itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from servers import MODEL, serving
from speculant.api.loading import bundled_model

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
ROWS = [
    {"question": "Once upon a time, there was a little", "options": ["girl named Lily.", "of the of."], "answer": 0},
    {"question": "Tom and his mom went to the", "options": ["because was and", "park to play."], "answer": 1},
    {"question": "The cat was very happy and said,", "options": ['"Thank you!"', "table green up"], "answer": 0},
]
TASK = """\
task: stories
dataset_path: json
dataset_kwargs:
  data_files: {{test: "{file}"}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{options}}}}"
doc_to_target: answer
metric_list:
  - metric: acc
"""


@pytest.fixture(scope="module")
def bundled() -> Any:
    """Return the bundled model."""
    return AutoModelForCausalLM.from_pretrained(bundled_model(), dtype=torch.float32)


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the package, which keeps what it caches in a folder of the test."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    return pytest.importorskip("lm_eval")


def options(address: str, **more: Any) -> dict[str, Any]:
    """Return the arguments of the harness' model for OpenAI's completions."""
    return {
        "model": MODEL,
        "base_url": f"{address}/v1/completions",
        "tokenizer": str(bundled_model()),
        "tokenizer_backend": "huggingface",
        "num_concurrent": 1,
        "max_length": 512,
    } | more


def sums(model: Any, tokenizer: Any, context: str, text: str, *, special: bool = False) -> tuple[float, bool]:
    """Return the log-probability of a text behind a context, and whether it is what greedy decoding says."""
    whole, before = (tokenizer(each, add_special_tokens=special)["input_ids"] for each in (context + text, context))
    begun = len(before)
    with torch.no_grad():
        rows = model(torch.tensor([whole])).logits[0].float().log_softmax(-1)[begun - 1 : -1]
    following = torch.tensor(whole[begun:])
    return float(rows.gather(1, following[:, None]).sum()), bool((rows.argmax(-1) == following).all())


@pytest.mark.parametrize("special", [True, False])
def test_log_likelihoods(bundled: Any, tokenizer: Any, harness: Any, special: bool) -> None:
    """Guards `loglikelihood`: sums over echoed tokens, and whether they are greedy; batched and one by one."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    pairs = [(each["question"], " " + text) for each in ROWS for text in each["options"]]  # type: ignore[attr-defined]
    with serving(bundled, tokenizer) as (_, address):
        client = LocalCompletionsAPI(**options(address, add_bos_token=special, batch_size=2 if special else 1))
        found = client.loglikelihood([Instance("loglikelihood", {}, pair, place) for place, pair in enumerate(pairs)])
    for (value, greedy), pair in zip(found, pairs, strict=True):
        expected, most_probable = sums(bundled, tokenizer, *pair, special=special)
        assert value == pytest.approx(expected, abs=1e-3)
        assert greedy == most_probable
    assert min(abs(value) for value, _ in found) > 0.1


def test_a_whole_evaluation(bundled: Any, tokenizer: Any, harness: Any, tmp_path: Path) -> None:
    """Guards `simple_evaluate` with a task of multiple choice: the accuracy is that of the model's own sums."""
    from lm_eval.tasks import TaskManager

    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    (tmp_path / "stories.yaml").write_text(TASK.format(file=tmp_path / "rows.jsonl"))
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    with serving(bundled, tokenizer) as (_, address):
        found = harness.simple_evaluate(
            model="local-completions",
            model_args=options(address),
            tasks=["stories"],
            task_manager=tasks,
            bootstrap_iters=0,
            log_samples=True,
        )
    right = 0
    for each in ROWS:
        values = [sums(bundled, tokenizer, each["question"], " " + text)[0] for text in each["options"]]  # type: ignore[arg-type, attr-defined]
        right += values.index(max(values)) == each["answer"]
    assert found["results"]["stories"]["acc,none"] == pytest.approx(right / len(ROWS))
    assert os.environ["HF_HOME"] == str(tmp_path)
