"""The page in a real browser: Chromium, driven by Playwright, against a running server.

Run by `make test-browser`. Screenshots are kept in `.screenshots`.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from servers import make_app, make_speculator
from speculant.options.serving import ServingOptions
from speculant.serving.server import bind, make_server, url

sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

pytestmark = pytest.mark.browser
SCREENSHOTS = Path(__file__).parents[2] / ".screenshots"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
WAIT = 120_000  # milliseconds, for machines that are busy
Open = Callable[..., Any]


@contextmanager
def serving(model: Any, tokenizer: Any, **options: Any) -> Iterator[str]:
    """Serve in a thread; yield the address."""
    app, ready = make_app(make_speculator(model, tokenizer), port=0, **options), threading.Event()
    with bind(ServingOptions(port=0)) as bound:
        server = make_server(app, ServingOptions(port=0), ready.set)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
        thread.start()
        try:
            assert ready.wait(60)
            yield url(bound)
        finally:
            server.should_exit = True
            thread.join(60)


@pytest.fixture(scope="module")
def address(model: Any, tokenizer: Any) -> Iterator[str]:
    """Return the address of a server without keys."""
    with serving(model, tokenizer) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return the system's Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Return what opens a page; in the end its console must hold no errors but those that a test expects."""
    problems: list[str] = []
    contexts = []
    expected: list[str] = []

    def opened(address: str, *, size: dict[str, int] = DESKTOP, scheme: str = "light", expect: str = "") -> Any:
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme))
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


def generate(page: Any, *, method: str = "Drafts", tokens: int = 40) -> None:
    """Ask for a text, and wait for its end."""
    page.get_by_label(method, exact=True).check()
    page.get_by_label("Max tokens").fill(str(tokens))
    page.get_by_role("button", name="Generate").click()
    sync_api.expect(page.get_by_role("status")).to_contain_text(
        "tokens/s" if method != "Race" else "as fast", timeout=WAIT
    )


def connected(page: Any) -> Any:
    """Return the page once it has asked the server."""
    sync_api.expect(page.locator("#server")).to_contain_text("method mix", timeout=WAIT)
    return page


def check_accessible(page: Any) -> None:
    """Check the page with axe."""
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_typing_and_streaming(visit: Open, address: str) -> None:
    """Guards the way of a text: typed, streamed, each token marked by its source, its tree drawn, by keys alone."""
    page = connected(visit(address))
    page.get_by_role("textbox", name="Prompt").fill("The dog ")
    page.keyboard.type("went")
    page.get_by_label("Max tokens").fill("40")
    page.get_by_role("textbox", name="Prompt").focus()
    page.keyboard.press("Control+Enter")
    status = page.get_by_role("status")
    sync_api.expect(status).to_contain_text("Done: 40 tokens", timeout=WAIT)
    text = page.get_by_role("region", name="Text, With drafts")
    sync_api.expect(text).to_contain_text("The dog went")
    generate(page)
    assert text.locator("span.accepted").count() > 5
    assert text.locator("span.plain").count() >= 1
    marks = [
        text.locator(f"span.{source}").first.evaluate("each => getComputedStyle(each).textDecorationStyle")
        for source in ("accepted", "bonus")
    ]
    assert marks == ["solid", "dotted"]
    tree = page.get_by_role("img", name=re.compile(r"^Round \d+: \d+ drafted nodes"))
    assert tree.locator("g.node").count() >= 1
    page.locator("#round").fill("1")
    sync_api.expect(page.locator("#round-text")).to_contain_text("1 of ")
    sync_api.expect(page.locator("#memory")).to_contain_text("MB")
    assert page.locator("#contexts tbody tr").count() > 3


def test_examples_fill_the_prompt(visit: Open, address: str) -> None:
    """Guards the three examples."""
    page = connected(visit(address))
    buttons = page.get_by_role("group", name="Examples").get_by_role("button")
    assert buttons.count() == 3
    buttons.nth(2).click()
    assert page.get_by_role("textbox", name="Prompt").input_value() == buttons.nth(2).inner_text()


def test_methods_and_race(visit: Open, address: str) -> None:
    """Guards switching: plain texts have plain tokens only, a race has both texts, equal, and can be seen again."""
    page = connected(visit(address))
    generate(page, method="Plain", tokens=20)
    assert page.locator(".text .accepted, .text .bonus").count() == 0
    assert page.locator(".text .plain").count() > 10
    generate(page, method="Race")
    sync_api.expect(page.get_by_role("status")).to_contain_text("the texts are equal")
    assert page.locator(".lane").count() == 2
    page.get_by_role("button", name="Replay side by side").click()
    sync_api.expect(page.get_by_role("button", name="Generate")).to_be_enabled(timeout=WAIT)
    texts = page.locator(".text").all_inner_texts()
    assert texts[0] == texts[1]


def test_stop(visit: Open, address: str) -> None:
    """Guards stopping: what there is stays, and another text can be asked for."""
    page = connected(visit(address))
    page.get_by_label("Plain", exact=True).check()
    page.get_by_label("Max tokens").fill("400")
    page.get_by_role("button", name="Generate").click()
    page.locator(".text .plain").first.wait_for()
    page.get_by_role("button", name="Stop").click()
    sync_api.expect(page.get_by_role("status")).to_have_text("Stopped")
    assert 0 < page.locator(".text .plain").count() < 400
    generate(page, tokens=10)


def test_errors_are_shown(visit: Open, address: str) -> None:
    """Guards refusals: the server's own words in an alert, which can be dismissed."""
    page = connected(visit(address, expect="status of 400"))
    page.get_by_role("textbox", name="Prompt").fill("word " * 2000)
    page.get_by_role("button", name="Generate").click()
    alert = page.get_by_role("alert")
    sync_api.expect(alert).to_contain_text("Shorten it", timeout=WAIT)
    check_accessible(page)
    page.screenshot(path=SCREENSHOTS / "error.png")
    page.get_by_role("button", name="Dismiss").click()
    sync_api.expect(alert).to_be_hidden()
    page.get_by_role("textbox", name="Prompt").fill("The dog")
    generate(page, tokens=10)


def test_key_is_asked_for(visit: Open, model: Any, tokenizer: Any) -> None:
    """Guards keys: asked for, kept in the tab, and sent."""
    with serving(model, tokenizer, api_keys=("secret",)) as address:
        page = visit(address, expect="status of 401")
        field = page.get_by_label("This server needs an API key")
        field.fill("wrong")
        page.get_by_role("button", name="Use key").click()
        sync_api.expect(page.get_by_role("alert")).to_contain_text("a valid API key is needed")
        check_accessible(page)
        page.screenshot(path=SCREENSHOTS / "key.png")
        field.fill("secret")
        page.get_by_role("button", name="Use key").click()
        connected(page)
        sync_api.expect(field).to_be_hidden()
        generate(page, tokens=10)
        page.reload()
        connected(page)
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_looks(visit: Open, address: str, size: dict[str, int], scheme: str) -> None:
    """Guards axe's rules, contrast included, and the width of phones; keeps screenshots."""
    page = connected(visit(address, size=size, scheme=scheme))
    check_accessible(page)
    generate(page, method="Race", tokens=60)
    page.locator("#round").fill("5")
    check_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    name = "phone" if size is PHONE else "desktop"
    page.screenshot(path=SCREENSHOTS / f"{name}-{scheme}.png", full_page=True)
