"""The page for everybody: axe finds nothing, keys alone are enough, and three languages."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.ui.browser import LOAD, UiServer, Window, window

TEXT = """# A heading

Some *text* with `code` and [a link](https://example.org).

| name | number |
|:-----|-------:|
| one  |      1 |

```python
def add(a: int, b: int) -> int:
    return a + b  # a comment
```

> A quotation

- [x] a task
- [ ] another, with $x^2$

$$\\sum_n \\frac{1}{n^2}$$

A footnote[^1].

[^1]: Below the text.
"""
ITEMS: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": '<file name="a.txt">\nSome text\n</file>\n\n'},
            {"type": "input_text", "text": "Show me everything."},
        ],
    },
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"role": "assistant", "content": TEXT},
    {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"at":"it"}'},
]


@pytest.fixture(scope="module")
def chat(quick_server: UiServer) -> str:
    return f"#chat/{quick_server.conversation('Everything', ITEMS)}"


def violations(opened: Window) -> list[str]:
    """What axe finds, each with the first place."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(opened.page).response["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0]['failureSummary']}"
        for one in found
    ]


@pytest.mark.nightly(but=("390-dark",))
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_has_no_axe_violations(
    browser: Browser, quick_server: UiServer, chat: str, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 800}
    with window(browser, quick_server, color_scheme=scheme, viewport=size) as opened:
        opened.open()
        assert violations(opened) == []
        opened.open(chat)
        opened.reload()
        opened.page.locator(".hljs-keyword").first.wait_for()
        opened.page.locator("math").first.wait_for()
        opened.page.locator(".thoughts summary").click()
        opened.page.locator(".file summary").click()
        assert violations(opened) == []
        opened.page.get_by_role("button", name="Settings").click()
        opened.page.get_by_text("More sampling").click()
        assert violations(opened) == []
        opened.page.get_by_label("Settings").get_by_role("button", name="Close").click()
        opened.page.get_by_role("button", name="Export", exact=True).click()
        assert violations(opened) == []
        opened.page.get_by_role("button", name="Close").last.click()
        if width < 500:
            opened.page.get_by_role("button", name="Menu").click()
            assert violations(opened) == []
        opened.page.get_by_role("button", name="Models").click()
        opened.page.get_by_role("listitem").filter(has_text="Loaded").wait_for()
        assert violations(opened) == []
        opened.page.get_by_role("button", name="Close").last.click()
        opened.open("#compare")
        opened.reload()  # without the menu
        for toggle in opened.page.get_by_role("button", name="Settings").all():
            toggle.click()
        assert violations(opened) == []
        for toggle in opened.page.get_by_role("button", name="Settings").all():
            toggle.click()
        opened.say("What is 7 + 5?")
        opened.wait_for_answers(2)
        opened.page.get_by_role("button", name="Where the time went").first.click()
        assert violations(opened) == []
        opened.open("#live")
        expect(opened.page.locator("canvas")).to_have_count(7)
        assert violations(opened) == []
        # Nothing is wider than the screen.
        assert opened.page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_page_is_usable_by_keyboard_alone(browser: Browser, quick_server: UiServer) -> None:
    with window(browser, quick_server, reduced_motion="reduce") as opened:
        opened.open()
        press = opened.page.keyboard.press
        opened.page.locator("body").focus()
        expect(opened.page.get_by_role("textbox", name="Say something")).to_be_focused()
        opened.page.keyboard.type("What is 7 + 5?")
        press("Enter")
        opened.wait_for_answers(1)
        reached = set()
        for _ in range(160):
            press("Tab")
            reached.add(
                opened.page.evaluate(
                    "() => document.activeElement.getAttribute('aria-label') "
                    "?? document.activeElement.textContent"
                )
            )
        wanted = {"New chat", "Copy", "Answer again", "Settings", "Export", "Model", "Language"}
        assert wanted <= reached, reached
        assert {"Live engine", "Chat"} <= reached
        style = "() => getComputedStyle(document.querySelector('.new-chat')).transitionDuration"
        assert opened.page.evaluate(style) == "0s"


@pytest.mark.nightly(but=("de-AT",))
@pytest.mark.parametrize(
    ("locale", "send", "tag"),
    [("de-AT", "Senden", "de"), ("zh-CN", "发送", "zh-CN"), ("fr-FR", "Send", "en")],
)
def test_page_has_the_language_of_the_browser(
    browser: Browser, quick_server: UiServer, locale: str, send: str, tag: str
) -> None:
    with window(browser, quick_server, locale=locale) as opened:
        opened.open()
        expect(opened.page.get_by_role("button", name=send, exact=True)).to_be_visible()
        assert opened.page.locator("html").get_attribute("lang") == tag


@pytest.mark.nightly
def test_a_language_can_be_chosen_and_is_kept(browser: Browser, quick_server: UiServer) -> None:
    with window(browser, quick_server) as opened:
        opened.open()
        opened.page.get_by_label("Language").select_option("de")
        expect(opened.page.get_by_role("button", name="Neuer Chat")).to_be_visible()
        opened.reload()
        expect(opened.page.get_by_role("button", name="Neuer Chat")).to_be_visible()
        opened.page.get_by_label("Sprache").select_option("zh-CN")
        expect(opened.page.get_by_role("heading", name="我们聊点什么")).to_be_visible()


@pytest.mark.nightly
def test_every_text_is_there_in_every_language(browser: Browser, quick_server: UiServer) -> None:
    read = f"""async (root) => {{
      const {{TEXTS, LANGUAGES}} = {LOAD}('core/texts.js');
      return [LANGUAGES.length, Object.entries(TEXTS)];
    }}"""
    with window(browser, quick_server) as opened:
        opened.open()
        count, rows = opened.page.evaluate(read)
    for key, texts in rows:
        assert len(texts) == count, key
        assert all(texts), key
        assert len({tuple(sorted(re.findall(r"\{\w+\}", text))) for text in texts}) == 1, key
