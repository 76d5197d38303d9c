"""Options from flags, environment variables and files of such variables."""

from __future__ import annotations

import logging

import pytest

from speculant.core.errors import UsageError
from speculant.options.hosting import HostingOptions
from speculant.options.serving import ServingOptions
from speculant.options.variables import read_variables

WHAT = "a setting"


def test_front_ends_share_an_environment() -> None:
    """Guards processes of several kinds that are started with the same variables: each reads its own."""
    both = {"SPECULANT_PORT": "9000", "SPECULANT_DRAFTED_PER_STEP": "64", "SPECULANT_MEMORY_LIMIT": "1GB", "HOME": "/"}
    for group, own in ((ServingOptions, {"port": 9000}), (HostingOptions, {"drafted_per_step": 64})):
        found = read_variables((group,), flags={}, environment=both, file=None, what=WHAT)
        assert found == own | {"memory_limit": 10**9}


@pytest.mark.parametrize(
    ("old", "name", "value"), [("SAVE_EVERY", "save_seconds", 60.0), ("LEAST_PROBABILITY", "min_probability", 0.5)]
)
def test_old_names_are_read(old: str, name: str, value: float, caplog: pytest.LogCaptureFixture) -> None:
    """Guards environments of earlier versions: the value counts, and a warning names the new variable."""
    environment = {f"SPECULANT_{old}": str(value)}
    with caplog.at_level(logging.WARNING):
        found = read_variables((HostingOptions,), flags={}, environment=environment, file=None, what=WHAT)
    assert found == {name: value}
    assert f"SPECULANT_{name.upper()}" in caplog.text


def test_a_variable_that_nobody_knows() -> None:
    """Guards misspelt names, which would be ignored for as long as a process runs."""
    with pytest.raises(UsageError, match=r"SPECULANT_PROT is not a setting\. Did you mean SPECULANT_PORT\?"):
        read_variables((ServingOptions,), flags={}, environment={"SPECULANT_PROT": "1"}, file=None, what=WHAT)
