"""Two chats side by side, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from fastovms.server_config import DEMO_MODEL
from tests.ui.browser import UiServer, ui_server, window

pytestmark = pytest.mark.nightly

STORY = "Tell me a story."


@pytest.fixture(scope="module")
def two_models() -> Iterator[UiServer]:
    flags = ("--model", f"one={DEMO_MODEL}", "--model", f"two={DEMO_MODEL}")
    with ui_server(*flags, step_seconds=0.02) as server:
        yield server


def test_two_models_answer_one_prompt_together_with_their_speed(
    browser: Browser, two_models: UiServer
) -> None:
    with window(browser, two_models) as opened:
        opened.open()
        opened.page.get_by_role("link", name="Side by side").click()
        columns = [opened.page.get_by_role("region", name=name) for name in ("Left", "Right")]
        for column, model in zip(columns, ("one", "two"), strict=True):
            expect(column.get_by_label("Model", exact=True).first).to_have_value(model)
            column.get_by_role("button", name="Settings").click()
            column.get_by_label("Max tokens").fill("40")
            column.get_by_role("button", name="Settings").click()
        opened.say(STORY)
        for column in columns:
            expect(column.locator(".growing")).to_contain_text(" ")
        expect(opened.page.locator(".growing")).to_have_count(2)  # they come together
        for column in columns:
            expect(column.locator(".statistics")).to_contain_text(re.compile(r"[\d.]+ tokens/s"))
            column.get_by_role("button", name="Where the time went").click()
            expect(column.locator(".timing")).to_contain_text("Decode")
        opened.say("And then?")
        expect(opened.page.locator(".statistics")).to_have_count(4)
        assert not two_models.ask("GET", "/v1/conversations")["data"]  # nothing is kept
        opened.page.get_by_role("button", name="New comparison").click()
        expect(opened.page.locator(".message")).to_have_count(0)
        expect(opened.page.get_by_text("One prompt, two answers")).to_be_visible()


def test_two_settings_of_one_model_are_compared_and_kept(
    browser: Browser, quick_server: UiServer
) -> None:
    with window(browser, quick_server) as opened:
        opened.open("#compare")
        columns = [opened.page.get_by_role("region", name=name) for name in ("Left", "Right")]
        for column, most in zip(columns, ("4", "12"), strict=True):
            column.get_by_role("button", name="Settings").click()
            column.get_by_label("Temperature").fill("0")
            column.get_by_label("Max tokens").fill(most)
        columns[1].get_by_label("JSON schema of the answer").fill("[")
        opened.say(STORY)  # the right one cannot be sent: neither is
        expect(columns[1].get_by_text("This is no JSON object.")).to_be_visible()
        expect(opened.page.locator(".message")).to_have_count(0)
        columns[1].get_by_label("JSON schema of the answer").fill("")
        opened.page.keyboard.press("Escape")
        expect(columns[1].locator(".compare-settings")).to_be_hidden()
        opened.page.get_by_role("textbox", name="Say something").press("Enter")
        for column, most in zip(columns, ("4", "12"), strict=True):
            expect(column.locator(".statistics")).to_contain_text(f"{most} tokens")
        short, long = opened.answers()
        assert long.startswith(short)
        opened.reload()
        columns[0].get_by_role("button", name="Settings").click()
        expect(columns[0].get_by_label("Max tokens")).to_have_value("4")
        opened.page.get_by_role("link", name="Chat", exact=True).click()
        opened.page.get_by_role("button", name="Settings").click()
        expect(opened.page.locator("#set-maxTokens")).to_have_value("")  # those of the chat


def test_stop_ends_both_answers(browser: Browser, two_models: UiServer) -> None:
    with window(browser, two_models, viewport={"width": 390, "height": 800}) as opened:
        opened.open("#compare")
        opened.say(STORY)
        expect(opened.page.locator(".growing")).to_have_count(2)
        opened.page.get_by_role("button", name="Stop").click()
        expect(opened.page.locator(".cut")).to_have_text([re.compile("You stopped the answer")] * 2)
        assert opened.page.evaluate("() => document.documentElement.scrollWidth") <= 390
