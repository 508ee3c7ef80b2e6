"""The live engine on the page, in a real browser."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, expect

from fastovms.server_config import DEMO_MODEL
from tests.encoder_models import encoder_dir
from tests.image_models import diffusion_dir
from tests.ui.browser import UiServer, Window, ui_server, window
from tests.ui.test_page_access import violations

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
        expect(numbers.filter(has_text="KV cache in use")).to_contain_text("%")
        for part in ("Weights", "KV cache, at most", "Rest of the server"):
            size = numbers.filter(has_text=re.compile(f"^{part}")).locator("dd")
            expect(size).to_have_text(re.compile(r"^\d[\d,]* MB$"))
        listed = opened.page.locator(".work-list li")
        expect(listed).to_have_text(["/v1/completionsCancel"])
        expect(opened.page.locator(".chart canvas")).to_have_count(7)
        opened.page.locator(".live select").select_option("demo_model")
        expect(running).to_have_text("1")
        work.join()
        expect(running).to_have_text("0")
        expect(listed).to_have_count(0)


def test_live_view_shows_the_steps_of_images_and_cancels_them(browser: Browser) -> None:
    with (
        ui_server("--model", f"painter={diffusion_dir()}") as server,
        window(browser, server) as opened,
        ThreadPoolExecutor() as threads,
    ):
        opened.open()
        expect(opened.page.get_by_role("link", name="Chat", exact=True)).to_be_hidden()
        body = {"prompt": "a cat", "size": "1024x1024", "num_inference_steps": 100, "n": 10}
        work = threads.submit(server.ask, "POST", "/v1/images/generations", body)
        item = opened.page.locator(".work-list li")
        expect(item).to_contain_text("/v1/images/generations")
        expect(item).to_contain_text(re.compile(r"Step [1-9]\d* of 1,000"))
        expect(item.get_by_role("progressbar")).to_have_attribute("max", "1000")
        assert violations(opened) == []
        item.get_by_role("button", name="Cancel /v1/images/generations").click()
        expect(item).to_have_count(0)
        with pytest.raises(OSError, match=r"(?i)connection"):
            work.result()


def test_an_image_is_made_shown_and_stopped(browser: Browser) -> None:
    models = ("--model", str(DEMO_MODEL), "--model", f"painter={diffusion_dir()}")
    with ui_server(*models) as server, window(browser, server) as opened:
        opened.open()
        page = opened.page
        expect(page.get_by_label("Model", exact=True).locator("option")).to_have_text(
            ["demo_model"]
        )
        page.get_by_role("link", name="Images").click()
        prompt = page.get_by_role("textbox", name="Describe the image")
        prompt.fill("A lighthouse")
        page.get_by_role("button", name="Make").click()
        image = page.get_by_role("img", name="A lighthouse")
        expect(prompt).to_be_focused()
        expect(image).to_be_visible()
        assert image.evaluate("async (one) => (await one.decode(), one.naturalWidth)") == 64
        assert violations(opened) == []
        page.route("**/v1/images/generations", lambda route: None)  # an answer that never comes
        prompt.fill("A storm")
        page.get_by_role("button", name="Make").click()
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("figure")).to_have_count(1)
        page.unroute("**/v1/images/generations")
        refusal = {"error": {"message": "too many requests wait"}}
        page.route("**/v1/images/generations", lambda one: one.fulfill(status=429, json=refusal))
        page.get_by_role("button", name="Make").click()
        expect(page.get_by_role("alert")).to_have_text("too many requests wait")


def shown(opened: Window) -> set[str]:
    """The names of the numbers and charts that can be seen."""
    names = opened.page.locator(".numbers dt, .chart h3").filter(visible=True)
    return set(names.all_inner_texts())


ALWAYS = {
    *("Tokens/s in", "Running", "Waiting", "Errors/min", "Tokens a second", "Sequences"),
    *("Weights", "Child processes", "Rest of the server"),
}
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
        assert len(asked) <= 8, "two requests about once a second"
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
