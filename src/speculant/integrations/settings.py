"""Settings of drafts inside another engine, from a file and the environment: such engines pass nothing on to us.

`SPECULANT_CONFIG` names a .toml or .json file; every other setting `NAME` is also read from `SPECULANT_NAME`, which
takes precedence. A name that is not a setting is an error: a misspelt one would be ignored for as long as the server
runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from speculant.api.bases import open_bases
from speculant.api.options import check_bytes, check_number
from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Drafter
from speculant.core.environment import PREFIX, check_variables, nearest
from speculant.core.errors import FileError, UnsupportedError, UsageError
from speculant.options.drafting import AUTOMATIC
from speculant.registry import METHODS, Method, find_method
from speculant.sharing.address import parse_address
from speculant.sharing.opening import check_sharing, open_sharing

CONFIG = "SPECULANT_CONFIG"
DRAFTED_PER_STEP = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrationSettings:
    """How to draft inside an engine.

    Attributes:
        method: a drafting method that learns from text alone.
        memory: a memory file to begin with, if it exists, and to save to; None to forget everything at the end.
        corpus: a memory file to begin with where there is no `memory` file yet; never written.
        base: frozen bases under the memory, several separated as in PATH; "auto" for those of the user's folder that
            fit. They are not found unasked: ranks on several machines must draft the same tokens, and their folders
            may differ.
        memory_limit: bytes that the drafter's memory may take.
        save_every: seconds between saves in the background; it is also saved at exit.
        drafted_per_step: the most tokens drafted in a step, for all its requests together.
        least_probability: of being accepted, as the drafter estimates it, that a drafted token must have; each costs
            time where passes are limited by computation, as on CPUs and under load.
        settings: of the method's drafter; None for the defaults.
        allow_untested: whether engines of versions that were not tested are accepted.
        share: the URL of a store that replicas learn from each other through, see `sharing.address`; None for none.

    Raises:
        UsageError: a value makes no sense, or there is no such method.
        UnsupportedError: the method needs more of its target than tokens, or is lossy, or keeps no memory.
    """

    method: str = "mix"
    memory: Path | None = None
    corpus: Path | None = None
    base: tuple[Path, ...] | str = ()
    memory_limit: int = MEMORY_LIMIT
    save_every: float = 300.0
    drafted_per_step: int = DRAFTED_PER_STEP
    least_probability: float = 0.0
    settings: Mapping[str, Any] | None = None
    allow_untested: bool = False
    share: str | None = field(default=None, repr=False)  # may hold a password

    def __post_init__(self) -> None:
        check_number("save_every", self.save_every, least=0, above=True)
        check_number("drafted_per_step", self.drafted_per_step, least=0, whole=True)
        check_number("least_probability", self.least_probability, least=0, most=1)
        method = find_method(self.method)
        if not drafts_from_text(method):
            usable = ", ".join(name for name, each in METHODS.items() if drafts_from_text(each))
            raise UnsupportedError(
                f"the method '{self.method}' needs the target's logits, hidden states or a draft model, or is lossy; "
                f"engines that call a drafter give it tokens only. Use {usable}."
            )
        if method.memory is None and (self.memory or self.corpus):
            raise UnsupportedError(
                f"the method '{self.method}' keeps no memory; leave out memory and corpus, or use 'mix'."
            )
        if self.share is not None:
            check_sharing(method)
            parse_address(self.share)

    def build(self, *, vocabulary: int, tokenizer: str, shares: bool = True) -> Drafter:
        """Return the drafter, with an empty memory.

        Args:
            vocabulary: V of the target.
            tokenizer: its fingerprint.
            shares: whether this process shares, if the settings say so: of several ranks only one should.

        Raises:
            UsageError: the method has no such settings, or cannot be used with this vocabulary.
        """
        method = find_method(self.method)
        drafter = method.build(
            vocabulary=vocabulary,
            tokenizer=tokenizer,
            memory_limit=self.memory_limit,
            bases=open_bases(method, self.base, vocabulary=vocabulary, tokenizer=tokenizer),
            settings=self.settings,
        )
        if self.share is None or not shares:
            return drafter
        return open_sharing(drafter, self.share, method=method, tokenizer=tokenizer, vocabulary=vocabulary)


def drafts_from_text(method: Method) -> bool:
    """Return whether a method drafts losslessly from committed tokens alone, without draws."""
    return method.replayable and method.exactness == "lossless" and not method.samples


def read_settings(environment: Mapping[str, str]) -> IntegrationSettings:
    """Return the settings that the environment and the file that it names hold.

    Raises:
        FileError: the file cannot be read.
        UsageError: a name is not a setting, or a value makes no sense.
    """
    named = {each.name for each in fields(IntegrationSettings)}
    found: dict[str, Any] = {}
    if path := environment.get(CONFIG):
        for name, value in _read_file(Path(path)).items():
            if name not in named:
                raise UsageError(f"{path}: there is no setting {name!r}. {nearest(name, named)}")
            found[name] = value
    variables = {PREFIX + name.upper(): name for name in named}
    check_variables(environment, known={*named, "config"}, what="a setting")
    given = {name.upper(): value for name, value in environment.items()}
    found |= {name: given[variable] for variable, name in variables.items() if given.get(variable)}
    return IntegrationSettings(**{name: _parse(name, value) for name, value in found.items()})


def _parse(name: str, value: Any) -> Any:
    """Return a setting's value, given as text or as a value of the file's format."""
    if name == "base" and value == AUTOMATIC:
        return AUTOMATIC
    if name == "base":
        given = value.split(os.pathsep) if isinstance(value, str) else value
        if not isinstance(given, list) or not all(isinstance(path, str) for path in given):
            raise UsageError(f"base must be a path, a list of paths, or auto, not {value!r}.")
        return tuple(Path(path).expanduser() for path in given if path)
    if name in ("memory", "corpus"):
        if not isinstance(value, str):
            raise UsageError(f"{name} must be a path, not {value!r}.")
        return Path(value).expanduser()
    if name == "memory_limit":
        return check_bytes(value)
    if name in ("method", "share"):
        return str(value)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise UsageError(f"{name} must be a number, true or false, or JSON, not {value!r}.") from None
    if name == "settings" and not isinstance(value, dict):
        raise UsageError(f'settings must be an object such as {{"row_memory": 8}}, not {value!r}.')
    if name == "allow_untested":
        if value not in (True, False):
            raise UsageError(f"allow_untested must be true or false (1 or 0), not {value!r}.")
        return bool(value)
    return value


def _read_file(path: Path) -> dict[str, Any]:
    if path.suffix not in (".toml", ".json"):
        raise FileError(f"{path}: settings are read from .toml and .json files; rename it.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read the settings in {path}: {error}.") from error
    try:
        content = json.loads(text) if path.suffix == ".json" else _parse_toml(text)
    except ValueError as error:
        raise FileError(f"{path} is not a {path.suffix[1:]} file: {error}.") from error
    if not isinstance(content, dict):
        raise FileError(f"{path} must hold one object of settings.")
    return content


def _parse_toml(text: str) -> Any:
    if sys.version_info < (3, 11):
        raise UsageError("Python 3.10 reads no .toml files; write the settings as .json.")
    import tomllib

    return tomllib.loads(text)
