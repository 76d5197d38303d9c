"""The chat in a browser: conversations, what answers hold, what goes with a message. Run by `make test-browser`."""

from __future__ import annotations

import base64
import copy
import json
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
Open, Shoot, Check = Callable[..., Any], Callable[..., Path], Callable[[Any], None]
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
MARKDOWN = """A short loop does it:

```python
def total(numbers):
    return sum(number for number in numbers if number > 0)  # only what counts
```

It is **short**, and `sum` does the work.

| input | result |
|---|---|
| `[1, 2]` | 3 |
| `[1, -2]` | 1 |"""
HOSTILE = """

<script>alert(1)</script>

See [a link](https://example.org), [another](javascript:alert) and ![a picture](https://example.org/a.png)."""


def open_chat(visit: Open, address: str, **options: Any) -> Any:
    """Return the page with the chat, once it has asked the server."""
    page = visit(f"{address}/#chat", **options)
    expect(page.locator("#server")).to_contain_text("method mix", timeout=WAIT)
    return page


def say(page: Any, text: str) -> None:
    """Send a message by Enter, and wait for the end of its answer."""
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=WAIT)


def answer_with(page: Any, *deltas: dict[str, Any], sent: list[Any] | None = None) -> None:
    """Have the server's chat answer with these deltas; what is asked is added to `sent`."""

    def answer(route: Any) -> None:
        if sent is not None:
            sent.append(json.loads(route.request.post_data))
        chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}]
        chunks += [{"choices": [], "usage": {"completion_tokens": 42}}]
        events = [json.dumps(chunk) for chunk in chunks] + ["[DONE]"]
        body = "".join(f"data: {event}\n\n" for event in events)
        route.fulfill(status=200, headers={"Content-Type": "text/event-stream"}, body=body)

    page.route("**/v1/chat/completions", answer)


def test_a_conversation_is_kept(visit: Open, address: str) -> None:
    """Guards the way of a message, the turns that follow it, and what is there after the page was closed."""
    page = open_chat(visit, address, expect="status of 400")
    page.get_by_role("button", name="Settings").click()
    page.locator("dialog").get_by_label("Max tokens").fill("20")
    page.get_by_role("button", name="Done").click()
    say(page, "The dog went home")
    answers = page.get_by_role("article", name="Answer")
    expect(answers).to_have_count(1)
    expect(answers.first).to_contain_text("20 tokens")
    say(page, "And then?")
    expect(answers).to_have_count(2)
    before = page.locator(".prose").all_inner_texts()
    page.reload()
    page.get_by_role("button", name="The dog went home", exact=True).click()
    assert page.locator(".prose").all_inner_texts() == before
    page.get_by_role("button", name="New chat").click()
    expect(answers).to_have_count(0)
    page.get_by_role("button", name="Delete The dog went home").click()
    expect(page.get_by_role("button", name="The dog went home")).to_have_count(0)


def test_a_chat_with_the_bundled_model(visit: Open, bundled: str, shoot: Shoot, check_accessible: Check) -> None:
    """Guards a real conversation, which is also the picture in the docs."""
    page = open_chat(visit, bundled)
    page.get_by_role("button", name="Settings").click()
    page.locator("dialog").get_by_label("Temperature").fill("0.8")
    page.locator("dialog").get_by_label("Seed").fill("4")
    page.locator("dialog").get_by_label("Max tokens").fill("110")
    page.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Lily found a shiny key in the garden.").click()
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible(timeout=WAIT)
    say(page, "Then her friend Ben came along.")
    expect(page.get_by_role("article", name="Answer")).to_have_count(2)
    check_accessible(page)
    assert shoot(page, "serving-chat").stat().st_size < LARGEST


