"""The page `/docs`, in a real browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.ui.browser import UiServer, window
from tests.ui.test_page_access import violations


@pytest.fixture(scope="module")
def page(browser: Browser, quick_server: UiServer) -> Any:
    permissions = ["clipboard-read", "clipboard-write"]
    with window(browser, quick_server, permissions=permissions) as opened:
        opened.page.goto(f"{quick_server.url}/docs")
        opened.page.get_by_role("heading", name="What to try").wait_for()
        yield opened.page


def test_start_page_leads_to_an_example_that_is_answered(page: Page) -> None:
    page.get_by_role("link", name="Start").click()
    expect(page.locator("main pre")).to_contain_text("/v1/chat/completions'")
    page.get_by_role("link", name="Ask a model").click()
    body = page.get_by_role("textbox", name="Body")
    expect(body).to_have_value(re.compile(r'"model": "demo_model"'))
    page.get_by_role("button", name="Send").click()
    expect(page.locator("main section pre")).to_contain_text("200 OK")
    expect(page.locator("main section pre")).to_contain_text('"choices"')
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.get_by_role("status")).to_have_text("Copied")
    command = page.evaluate("() => navigator.clipboard.readText()")
    assert re.match(r"curl -X POST 'http://[^']*/v1/chat/completions' \\\n", command)


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["#", "#post_v1_chat_completions"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_docs_page_has_no_axe_violations(
    browser: Browser, quick_server: UiServer, place: str, scheme: str
) -> None:
    with window(browser, quick_server, color_scheme=scheme) as opened:
        opened.page.goto(f"{quick_server.url}/docs{place}")
        opened.page.get_by_role("heading", level=1).wait_for()
        assert violations(opened) == []


def test_an_operation_is_one_entry_that_lists_its_dialects(page: Page) -> None:
    page.get_by_role("link", name="Start").click()
    entries = page.get_by_role("navigation", name="Operations").get_by_role("link")
    chats = entries.filter(has_text="chat/completions")
    texts = chats.all_inner_texts()
    assert len([text for text in texts if text.endswith("/chat/completions")]) == 1
    page.get_by_role("searchbox", name="Filter").fill("/v3/chat/completions")
    expect(entries.filter(has_text="/chat/completions").first).to_be_visible()
    entries.filter(has_text="/chat/completions").first.click()
    paths = page.get_by_role("navigation", name="Paths of this operation").get_by_role("link")
    expect(paths.filter(has_text=re.compile("^/v1/chat/completions"))).to_contain_text("OpenAI")
    paths.filter(has_text=re.compile("^/v3/chat/completions")).click()
    expect(page.locator("h1")).to_contain_text("/v3/chat/completions")
    page.get_by_role("searchbox", name="Filter").fill("")


def test_fields_have_the_descriptions_of_the_field_table(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#post_v1_chat_completions")
    field = page.locator("main li").filter(has=page.locator("code", has_text="top_p")).first
    expect(field.locator(".meaning")).to_have_text(re.compile(r"\w+ \w+"))


def test_path_of_a_model_is_filled_with_a_model(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#get_v1_models_id")
    expect(page.locator("main section input").first).to_have_value("demo_model")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("main section pre")).to_contain_text('"id": "demo_model"')
