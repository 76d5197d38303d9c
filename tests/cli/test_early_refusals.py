"""What cannot work is refused before PyTorch or a model is imported, in a process of its own as users start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

CASES: Sequence[tuple[Sequence[str], str]] = [
    (["generate", "Once", "--model", "/missing/model"], "there is no model at /missing/model"),
    (["generate", "Once", "--model", "nomodel"], "names on the hub have the form owner/name"),
    (["generate", "Once", "--model", "bundeld"], "`bundled` is the model that comes with the package"),
    (["generate", "Once", "--model", "empty"], "the folder has no config.json"),
    (["generate", "Once", "--model", "file"], "is a file"),
    (["generate", "Once", "--model", "missing.gguf"], "the file does not exist"),
    (["generate", "Once", "--head", "./missing"], "there is no head at ./missing"),
    (["generate", "Once", "--draft-model", "./missing"], "there is no model at ./missing"),
    (["generate", "Once", "--base", "missing"], "there is no base missing"),
    (["generate", "Once", "--base", "file"], "file is not a Speculant memory file"),
    (["generate", "Once", "--dtype", "float33"], "there is no dtype 'float33'"),
    (["generate", "Once", "--draft-model", "bundled", "--draft-dtype", "float33"], "there is no dtype 'float33'"),
    (["generate", "--prompts", "turns.jsonl", "--batch", "2"], "prompt 1 has several turns"),
    (["generate", "Once", "--method", "mixx"], "Did you mean 'mix'?"),
    (["generate", ""], "the prompt is empty"),
    (["generate", "--prompts", "missing"], "cannot read the prompts in missing"),
    (["generate", "--prompts", "bad.jsonl"], "bad.jsonl:1: this is not JSON"),
    (["generate", "Once", "--json-schema", "missing"], "cannot read the JSON schema in missing"),
    (["chat", "--model", "/missing/model"], "there is no model at /missing/model"),
    (["check", "/missing/model"], "there is no model at /missing/model"),
    (["tune", "/missing/model"], "there is no model at /missing/model"),
    (["tune-layers", "/missing/model", "--prompts", "file"], "there is no model at /missing/model"),
    (["gguf", "/missing/model", "-o", "m.gguf"], "there is no model at /missing/model"),
    (["train", "eagle", "--data", "empty", "--out", "o", "--model", "/missing/model"], "there is no model at"),
    (["train", "eagle", "--data", "missing", "--out", "o"], "there is no file or folder missing"),
    (["train", "data", "--prompts", "missing", "--out", "o"], "cannot read the prompts in missing"),
    (["corpus", "build", "file", "--model", "/missing/model", "-o", "o"], "there is no tokenizer at /missing/model"),
    (["corpus", "build", "file", "--tokenizer", "./missing", "-o", "o"], "there is no tokenizer at ./missing"),
    (["replay", "missing.jsonl"], "cannot read missing.jsonl"),
    (["replay", "rows.jsonl", "--method", "mixx"], "Did you mean 'mix'?"),
    (["replay", "rows.jsonl", "--tokenizer", "./missing"], "there is no tokenizer at ./missing"),
    (["replay", "rows.jsonl", "--base", "missing"], "there is no base missing"),
    (["replay", "rows.jsonl", "--corpus", "missing"], "cannot read missing"),
    (["bench", "--out", "o", "--tasks", "missing.jsonl"], "cannot read missing.jsonl"),
    (["bench", "--out", "o", "--tasks", "bad.jsonl"], "bad.jsonl holds no prompts"),
    (["bench", "--out", "o", "--forced", "missing.jsonl"], "cannot read missing.jsonl"),
    (["bench", "--out", "o", "--forced", "bad.jsonl"], "bad holds no recorded output"),
    (["bench", "--out", "o", "--forced", "rows.jsonl", "--config", "missing"], "cannot read missing"),
    (["bench", "--out", "o", "--forced", "rows.jsonl", "--methods", "mixx"], "Did you mean 'mix'?"),
    (["bench", "--out", "o", "--forced", "rows.jsonl", "--methods", "hf:mix"], "Of transformers' own there are"),
    (["bench", "--out", "o", "--forced", "rows.jsonl", "--methods", "llamacpp"], "pip install 'speculant[llamacpp]'"),
    (["bench", "--out", "o", "--forced", "rows.jsonl", "--dtype", "fp32"], "there is no dtype 'fp32'"),
    (["bench", "--out", "o", "--forced", "rows.jsonl", "--inflate", "x"], "--inflate takes"),
    (["bench", "/missing/model", "--out", "o", "--growth"], "there is no model at /missing/model"),
    (["serve", "/missing/model"], "there is no model at /missing/model"),
    (["serve", "--model", "bundled"], "The model is named without one: `speculant serve MODEL`"),
    (["serve", "--memory-limit", "256"], "must be at least 1MiB, not 256; a number without a unit is bytes"),
    (["serve", "--method", "mixx"], "Did you mean 'mix'?"),
    (["serve", "--port", "0", "--memory", "file", "--memory-strict"], "file"),
    (["serve", "--port", "0", "--memory", "m", "--method", "lookup"], "'lookup' keeps no memory"),
    (["serve", "--port", "0", "--memory", "m", "--method", "aded-paper"], "name the file by --corpus instead"),
    (["serve", "--port", "0", "--corpus", "missing", "--method", "aded-paper"], "there is no memory file missing"),
    (["generate", "Tom", "--memory", "missing", "--method", "aded-paper"], "there is no memory file missing"),
    (["serve", "--port", "0", "--corpus", "missing"], "there is no memory file missing"),
    (
        ["serve", "--port", "0", "--share", "redis://localhost"],
        "redis is not installed",
    ),
    (["compare", "empty", "missing.json"], "cannot read empty/result.json"),
    (["bench", "--out", "other", "--tasks", "qa"], "holds a run with other settings (memory_limit_mb, seed, trials)"),
    (["train", "eagle", "--data", "file", "--out", "o", "--loss", "kll"], "Did you mean kl?"),
    (["train", "eagle", "--data", "file", "--out", "other"], "other holds other files"),
    (["train", "eagle", "--data", "file", "--out", "done", "--resume"], "To train it further, name it by --init"),
    (["tune-layers", "--prompts", "file"], "optuna is not installed, which the search"),
    (["gguf", "-o", "m.gguf"], "gguf is not installed, which writing GGUF"),
    (["gguf", "-o", "m.gguf", "--format", "q9"], "weights are written as"),
    (["replay", "rows.jsonl", "--step-cost", "file"], "file holds no step cost"),
]
PROCESS = """
import contextlib, importlib.util, io, json, sys
from speculant.cli.main import main

