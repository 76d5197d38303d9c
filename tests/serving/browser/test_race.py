"""The race in a browser: the first minute, rounds and their trees, errors, keys, looks. Run by `make test-browser`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servers import serving

sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
expect = sync_api.expect

pytestmark = pytest.mark.browser
WAIT = 120_000  # milliseconds, for machines that are busy
LARGEST = 250_000  # bytes of a screenshot
PLACES, SCREEN = ("#headline", "#tree"), 844  # where result and tree stand, and the height of a phone's screen
Open, Shoot, Check = Callable[..., Any], Callable[..., Path], Callable[[Any], None]


def connected(page: Any) -> Any:
    """Return the page once it has asked the server."""
    expect(page.locator("#server")).to_contain_text("method mix", timeout=WAIT)
    return page


def start(page: Any, *, method: str = "Both, as a race", tokens: int = 40) -> None:
    """Ask for a text, and wait for its result."""
    page.get_by_role("button", name="Settings").click()
    page.locator("#race").get_by_label("Max tokens").fill(str(tokens))
    page.get_by_label(method).check()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Start the race").click()
    result = ", the same text" if method.startswith("Both") else "tokens per second"
    expect(page.locator("#headline")).to_contain_text(result, timeout=WAIT)


def words(page: Any) -> Any:
    """Return the rounds of the text with drafts, as it is shown."""
    return page.get_by_role("region", name="Text, With drafts").locator(".chunk")


def test_the_first_minute(visit: Open, bundled: str, check_accessible: Check, shoot: Shoot) -> None:
    """Guards a newcomer's way: what happens, the race, its result for a new text and a known one, a word's round."""
    page = connected(visit(bundled))
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("list", name="A round").get_by_role("listitem")).to_have_count(3)
    shoot(page, "start")
    page.get_by_role("button", name="Start the race").click()
    headline = page.locator("#headline")
    result = re.compile(r"^([\d.]+ times as fast|Not faster this time), the same text$")
    expect(headline).to_have_text(result, timeout=WAIT)
    expect(page.get_by_role("status")).to_contain_text("A new text: the memory had seen")
    outcomes = page.get_by_role("group", name="Results").get_by_role("button")
    expect(outcomes).to_have_count(2)
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible(timeout=WAIT)
    lanes = page.locator(".text").all_inner_texts()
    assert lanes[0] == lanes[1]
    words(page).nth(3).click()
    expect(page.get_by_role("heading", name="Round 4 of")).to_be_visible()
    expect(words(page).nth(3)).to_have_class(re.compile("marked"))
    check_accessible(page)
    outcomes.nth(1).click()
    expect(page.get_by_role("status")).to_contain_text("A text the memory knew")
    page.get_by_role("button", name="Pause", exact=True).click()
    outcomes.nth(0).click()
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible(timeout=WAIT)
    clip = {"x": 0, "y": 0, "width": 1280, "height": 1360}
    assert shoot(page, "serving-race", full_page=True, clip=clip).stat().st_size < LARGEST
    phrases = page.locator("#phrases q").all_inner_texts()
    assert len(phrases) > 5
    assert not any("<" in each for each in phrases)


def test_a_known_text_is_told(visit: Open, bundled: str) -> None:
    """Guards the second race of a prompt: one result, for a text that the memory knew."""
    page = connected(visit(bundled, reduced_motion="reduce"))
    page.get_by_role("button", name="A red car").click()
    assert page.locator("#prompt").input_value().startswith("Tom had a red car")
    start(page)
    start(page)
    expect(page.get_by_role("status")).to_contain_text("A text the memory knew: it had seen")
    expect(page.get_by_role("group", name="Results")).to_be_hidden()


def test_rounds_by_keyboard(visit: Open, address: str) -> None:
    """Guards rounds without a mouse: Enter starts, arrows go from round to round, steps and chains are buttons."""
    page = connected(visit(address, reduced_motion="reduce"))
    page.locator("#prompt").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#headline")).to_contain_text(", the same text", timeout=WAIT)
    title = page.locator("#round-title")
    page.get_by_role("region", name="Text, With drafts").focus()
    before = title.inner_text()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert title.inner_text() != before
    page.get_by_role("slider", name="Round").focus()
    page.keyboard.press("Home")
    expect(title).to_contain_text("Round 1 of")
    expect(page.locator("#round-text")).to_contain_text("The first pass reads the prompt")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".chunk.marked").count() == 1
    page.get_by_role("button", name="1 Draft").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#round-text")).to_contain_text("guesses")
    expect(page.locator("#tree .own")).to_have_count(0)
    page.get_by_role("button", name="2 Verify").press("Space")
    expect(page.locator("#round-text")).to_contain_text("One pass")
    page.get_by_role("button", name="Why is that fast?").press("Enter")
    expect(page.locator("#term-verify")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="3 Accept").press("Enter")
    expect(page.get_by_role("img", name=re.compile(r"^Round \d+: \d+ drafted tokens?, \d+ accepted"))).to_be_visible()


def test_tree_folds_and_plays(visit: Open, bundled: str) -> None:
    """Guards long chains in one box, the hint at what is out of sight, and rounds that play step by step."""
    page = connected(visit(bundled, phone=True, reduced_motion="reduce"))
    start(page, tokens=120)
    start(page, tokens=120)  # known, so drafts are long
    nodes, rounds = page.locator("#tree .node"), page.get_by_role("slider", name="Round")
    for number in range(1, int(rounds.get_attribute("max")) + 1):  # some round has a long chain
        rounds.fill(str(number))
        if page.locator("#tree .kept.chain").evaluate_all("all => all.some(each => each.dataset.nodes > 5)"):
            break
    folded = nodes.count()
    page.locator("#tree .chain").first.click()
    assert nodes.count() > folded + 4
    expect(page.locator("#tree-hint")).to_contain_text("Scroll for more right")
    page.get_by_role("button", name="Fold", exact=True).click()
    assert nodes.count() == folded
    rounds.fill("2")
    page.get_by_role("button", name="Play rounds").click()
    expect(page.locator("#round-title")).to_contain_text("Round 3 of", timeout=WAIT)
    expect(page.get_by_role("button", name="2 Verify")).to_have_attribute("aria-pressed", "true", timeout=WAIT)
    page.get_by_role("button", name="Pause rounds").click()


def test_one_method_alone(visit: Open, address: str) -> None:
    """Guards texts without a race: plain tokens only, or accepted ones and the model's own, told apart by lines."""
    page = connected(visit(address))
    start(page, method="Without drafts only", tokens=20)
    assert page.locator(".text .accepted, .text .bonus").count() == 0
    assert page.locator(".text .plain").count() > 10
    start(page, method="With drafts only")
    start(page, method="With drafts only")
    marks = [
        page.locator(f".text .{source}").first.evaluate("each => getComputedStyle(each).textDecorationStyle")
        for source in ("accepted", "bonus")
    ]
    assert marks == ["solid", "dotted"]


