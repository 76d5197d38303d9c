"""The files of the deployment: what they name exists in the server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from servers import Connect, completion
from speculant.options.option import options_of
from speculant.options.serving import ServingOptions

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "Dockerfile").exists(), reason="needs the repository")


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads((ROOT / "docs/grafana.json").read_text())["panels"]
    return panels


def _set_in(path: str) -> set[str]:
    """Return the environment variables SPECULANT_* that a file sets, or shows how to set."""
    return set(re.findall(r"\bSPECULANT_([A-Z_]+)=", (ROOT / path).read_text()))


@pytest.mark.anyio
async def test_every_metric_of_the_dashboard_is_exported_and_every_metric_is_on_it(connect: Connect) -> None:
    """A renamed metric must not leave an empty panel behind."""
    async with connect() as client:
        assert (await client.post("/v1/completions", json=completion())).status_code == 200
        page = (await client.get("/metrics")).text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    exported = {name for name in kinds if not name.endswith("_created")}
    asked = set()
    for panel in _panels():
        for target in panel.get("targets", []):
            for name in re.findall(r"speculant_[a-z_0-9]+", target["expr"]):
                family = re.sub(r"_bucket$", "", name)
                assert family in exported, name
                assert (kinds[family] == "histogram") == name.endswith("_bucket"), name
                asked.add(family)
    assert asked == exported


def test_the_dashboard_can_be_imported() -> None:
    """Grafana refuses, or mixes up, panels that share an id or a place."""
    panels = _panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (column, row)
        for place in (panel["gridPos"] for panel in panels)
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < 24


@pytest.mark.parametrize("path", ["Dockerfile", "deploy/speculant.service", "deploy/speculant.env"])
def test_settings_of_the_deployment_exist(path: str) -> None:
    """An unknown variable of the environment is ignored, so a misspelled one would be."""
    assert {name.lower() for name in _set_in(path)} <= set(options_of(ServingOptions))


def test_the_image_holds_no_key() -> None:
    """A key in an image is everyone's."""
    assert "SPECULANT_API_KEYS=" not in (ROOT / "Dockerfile").read_text()


def test_the_unit_waits_longer_than_the_server_drains() -> None:
    """SIGKILL during the drain would cut texts off and lose what was learned since the last save."""
    unit = (ROOT / "deploy/speculant.service").read_text()
    found = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert found is not None
    assert int(found[1]) >= 2 * ServingOptions().drain_seconds