class Forbidden:
    @staticmethod
    def find_spec(name, *_):
        if name in ("torch", "transformers", "numba"):
            raise RuntimeError(f"{name} was imported")

def find_spec(name, *others):
    return None if name in ("redis", "optuna", "gguf") else found_spec(name, *others)

found_spec, importlib.util.find_spec = importlib.util.find_spec, find_spec
sys.meta_path.insert(0, Forbidden)
found = []
for argv in json.load(sys.stdin):
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        try:
            code = main(argv)
        except RuntimeError as error:
            code = str(error)
    found.append([code, err.getvalue()])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> Sequence[tuple[int | str, str]]:
    """Return exit code, or what was imported, and messages of each case."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "empty").mkdir()
    (folder / "file").write_text("text")
    (folder / "other").mkdir()
    (folder / "done").mkdir()
    (folder / "done" / "training.json").write_text("{}")
    settings = {"trials": 99, "model": "bundled", "forced": False, "random_weights": False, "temperatures": [0.0]}
    (folder / "other" / "rows.jsonl").write_text(json.dumps(settings | {"batches": [1], "seed": 1}) + "\n")
    (folder / "rows.jsonl").write_text('{"prompt_ids": [1, 2], "output_ids": [3]}\n')
    (folder / "turns.jsonl").write_text('{"turns": ["Once", "And then?"]}\n')
    (folder / "bad.jsonl").write_text("{no json\n")
    done = subprocess.run(
        [sys.executable, "-c", PROCESS],
        input=json.dumps([argv for argv, _ in CASES]),
        capture_output=True,
        text=True,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("SPECULANT_")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Sequence[tuple[int | str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: " ".join(CASES[case][0][:3]))
def test_before_anything_is_imported(case: int, refusals: Sequence[tuple[int | str, str]]) -> None:
    """Guards the seconds that importing takes, and minutes of work that then fail."""
    code, err = refusals[case]
    assert code in (1, 2)
    assert CASES[case][1] in err
    assert "Traceback" not in err
