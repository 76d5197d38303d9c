"""Settings of drafts inside another engine, from a file and the environment, since such engines pass no options on.

`SPECULANT_CONFIG` names a .toml or .json file; every other setting `NAME` is also read from `SPECULANT_NAME`, which
takes precedence. An unknown name is an error: otherwise a misspelt one would be silently ignored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speculant.api.bases import open_bases
from speculant.core.drafter import Drafter
from speculant.core.environment import nearest
from speculant.core.errors import FileError, UnsupportedError, UsageError
from speculant.options.hosting import HostingOptions
from speculant.options.option import options_of
from speculant.options.variables import read_variables
from speculant.registry import METHODS, BuildContext, Method, build_drafter, find_method
from speculant.sharing.address import parse_address
from speculant.sharing.opening import check_sharing, open_sharing

CONFIG = "SPECULANT_CONFIG"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrationSettings(HostingOptions):
    """Validated options of drafts inside an engine, which can build the drafter.

    Raises:
        UsageError: a value is invalid, or there is no such method.
        UnsupportedError: the method needs more from its target than tokens, or is lossy, or has no memory.
    """

    def __post_init__(self) -> None:
        HostingOptions.__post_init__(self)
        method = find_method(self.method)
        if not drafts_from_tokens_alone(method):
            usable = ", ".join(name for name, each in METHODS.items() if drafts_from_tokens_alone(each))
            raise UnsupportedError(
                f"the method '{self.method}' needs the target's logits, hidden states or a draft model, or is lossy; "
                f"engines that call a drafter give it tokens only. Use {usable}."
            )
        if method.memory is None and method.corpus is None and (self.memory or self.corpus):
            raise UnsupportedError(
                f"the method '{self.method}' keeps no memory; leave out memory and corpus, or use 'mix'."
            )
        if method.memory is None and self.memory:
            raise UnsupportedError(
                f"the method '{self.method}' can start from a memory but saves none; name the file by corpus instead "
                "of memory."
            )
        if self.share is not None:
            check_sharing(method)
            parse_address(self.share)

    def build(self, *, vocabulary: int, tokenizer: str, shares: bool = True) -> Drafter:
        """Build the drafter, with an empty memory.

        Args:
            vocabulary: vocabulary size V of the target.
            tokenizer: fingerprint of its tokenizer.
            shares: whether this process shares, if the settings request it: only one of several ranks should.

        Raises:
            UsageError: the method has no such settings, or cannot be used with this vocabulary.
        """
        method = find_method(self.method)
        drafter = build_drafter(
            method,
            BuildContext(
                vocabulary=vocabulary,
                tokenizer=tokenizer,
                memory_limit=self.memory_limit,
                bases=open_bases(method, self.base, vocabulary=vocabulary, tokenizer=tokenizer),
                settings=self.settings,
            ),
        )
        if self.share is None or not shares:
            return drafter
        return open_sharing(drafter, self.share, method=method, tokenizer=tokenizer, vocabulary=vocabulary)


def drafts_from_tokens_alone(method: Method) -> bool:
    """Return whether a method drafts losslessly from committed tokens alone, without random draws."""
    return method.replayable and method.exactness == "lossless" and not method.samples


def read_settings(environment: Mapping[str, str]) -> IntegrationSettings:
    """Return the settings in the environment and the file that it names.

    Raises:
        FileError: the file cannot be read.
        UsageError: a name is not a setting, or a value is invalid.
    """
    options = options_of(IntegrationSettings)
    names = {name: each for each in options.values() for name in (each.name, *each.old_names)}
    found: dict[str, Any] = {}
    if path := environment.get(CONFIG):
        for name, value in _read_file(Path(path)).items():
            if name not in names:
                raise UsageError(f"{path}: there is no setting {name!r}. {nearest(name, names)}")
            try:
                found[names[name].name] = names[name].read(value)
            except ValueError as error:
                raise UsageError(f"{path}: {name} {error}") from None
    given = read_variables((IntegrationSettings,), flags={}, environment=environment, file=None, what="a setting")
    return IntegrationSettings(**found | given)


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
