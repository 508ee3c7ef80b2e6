"""The live engine on the page, in a real browser."""

from __future__ import annotations

import re
import threading

import pytest
from playwright.sync_api import Browser, expect

from fastovms.server_config import DEMO_MODEL
from tests.encoder_models import encoder_dir
from tests.ui.browser import UiServer, Window, ui_server, window

pytestmark = pytest.mark.nightly


def test_live_view_shows_running_requests(browser: Browser, slow_server: UiServer) -> None:
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


def shown(opened: Window) -> set[str]:
    """The names of the numbers and charts that can be seen."""
    names = opened.page.locator(".numbers dt, .chart h3").filter(visible=True)
    return set(names.all_inner_texts())


ALWAYS = {"Tokens/s in", "Running", "Waiting", "Errors/min", "Tokens a second", "Sequences"}
OF_ENCODING = {"Texts/s", "Texts a batch", "Padding", "Texts embedded and scored"}


def test_models_that_encode_texts_have_no_cache_and_no_chat(browser: Browser) -> None:
    models = (f"chat={DEMO_MODEL}", f"emb={encoder_dir()}", f"rank={encoder_dir(1)}")
    flags = [word for model in models for word in ("--model", model)]
    with ui_server(*flags) as server, window(browser, server) as opened:
        opened.open()
        expect(opened.page.get_by_label("Model").locator("option")).to_have_text(["chat"])
        opened.open("#live")
        choice = opened.page.locator(".live select")
        expect(choice).to_be_visible()
        every = shown(opened)
        assert every > ALWAYS | OF_ENCODING | {"KV cache in use", "Gap between tokens"}
        choice.select_option("rank")
        seen = shown(opened)
        assert seen > ALWAYS | OF_ENCODING
        assert seen - ALWAYS - OF_ENCODING == {"Errors a minute"}
        body = {"model": "rank", "query": "the city", "documents": ["light", "of the river"] * 9}
        assert len(server.ask("POST", "/v3/rerank", body)["results"]) == 18
        numbers = opened.page.locator(".numbers > div")
        speed = numbers.filter(has_text="Texts/s").locator("dd")
        expect(speed).to_have_text(re.compile("^[1-9]"))
        expect(opened.page.locator(".chart:visible canvas")).to_have_count(4)
        choice.select_option("chat")
        assert shown(opened) == every - OF_ENCODING
        expect(opened.page.locator(".chart:visible canvas")).to_have_count(7)


def test_a_server_that_only_encodes_shows_its_engine(browser: Browser) -> None:
    with ui_server("--model", f"emb={encoder_dir()}") as server, window(browser, server) as opened:
        opened.open()
        expect(opened.page.get_by_role("heading", name="Live engine")).to_be_visible()
        expect(opened.page.get_by_role("link", name="Chat", exact=True)).to_be_hidden()
        expect(opened.page.get_by_role("button", name="New chat")).to_be_hidden()
        assert "KV cache in use" not in shown(opened)


def test_live_view_polls_only_while_visible(browser: Browser, quick_server: UiServer) -> None:
    with window(browser, quick_server) as opened:
        asked: list[str] = []
        polled = re.compile(r"/metrics\?")
        opened.open("#live")
        for _ in range(2):
            with opened.page.expect_request(polled, timeout=60_000):
                pass
        opened.page.on("request", lambda one: asked.append(one.url))
        opened.page.wait_for_timeout(2000)
        assert len(asked) <= 4, "about once a second"
        hide = (
            "(state) => { Object.defineProperty(document, 'hidden', {value: state, "
            "configurable: true}); document.dispatchEvent(new Event('visibilitychange')); }"
        )
        opened.page.evaluate(hide, True)
        opened.page.wait_for_timeout(1200)
        asked.clear()
        opened.page.wait_for_timeout(1500)
        assert asked == []
        with opened.page.expect_request(polled, timeout=60_000):
            opened.page.evaluate(hide, False)
        opened.page.get_by_role("link", name="Chat", exact=True).click()
        opened.page.wait_for_timeout(1200)
        asked.clear()
        opened.page.wait_for_timeout(1500)
        assert asked == []
