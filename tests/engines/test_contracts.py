"""The caches of all engines have every member of their contract."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

from speculant.core.engine import TargetCache
from speculant.drafters.models.translated_cache import TranslatedCache
from speculant.engines.hf.caches.plain_cache import PlainTargetCache
from speculant.engines.hf.caches.replay_cache import ReplayTargetCache
from speculant.engines.llamacpp.replay_cache import LlamaReplayCache
from speculant.engines.llamacpp.tree_cache import LlamaTreeCache
from speculant.engines.recorded import RecordedCache

CACHES = (PlainTargetCache, ReplayTargetCache, TranslatedCache, RecordedCache, LlamaTreeCache, LlamaReplayCache)


def members_without_default(contract: type) -> set[str]:
    """Return the functions of a protocol whose body is a docstring alone."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(contract))).body
    assert isinstance(definition, ast.ClassDef)
    functions = [each for each in definition.body if isinstance(each, ast.FunctionDef)]
    return {each.name for each in functions if len(each.body) == 1 and isinstance(each.body[0], ast.Expr)}


@pytest.mark.parametrize("cache", CACHES)
def test_no_member_is_forgotten(cache: type) -> None:
    """Guards classes that inherit the contract, whose members without a default would return None."""
    names = members_without_default(TargetCache)
    assert names > {"prefill", "forward", "keep", "rollback"}
    assert not {name for name in names if getattr(cache, name) is getattr(TargetCache, name)}
