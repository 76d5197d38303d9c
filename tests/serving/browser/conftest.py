"""The page in a real browser: the system's Chromium, driven by Playwright, against running servers.

Screenshots go to `.screenshots`; those of the docs, which begin with "serving-", to the folder that DOC_IMAGES names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from servers import on_port, serving
from speculant import Speculator
from speculant.options.serving import ServingOptions
from speculant.serving.app import create_app

WAIT = 60_000  # milliseconds, for machines that are busy
COLOURS = 256  # of a screenshot, so that its file is small
Open = Callable[..., Any]
Shoot = Callable[..., Path]


@pytest.fixture(scope="module")
def address(model: Any, tokenizer: Any) -> Iterator[str]:
    """Return the address of a server without keys."""
    with serving(model, tokenizer) as (_, found):
        yield found


@pytest.fixture(scope="module")
def bundled() -> Iterator[str]:
    """Return the address of a server of the bundled model, with an empty memory."""
    settings = ServingOptions(port=0)
    app = create_app(Speculator.from_pretrained(method="mix"), settings, model="bundled")
    with on_port(app, settings) as (_, found):
        yield found


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return the system's Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Return what opens a page; in the end its console must hold no errors but those that a test expects.

    What the content security policy blocks is such an error.
    """
    problems: list[str] = []
    contexts = []
    expected: list[str] = []

    def opened(address: str, *, phone: bool = False, scheme: str = "light", expect: str = "", **options: Any) -> Any:
        size = {"width": 390, "height": 844} if phone else {"width": 1280, "height": 900}
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(WAIT)
        if expect:
            expected.append(expect)
        page.on("console", lambda message: message.type in ("error", "warning") and problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [text for text in problems if not any(part in text for part in expected)] == []


@pytest.fixture
def shoot() -> Shoot:
    """Return what keeps a screenshot of a page under a name."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    own = Path(__file__).parents[3] / ".screenshots"
    documented = Path(os.environ.get("DOC_IMAGES") or own)

    def shot(page: Any, name: str, **options: Any) -> Path:
        path = (documented if name.startswith("serving-") else own) / f"{name}.png"
        page.screenshot(path=path, animations="disabled", **options)
        with image.open(path) as taken:
            reduced = taken.convert("RGB").quantize(COLOURS, dither=image.Dither.NONE)
        reduced.save(path, optimize=True)
        return path

    return shot


@pytest.fixture
def check_accessible() -> Callable[[Any], None]:
    """Return what checks a page by axe's rules, contrast included."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

    def check(page: Any) -> None:
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()

    return check