def test_requests_hold_turns_and_settings(visit: Open, address: str) -> None:
    """Guards what is sent: the system prompt, all turns without reasoning, files as text, the settings."""
    page, sent = open_chat(visit, address), list[Any]()
    answer_with(page, {"reasoning_content": "Hm."}, {"content": "Yes"}, sent=sent)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be short.")
    page.locator("dialog").get_by_label("Temperature").fill("0.2")
    page.locator("dialog").get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Done").click()
    say(page, "One")
    page.locator("#files").set_input_files([{"name": "a.py", "mimeType": "text/x-python", "buffer": b"x = '```'\n"}])
    expect(page.get_by_role("list", name="Attached")).to_contain_text("a.py")
    say(page, "Two")
    body = sent[1]
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert body["messages"][0]["content"] == "Be short."
    assert body["messages"][2]["content"] == "Yes"
    assert body["messages"][3]["content"] == "File a.py:\n````\nx = '```'\n````\n\nTwo"
    assert (body["temperature"], body["seed"], body["stream"]) == (0.2, 7, True)
    assert "max_tokens" not in body
    expect(page.get_by_role("list", name="Attached")).to_be_hidden()


def test_markdown_code_and_reasoning(visit: Open, address: str, check_accessible: Check, shoot: Shoot) -> None:
    """Guards what an answer may hold: code with a copy button, tables, links; no script, no picture from elsewhere."""
    page = open_chat(visit, address, permissions=["clipboard-read", "clipboard-write"])
    answer_with(
        page, {"reasoning_content": "The sum of the positive ones."}, {"content": MARKDOWN}, {"content": HOSTILE}
    )
    say(page, "Add the positive numbers, please.")
    answer = page.get_by_role("article", name="Answer")
    expect(answer.locator(".code .hljs-keyword").first).to_have_text("def")
    expect(answer.locator("strong")).to_have_text("short")
    assert answer.locator("tbody tr").count() == 2
    assert answer.locator("script, img").count() == 0
    expect(answer).to_contain_text("<script>alert(1)</script>")
    assert answer.locator("a").first.get_attribute("rel") == "noopener noreferrer"
    expect(page.get_by_text("The sum of the positive ones.")).to_be_hidden()
    page.get_by_text("Reasoning", exact=True).click()
    expect(page.get_by_text("The sum of the positive ones.")).to_be_visible()
    page.get_by_text("Reasoning", exact=True).click()
    answer.locator(".code").get_by_role("button", name="Copy").click()
    expect(answer.locator(".code").get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").startswith("def total(numbers):\n    return")
    assert answer.locator("a[href^=javascript]").count() == 0
    check_accessible(page)
    shoot(page, "answer")


def test_stop_and_regenerate(visit: Open, address: str) -> None:
    """Guards stopping: what there is stays, and the answer can be made anew."""
    page = open_chat(visit, address)
    page.get_by_role("textbox", name="Message").fill("Once upon a time")
    page.keyboard.press("Enter")
    expect(page.locator(".prose")).not_to_be_empty(timeout=WAIT)
    page.get_by_role("button", name="Stop").click()
    answer = page.get_by_role("article", name="Answer")
    expect(answer).to_contain_text("Stopped")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    answer_with(page, {"content": "Another one"})
    page.get_by_role("button", name="Regenerate").click()
    expect(answer).to_have_count(1)
    expect(answer.locator(".prose")).to_have_text("Another one")


def test_errors_end_waiting(visit: Open, model: Any, tokenizer: Any, shoot: Shoot, check_accessible: Check) -> None:
    """Guards failures before and within an answer: its place says why, and another try works."""
    with serving(model, tokenizer) as (_, address):
        page = open_chat(visit, address, expect="")
        broken = (
            'data: {"choices": [{"delta": {"content": "Half"}}]}\n\ndata: {"error": {"message": "out of memory"}}\n\n'
        )
        page.route("**/v1/chat/completions", lambda route: route.fulfill(status=200, body=broken))
        say(page, "One")
        answer = page.get_by_role("article", name="Answer")
        expect(answer).to_contain_text("Half")
        expect(answer).to_contain_text("out of memory")
        page.unroute("**/v1/chat/completions")
        answer_with(page, {"content": "Whole"})
        page.get_by_role("button", name="Try again").click()
        expect(answer.locator(".prose")).to_have_text("Whole")
        page.route("**/v1/chat/completions", lambda route: route.fulfill(status=200, body='data: {"choices": []}\n\n'))
        say(page, "Two")
        expect(answer.nth(1)).to_contain_text("The connection ended before the text did.")
        check_accessible(page)
        shoot(page, "chat-error")


def test_files_that_are_not_text_are_refused(visit: Open, address: str) -> None:
    """Guards attachments: what cannot be read is named, and images are for models that see."""
    page = open_chat(visit, address)
    expect(page.get_by_role("button", name="Attach image")).to_be_hidden()
    for name, kind, content, why in (
        ("a.bin", "application/octet-stream", b"\0\1\2", "is not text"),
        ("a.txt", "text/plain", b"a" * 400_001, "at most 400 are taken"),
        ("a.png", "image/png", PIXEL, "reads text only"),
    ):
        page.locator("#files").set_input_files([{"name": name, "mimeType": kind, "buffer": content}])
        expect(page.get_by_role("alert").filter(has_text=name)).to_contain_text(re.compile(why))
        assert page.locator("#attached li").count() == 0


def test_images_go_to_models_that_see(visit: Open, address: str, check_accessible: Check) -> None:
    """Guards images: offered where the model takes them, shown, and sent as data URLs."""
    page, sent = visit("about:blank"), list[Any]()

    def models(route: Any) -> None:
        found = route.fetch().json()
        found["data"][0]["modalities"] = ["text", "image"]
        route.fulfill(json=found)

    page.route("**/v1/models", models)
    answer_with(page, {"content": "A dot."}, sent=sent)
    page.goto(f"{address}/#chat")
    expect(page.get_by_role("button", name="Attach image")).to_be_visible()
    page.locator("#images").set_input_files([{"name": "dot.png", "mimeType": "image/png", "buffer": PIXEL}])
    expect(page.get_by_role("button", name="Remove dot.png")).to_be_visible()
    say(page, "What is this?")
    expect(page.get_by_role("img", name="dot.png")).to_be_visible()
    image, text = sent[0]["messages"][0]["content"]
    assert image["type"] == "image_url"
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert text == {"type": "text", "text": "What is this?"}
    check_accessible(page)


def test_a_model_without_a_chat_template(visit: Open, model: Any, tokenizer: Any, check_accessible: Check) -> None:
    """Guards models that only continue texts: the view says so, and sends nothing."""
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    with serving(model, plain) as (_, address):
        page = open_chat(visit, address)
        expect(page.get_by_role("heading", name="tiny does not chat")).to_be_visible()
        expect(page.get_by_role("button", name="Send")).to_be_disabled()
        page.get_by_role("textbox", name="Message").fill("Hello")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article")).to_have_count(0)
        check_accessible(page)


def test_export(visit: Open, address: str) -> None:
    """Guards what a conversation is as a file."""
    page = open_chat(visit, address)
    answer_with(page, {"content": "Fine, **thanks**."})
    say(page, "How are you?")
    for name, ending in (("As Markdown", "how-are-you.md"), ("As JSON", "how-are-you.json")):
        page.get_by_role("button", name="Export").click()
        with page.expect_download() as download:
            page.get_by_role("button", name=name, exact=True).click()
        assert download.value.suggested_filename == ending
        text = Path(download.value.path()).read_text()
        if ending.endswith("md"):
            assert text == "# How are you?\n\n## You\n\nHow are you?\n\n## Answer\n\nFine, **thanks**.\n"
        else:
            assert [message["content"] for message in json.loads(text)["messages"]] == [
                "How are you?",
                "Fine, **thanks**.",
            ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_looks(visit: Open, address: str, check_accessible: Check, shoot: Shoot, phone: bool, scheme: str) -> None:
    """Guards axe's rules and the width of phones, empty and within a conversation, the list and the settings open."""
    page = open_chat(visit, address, phone=phone, scheme=scheme)
    name = f"{'phone' if phone else 'desktop'}-{scheme}-chat"
    check_accessible(page)
    shoot(page, f"{name}-empty")
    answer_with(page, {"content": MARKDOWN})
    say(page, "Add the positive numbers, please.")
    expect(page.locator(".hljs-keyword").first).to_be_visible()
    check_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shoot(page, name)
    if phone:
        page.get_by_role("button", name="Chats").click()
        expect(page.get_by_role("button", name="New chat")).to_be_visible()
        check_accessible(page)
        shoot(page, f"{name}-list")
        page.get_by_role("button", name="Chats").click()
    page.get_by_role("button", name="Settings").click()
    check_accessible(page)
    shoot(page, f"{name}-settings")
