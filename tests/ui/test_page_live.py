"""The live engine on the page, in a real browser."""

from __future__ import annotations

import re
import threading

from playwright.sync_api import Browser, expect

from tests.ui.browser import UiServer, window


def test_what_the_engine_does_is_shown(browser: Browser, slow_server: UiServer) -> None:
    body = {"model": "demo_model", "prompt": "Once", "max_tokens": 120, "ignore_eos": True}
    with window(browser, slow_server) as opened:
        opened.open("#live")
        work = threading.Thread(target=slow_server.ask, args=("POST", "/v1/completions", body))
        work.start()
        numbers = opened.page.locator(".numbers > div")
        running = numbers.filter(has_text="Running").locator("dd")
        expect(running).to_have_text("1")
        speed = numbers.filter(has_text="Tokens/s out").locator("dd")
        expect(speed).to_have_text(re.compile(r"^\d+(\.\d)?$"))
        expect(numbers.filter(has_text="KV cache").locator("dd")).to_have_text(re.compile("%"))
        expect(opened.page.locator(".chart canvas")).to_have_count(7)
        opened.page.locator(".live select").select_option("demo_model")
        expect(running).to_have_text("1")
        work.join()
        expect(running).to_have_text("0")


def test_it_asks_once_a_second_and_not_while_nobody_looks(
    browser: Browser, quick_server: UiServer
) -> None:
    with window(browser, quick_server) as opened:
        asked: list[str] = []
        opened.page.on("request", lambda one: asked.append(one.url))
        opened.open("#live")
        opened.page.wait_for_timeout(3200)
        assert 2 <= sum("/metrics?" in url for url in asked) <= 5
        hide = (
            "(state) => { Object.defineProperty(document, 'hidden', {value: state, "
            "configurable: true}); document.dispatchEvent(new Event('visibilitychange')); }"
        )
        opened.page.evaluate(hide, True)
        opened.page.wait_for_timeout(1200)
        asked.clear()
        opened.page.wait_for_timeout(1500)
        assert asked == []
        opened.page.evaluate(hide, False)
        opened.page.wait_for_timeout(500)
        assert asked
        opened.page.get_by_role("link", name="Chat", exact=True).click()
        opened.page.wait_for_timeout(1200)
        asked.clear()
        opened.page.wait_for_timeout(1500)
        assert asked == []