def test_settings_that_are_wrong_are_shown(visit: Open, address: str, check_accessible: Check) -> None:
    """Guards a number that is missing: the race does not start, and the settings open where it is missing."""
    page = connected(visit(address))
    page.get_by_role("button", name="Settings").click()
    page.locator("#race").get_by_label("Max tokens").fill("")
    check_accessible(page)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Start the race").click()
    expect(page.locator("#race").get_by_label("Max tokens")).to_be_focused()
    expect(page.locator("#result")).to_be_hidden()


def test_lanes_scroll_as_one(visit: Open, address: str) -> None:
    """Guards two long texts: scrolling one scrolls the other."""
    page = connected(visit(address, reduced_motion="reduce"))
    start(page, tokens=400)
    lanes = page.locator(".text")
    lanes.nth(0).evaluate("each => (each.scrollTop = 0)")
    lanes.nth(1).evaluate("each => (each.scrollTop = 90)")
    page.wait_for_timeout(200)
    assert lanes.nth(0).evaluate("each => each.scrollTop") == lanes.nth(1).evaluate("each => each.scrollTop") == 90


def test_stop(visit: Open, address: str) -> None:
    """Guards stopping: what there is stays, nothing waits, and another text can be asked for."""
    page = connected(visit(address))
    page.get_by_role("button", name="Settings").click()
    page.locator("#race").get_by_label("Max tokens").fill("400")
    page.get_by_label("Without drafts only").check()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Start the race").click()
    page.locator(".text .plain").first.wait_for()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#headline")).to_have_text("The text was stopped")
    expect(page.locator(".lane")).to_contain_text("stopped after")
    assert 0 < page.locator(".text .plain").count() < 400
    expect(page.locator("#lanes")).not_to_contain_text("waiting")
    start(page, tokens=10)


