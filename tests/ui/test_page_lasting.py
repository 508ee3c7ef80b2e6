"""Chats on the page that outlive what happens to them: a stop, a reload, a restart; keys; servers
that keep nothing, or lie behind a proxy's path."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from tests.ui.browser import UiServer, Window, start_ui_server, ui_server, window

pytestmark = pytest.mark.nightly

LONG = "Tell me a story."


def begin_long_answer(opened: Window) -> None:
    """Asks for an answer that takes some seconds, and returns when its beginning is there."""
    opened.open()
    opened.set(temperature="0")
    opened.say(LONG)
    expect(opened.page.locator(".growing")).to_contain_text(" ")


def test_an_answer_goes_on_over_a_reload_and_on_another_device(
    browser: Browser, slow_server: UiServer
) -> None:
    with window(browser, slow_server) as first, window(browser, slow_server) as second:
        begin_long_answer(first)
        first.reload()
        expect(first.page.locator(".message.user")).to_have_text(LONG)
        second.open(f"#{urlsplit(first.page.url).fragment}")
        expect(second.page.locator(".growing")).to_contain_text(" ")
        first.wait_for_answers(1)
        second.wait_for_answers(1)
        assert first.answers() == second.answers()
        [chat] = [
            one
            for one in slow_server.ask("GET", "/v1/conversations")["data"]
            if first.page.url.endswith(one["id"])
        ]
        items = slow_server.ask("GET", f"/v1/conversations/{chat['id']}/items?order=asc")["data"]
        assert [item["role"] for item in items] == ["user", "assistant"]


def test_answer_cut_by_a_restart_can_be_asked_again(browser: Browser, tmp_path: Path) -> None:
    flags = ("--state-dir", str(tmp_path), "--no-resume")
    server = start_ui_server(*flags, step_seconds=0.04)
    try:
        with window(browser, server) as opened:
            begin_long_answer(opened)
            server.stop()
            expect(opened.page.get_by_role("status").filter(has_text="connection")).to_be_visible()
            port = str(urlsplit(server.url).port)
            server = start_ui_server(*flags, "--port", port)
            failure = opened.page.locator(".failure")
            expect(failure).to_contain_text("was stopped before")
            opened.reload()
            expect(opened.page.locator(".message.user")).to_have_text(LONG)
            failure.get_by_role("button", name="Answer again").click()
            opened.wait_for_answers(1)
            expect(failure).to_have_count(0)
            expect(opened.page.locator(".message")).to_have_count(2)
    finally:
        server.stop()


def test_a_key_is_asked_for_until_it_is_right(browser: Browser) -> None:
    """The server lies behind a proxy, which leaves a path in front of all others."""
    with (
        ui_server("--root-path", "/llm", key="right") as server,
        window(browser, server) as opened,
    ):
        opened.page.goto(f"{server.url}/llm")
        dialog = opened.page.get_by_role("dialog", name="API key")
        dialog.get_by_label("Key").fill("wrong")
        dialog.get_by_role("button").click()
        expect(dialog).to_contain_text("does not know this key")
        dialog.get_by_label("Key").fill("schlüssel 中")  # no header of a request can carry it
        dialog.get_by_role("button").click()
        assert dialog.get_by_label("Key").evaluate("(field) => field.validity.patternMismatch")
        dialog.get_by_label("Key").fill("right")
        dialog.get_by_role("button").click()
        opened.page.wait_for_selector("html[data-ready]")
        opened.say("What is 7 + 5?")
        opened.wait_for_answers(1)
        opened.reload()  # the key is still there, in this tab alone
        opened.wait_for_answers(1)
        in_all_tabs, in_this_tab = opened.page.evaluate(
            "() => [localStorage, sessionStorage].map((kept) => Object.values({...kept}).join())"
        )
        assert "right" in in_this_tab
        assert "right" not in in_all_tabs
        opened.page.get_by_role("link", name="Live engine").click()
        expect(opened.page.locator(".numbers")).to_contain_text("KV")
        for path in ("/llm/", "/"):
            opened.page.goto(server.url + path)
            opened.page.wait_for_selector("html[data-ready]")
            expect(opened.page.locator("select.model")).to_have_value("demo_model")


def test_chats_without_a_store_stay_in_the_tab(browser: Browser) -> None:
    with (
        ui_server("--no-enable-store", step_seconds=0.02) as server,
        window(browser, server) as opened,
    ):
        opened.open()
        expect(opened.page.get_by_text("This server keeps no chats")).to_be_visible()
        opened.set(temperature="0")
        opened.say("My name is Alice.")
        opened.wait_for_answers(1)
        opened.say("What is my name?")
        opened.wait_for_answers(2)
        assert "Alice" in opened.answers()[1]
        opened.page.get_by_role("button", name="New chat").click()
        opened.say(LONG)
        expect(opened.page.locator(".growing")).to_contain_text(" ")
        opened.page.get_by_role("button", name="Stop").click()
        opened.wait_for_answers(1)
        opened.page.get_by_role("link", name="My name is Alice.").click()
        expect(opened.page.locator(".message")).to_have_count(4)
