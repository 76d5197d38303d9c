"""Settings of integrations: from the environment and from files; unknown names are errors."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from bases import saved_base
from speculant.core.errors import FileError, SpeculantError, UnknownMethodError, UnsupportedError, UsageError
from speculant.integrations.settings import IntegrationSettings, read_settings


def test_defaults() -> None:
    """Without settings `mix` drafts and keeps nothing; other rooms' variables are none of ours."""
    assert read_settings({"HOME": "/", "SPECULANT_DATA": "x"}) == IntegrationSettings()


def test_the_environment() -> None:
    """Every setting can be given as a variable; an empty one is not given."""
    found = read_settings(
        {
            "SPECULANT_METHOD": "suffix",
            "SPECULANT_MEMORY": "/m/a.speculant",
            "SPECULANT_CORPUS": "c.speculant",
            "SPECULANT_BASE": os.pathsep.join(["a.base", "b.base"]),
            "SPECULANT_MEMORY_LIMIT": "1GB",
            "SPECULANT_SAVE_EVERY": "60",
            "SPECULANT_DRAFTED_PER_STEP": "64",
            "SPECULANT_LEAST_PROBABILITY": "0.05",
            "SPECULANT_SETTINGS": '{"depth": 12}',
            "SPECULANT_ALLOW_UNTESTED": "1",
            "SPECULANT_CONFIG": "",
        }
    )
    assert found == IntegrationSettings(
        method="suffix",
        memory=Path("/m/a.speculant"),
        corpus=Path("c.speculant"),
        base=("a.base", "b.base"),
        memory_limit=10**9,
        save_seconds=60,
        drafted_per_step=64,
        min_probability=0.05,
        settings={"depth": 12},
        allow_untested=True,
    )
    assert read_settings({"SPECULANT_METHOD": ""}) == IntegrationSettings()


@pytest.mark.parametrize("method", ["mix", "lookup"])
def test_bases_of_the_folder_are_used_when_asked_for(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With "auto" those of the tokenizer, by methods that take any; else none, whatever the folder holds."""
    monkeypatch.setenv("SPECULANT_BASES", str(tmp_path))
    texts = [np.arange(200, dtype=np.int32) % 10]
    saved_base(tmp_path / "fitting.speculant", texts, vocabulary=10, tokenizer="t")
    saved_base(tmp_path / "other.speculant", texts, vocabulary=10, tokenizer="other")
    asked = {"SPECULANT_METHOD": method, "SPECULANT_BASE": "auto"}
    drafter = read_settings(asked).build(vocabulary=10, tokenizer="t")
    assert [base.path.stem for base in getattr(drafter, "bases", ())] == ["fitting"] * (method == "mix")
    drafter = read_settings({"SPECULANT_METHOD": method}).build(vocabulary=10, tokenizer="t")
    assert not getattr(drafter, "bases", ())


@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_a_file(tmp_path: Path, suffix: str) -> None:
    """A file gives settings, and the environment overrides them."""
    if suffix == ".toml" and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 reads no .toml files")
    path = tmp_path / f"settings{suffix}"
    json_text = json.dumps({"method": "aded", "memory_limit": "64MB", "settings": {"row_memory": 4}})
    toml_text = 'method = "aded"\nmemory_limit = "64MB"\n[settings]\nrow_memory = 4\n'
    path.write_text(json_text if suffix == ".json" else toml_text)
    found = read_settings({"SPECULANT_CONFIG": str(path), "SPECULANT_MEMORY_LIMIT": "32MB"})
    assert found == IntegrationSettings(method="aded", memory_limit=32 * 10**6, settings={"row_memory": 4})
    assert found.build(vocabulary=10, tokenizer="t").settings.row_memory == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("environment", "error", "says"),
    [
        ({"SPECULANT_METHDO": "mix"}, UsageError, "Did you mean SPECULANT_METHOD"),
        ({"SPECULANT_METHOD": "mixx"}, UnknownMethodError, "Did you mean 'mix'"),
        ({"SPECULANT_METHOD": "recycling"}, UnsupportedError, "tokens only. Use none, mix"),
        ({"SPECULANT_METHOD": "eagle"}, UnsupportedError, "hidden states"),
        ({"SPECULANT_METHOD": "lookup", "SPECULANT_MEMORY": "x"}, UnsupportedError, "keeps no memory"),
        ({"SPECULANT_METHOD": "lookup", "SPECULANT_CORPUS": "x"}, UnsupportedError, "keeps no memory"),
        ({"SPECULANT_METHOD": "aded-paper", "SPECULANT_MEMORY": "x"}, UnsupportedError, "name the file by corpus"),
        ({"SPECULANT_MEMORY_LIMIT": "much"}, UsageError, "MEMORY_LIMIT"),
        ({"SPECULANT_SAVE_EVERY": "0"}, UsageError, "SAVE_EVERY must be above 0"),
        ({"SPECULANT_SAVE_EVERY": "soon"}, UsageError, "SAVE_EVERY"),
        ({"SPECULANT_DRAFTED_PER_STEP": "1.5"}, UsageError, "DRAFTED_PER_STEP"),
        ({"SPECULANT_LEAST_PROBABILITY": "2"}, UsageError, "LEAST_PROBABILITY"),
        ({"SPECULANT_SETTINGS": "[1]"}, UsageError, "SETTINGS must be an object"),
        ({"SPECULANT_ALLOW_UNTESTED": "perhaps"}, UsageError, "ALLOW_UNTESTED"),
        ({"SPECULANT_CONFIG": "/nowhere/s.json"}, FileError, "cannot read"),
        ({"SPECULANT_CONFIG": "/nowhere/s.yaml"}, FileError, "rename"),
    ],
)
def test_mistakes(environment: dict[str, str], error: type[SpeculantError], says: str) -> None:
    """Each names what is wrong and the way out."""
    with pytest.raises(error, match=says):
        read_settings(environment)


@pytest.mark.parametrize("content", ['{"memry": "x"}', "[]", "{", '{"memory": 1}'])
def test_mistakes_in_files(tmp_path: Path, content: str) -> None:
    """An unknown name, another value than an object, no JSON, a path that is none."""
    path = tmp_path / "s.json"
    path.write_text(content)
    with pytest.raises(SpeculantError):
        read_settings({"SPECULANT_CONFIG": str(path)})


def test_settings_of_the_drafter() -> None:
    """The method's own settings are checked by the method."""
    with pytest.raises(UsageError, match="Did you mean 'top_k'"):
        IntegrationSettings(settings={"topk": 3}).build(vocabulary=10, tokenizer="t")