def test_errors_are_shown(visit: Open, address: str, check_accessible: Check, shoot: Shoot) -> None:
    """Guards refusals: the server's own words in an alert, which can be dismissed, and no lane that waits."""
    page = connected(visit(address, expect="status of 400"))
    page.locator("#prompt").fill("word " * 2000)
    page.get_by_role("button", name="Start the race").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Shorten it", timeout=WAIT)
    expect(page.locator("#headline")).to_have_text("The race was not finished")
    expect(page.locator(".lane").first).to_contain_text("failed")
    expect(page.locator("#lanes")).not_to_contain_text("waiting")
    check_accessible(page)
    shoot(page, "error")
    page.get_by_role("button", name="Dismiss").click()
    expect(alert).to_be_hidden()
    page.locator("#prompt").fill("The dog")
    start(page, tokens=10)


def test_a_server_that_is_gone(visit: Open, model: Any, tokenizer: Any) -> None:
    """Guards lost connections: the race ends, and says so."""
    with serving(model, tokenizer) as (_, address):
        page = connected(visit(address, expect="ERR_"))
    page.get_by_role("button", name="Start the race").click()
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached", timeout=WAIT)
    expect(page.get_by_role("button", name="Start the race")).to_be_enabled()


def test_key_is_asked_for(visit: Open, model: Any, tokenizer: Any, check_accessible: Check, shoot: Shoot) -> None:
    """Guards keys: asked for, kept in the tab, and sent."""
    with serving(model, tokenizer, api_keys=("secret",)) as (_, address):
        page = visit(address, expect="status of 401")
        field = page.get_by_label("This server needs an API key")
        field.fill("wrong")
        page.get_by_role("button", name="Use key").click()
        expect(page.get_by_role("alert")).to_contain_text("A valid API key is needed")
        check_accessible(page)
        shoot(page, "key")
        field.fill("secret")
        page.get_by_role("button", name="Use key").click()
        connected(page)
        expect(field).to_be_hidden()
        start(page, tokens=10)
        page.reload()
        connected(page)
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_looks(visit: Open, bundled: str, shoot: Shoot, check_accessible: Check, phone: bool, scheme: str) -> None:
    """Guards axe's rules, the width of phones, and that result and tree are on a phone's first two screens."""
    page = connected(visit(bundled, phone=phone, scheme=scheme, reduced_motion="reduce"))
    name = f"{'phone' if phone else 'desktop'}-{scheme}"
    check_accessible(page)
    shoot(page, f"{name}-start", full_page=True)
    page.get_by_role("button", name="A rabbit" if phone else "A red car").click()
    start(page, tokens=120)
    check_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shoot(page, f"{name}-race", full_page=True)
    if not phone:
        return
    tops = [page.locator(each).evaluate("each => each.getBoundingClientRect().top + scrollY") for each in PLACES]
    assert tops[0] < SCREEN
    assert tops[1] < 2 * SCREEN
    if scheme == "light":
        clip = {"x": 0, "y": 0, "width": 390, "height": 2 * SCREEN}
        assert shoot(page, "serving-phone", clip=clip, full_page=True).stat().st_size < LARGEST
