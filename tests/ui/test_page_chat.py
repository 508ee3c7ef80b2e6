"""Chats on the page, in a real browser: answers, tools, branches, settings, export."""

from __future__ import annotations

import base64
import json
import re

import pytest
from playwright.sync_api import Browser, expect

from tests.media.pictures import png
from tests.paths import TINY_VLM
from tests.ui.browser import DROP, PASTE, UiServer, Window, ui_server, window

pytestmark = pytest.mark.nightly(
    but=(
        "a_chat_is_answered_and_found_again",
        "tool_call_is_answered",
    )
)

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def test_a_chat_is_answered_and_found_again(browser: Browser, quick_server: UiServer) -> None:
    with window(browser, quick_server) as first:
        first.open()
        first.set(temperature="0")
        first.say("What is 7 + 5?")
        first.wait_for_answers(1)
        first.say("My name is Alice.")
        first.wait_for_answers(2)
        answers = first.answers()
        assert "12" in answers[0]
        statistics = first.page.locator(".statistics").first.inner_text()
        assert re.search(r"first token after [\d.]+ s", statistics)
        assert re.search(r"\d+ tokens\b", statistics)
        assert re.search(r"\d+ of \d+ prompt tokens cached", statistics)
        first.reload()
        expect(first.page.locator(".message")).to_have_count(4)
        assert first.answers() == answers
        assert first.page.locator(".statistics").count() == 2
        address = first.page.url
    with window(browser, quick_server) as second:  # another device
        second.open()
        second.page.get_by_role("link", name="What is 7 + 5?").first.click()
        expect(second.page.locator(".message")).to_have_count(4)
        assert second.answers() == answers
        assert second.page.url == address


def test_tool_call_is_answered_by_the_typed_output(
    browser: Browser, quick_server: UiServer
) -> None:
    with window(browser, quick_server) as opened:
        opened.open()
        opened.set(temperature="0", tools=json.dumps([TOOL]))
        opened.say("What is the weather in Paris?")
        card = opened.page.get_by_role("region", name="Call of a tool")
        expect(card).to_contain_text("get_weather")
        expect(card).to_contain_text('"city": "Paris"')
        card.get_by_role("textbox").fill('{"temperature": 18, "condition": "sunny"}')
        card.get_by_role("button", name="Send the output").click()
        expect(opened.page.locator(".answer .text")).to_contain_text("18")
        expect(opened.page.locator(".message")).to_have_count(2)
        expect(card).to_contain_text('"condition": "sunny"')
        opened.reload()
        expect(opened.page.locator(".answer .text")).to_contain_text("18")
        opened.page.get_by_role("button", name="Settings").click()
        expect(opened.page.locator("#set-tools")).to_have_value(re.compile("get_weather"))


def test_edited_message_starts_a_branch_of_the_chat(
    browser: Browser, quick_server: UiServer
) -> None:
    with window(browser, quick_server) as opened:
        opened.open()
        opened.set(temperature="0")
        opened.say("My name is Alice.")
        opened.wait_for_answers(1)
        opened.say("What is my name?")
        opened.wait_for_answers(2)
        opened.edit_first("My name is Bob.")
        expect(opened.page.locator(".variants")).to_have_text("2 of 2")
        opened.wait_for_answers(1)
        opened.say("What is my name?")
        opened.wait_for_answers(2)
        assert "Bob" in opened.answers()[1]
        opened.page.get_by_role("button", name="Previous branch").click()
        expect(opened.page.locator(".message.user").first).to_contain_text("Alice")
        assert "Alice" in opened.answers()[1]
        opened.page.locator(".message:not(.user)").last.get_by_role(
            "button", name="Answer again"
        ).click()
        expect(opened.page.locator(".variants")).to_have_count(2)
        expect(opened.page.locator(".variants").last).to_have_text("2 of 2")
        opened.wait_for_answers(2)
        opened.reload()
        expect(opened.page.locator(".variants").first).to_have_text("1 of 2")
        links = opened.page.get_by_role("link", name=re.compile("My name is Alice"))
        expect(links).to_have_count(1)  # one entry for all branches
        opened.page.on("dialog", lambda dialog: dialog.accept())
        links.hover()
        opened.page.get_by_role("button", name="Delete this chat").first.click()
        expect(links).to_have_count(0)
        expect(opened.page.get_by_role("heading", name="What shall we talk about?")).to_be_visible()


def test_request_has_the_settings_of_the_page(browser: Browser, quick_server: UiServer) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    with window(browser, quick_server) as opened:
        opened.open()
        opened.set(schema="{", temperature="0")
        opened.say("My name is Alice.")  # it is not sent: the schema is no JSON
        expect(opened.page.locator("#set-fault-schema")).to_have_text("This is no JSON object.")
        expect(opened.page.get_by_role("textbox", name="Say something")).to_have_value(
            "My name is Alice."
        )
        opened.page.locator("#set-schema").fill(json.dumps(schema))
        opened.page.locator("#set-seed").fill("7")
        opened.page.locator("#set-maxTokens").fill("60")
        opened.page.locator("#set-logprobs").check()
        opened.page.locator("#set-instructions").fill("You answer in JSON.")
        with opened.page.expect_request("**/v1/responses") as asked:
            opened.say("My name is Alice.")
        body = asked.value.post_data_json
        assert body is not None
        assert (body["seed"], body["max_output_tokens"]) == (7, 60)
        assert (body["temperature"], body["instructions"]) == (0, "You answer in JSON.")
        assert body["text"]["format"]["schema"] == schema
        opened.wait_for_answers(1)
        assert "name" in json.loads(opened.answers()[0])

        opened.page.get_by_role("button", name="Show tokens").click()
        opened.page.locator(".token").first.focus()
        opened.page.keyboard.press("ArrowRight")
        expect(opened.page.locator(".token").nth(1)).to_be_focused()
        assert opened.page.locator(".alternative").count() >= 2
        expect(opened.page.locator(".alternative.chosen")).to_have_count(1)
        opened.page.get_by_role("button", name="Show tokens").click()
        assert "name" in json.loads(opened.answers()[0])


def test_exported_program_repeats_the_request(browser: Browser, quick_server: UiServer) -> None:
    with window(browser, quick_server) as opened:
        opened.open()
        opened.set(temperature="0", seed="3")
        opened.say("What's 7 + 5?")
        opened.wait_for_answers(1)
        opened.page.get_by_role("button", name="Export", exact=True).click()
        snippet = opened.page.locator(".snippet")
        chat = json.loads(snippet.inner_text())
        assert [item["role"] for item in chat["items"]] == ["user", "assistant"]
        opened.page.get_by_label("Format").select_option("curl")
        assert snippet.inner_text().startswith(f"curl {quick_server.url}/v1/responses")
        assert r"What'\''s 7 + 5?" in snippet.inner_text()
        opened.page.get_by_label("Format").select_option("python")
        program = snippet.inner_text()
        compile(program, "snippet", "exec")
        assert 'extra_body={"seed": 3}' in program
        with opened.page.expect_download() as download:
            opened.page.get_by_role("button", name="Save").click()
        assert download.value.suggested_filename == "chat.py"


def test_refused_request_is_shown_and_can_be_repeated(
    browser: Browser, quick_server: UiServer
) -> None:
    with window(browser, quick_server) as opened:
        opened.open()
        opened.set(tools='[{"type": "function"}]', temperature="0")
        opened.say("What is 7 + 5?")
        failure = opened.page.locator(".failure")
        expect(failure).to_contain_text("name")
        opened.set(tools="")
        failure.get_by_role("button", name="Answer again").click()
        opened.wait_for_answers(1)
        expect(failure).to_have_count(0)
        assert "12" in opened.answers()[0]


def test_images_are_sent_to_a_model_that_sees(browser: Browser) -> None:
    picture = base64.b64encode(png(8, 8)).decode()
    with ui_server(str(TINY_VLM)) as server, window(browser, server) as opened:
        opened.open()
        opened.set(maxTokens="4")
        for way in (PASTE, DROP):
            opened.hand_over(way, "a.png", png(8, 8), "image/png")
        thumbnails = opened.page.locator(".thumbnail")
        expect(thumbnails).to_have_count(2)
        thumbnails.first.get_by_role("button", name="Remove").click()
        expect(thumbnails).to_have_count(1)
        with opened.page.expect_request("**/v1/responses") as asked:
            opened.say("what?")
        [message] = asked.value.post_data_json["input"]  # type: ignore[index]
        assert [part["type"] for part in message["content"]] == ["input_image", "input_text"]
        assert message["content"][0]["image_url"] == f"data:image/png;base64,{picture}"
        opened.wait_for_answers(1)
        expect(opened.page.locator(".bubble img")).to_have_count(1)
        opened.reload()
        expect(opened.page.locator(".bubble img")).to_have_count(1)
        # One that lies elsewhere is not loaded.
        address = "https://elsewhere.example/a.png"
        parts = [{"type": "input_image", "image_url": address}]
        opened.open(f"#chat/{server.conversation('Far', [{'role': 'user', 'content': parts}])}")
        opened.reload()
        expect(opened.page.locator(".bubble")).to_contain_text(address)
        expect(opened.page.locator(".bubble img")).to_have_count(0)


def test_unreachable_server_is_reported(browser: Browser, quick_server: UiServer) -> None:
    title = "A chat that cannot be had"
    quick_server.conversation(title, [{"role": "user", "content": title}])
    with window(browser, quick_server) as opened:
        opened.open()
        opened.page.route("**/v1/conversations/conv*", lambda route: route.abort())
        opened.page.get_by_role("link", name=title).click()
        expect(
            opened.page.get_by_role("alert").filter(has_text="cannot be reached")
        ).to_be_visible()
        opened.page.get_by_role("button", name="New chat").click()
        opened.page.route("**/v1/conversations", lambda route: route.abort())
        opened.say("Hello?")
        failure = opened.page.locator(".failure")
        expect(failure).to_contain_text("The server cannot be reached.")
        opened.page.unroute_all()
        failure.get_by_role("button", name="Answer again").click()
        opened.wait_for_answers(1)


def test_back_and_forward_lead_from_chat_to_chat(browser: Browser, quick_server: UiServer) -> None:
    for name in ("Alpaca", "Bison"):
        quick_server.conversation(name, [{"role": "user", "content": f"About the {name}"}])
    with window(browser, quick_server) as opened:
        opened.open()
        message = opened.page.locator(".message.user .bubble")
        for name in ("Alpaca", "Bison"):
            opened.page.get_by_role("link", name=name).first.click()
            expect(message).to_have_text(f"About the {name}")
        opened.page.go_back()
        expect(message).to_have_text("About the Alpaca")
        opened.page.get_by_role("button", name="New chat").click()
        expect(message).to_have_count(0)
        opened.page.go_back()
        expect(message).to_have_text("About the Alpaca")
        opened.page.get_by_role("link", name="Side by side").click()
        opened.page.get_by_role("link", name="Chat", exact=True).click()
        expect(message).to_have_text("About the Alpaca")
        opened.page.get_by_role("link", name="Chat", exact=True).click()
        expect(message).to_have_text("About the Alpaca")
        for _ in range(3):
            opened.page.go_back()
        opened.page.go_forward()
        expect(message).to_have_text("About the Alpaca")


def test_question_of_another_window_is_shown_on_focus(
    browser: Browser, quick_server: UiServer
) -> None:
    with window(browser, quick_server) as one:
        one.open()
        one.say("Asked in one window")
        one.wait_for_answers(1)
        other = Window(one.page.context.new_page(), quick_server)
        other.watch()
        other.open(one.page.url.partition("#")[1] + one.page.url.partition("#")[2])
        other.wait_for_answers(1)
        other.say("Asked in the other")
        other.wait_for_answers(2)
        one.page.evaluate("() => dispatchEvent(new Event('focus'))")
        expect(one.page.locator(".message.user").nth(1)).to_have_text("Asked in the other")
        one.wait_for_answers(2)
        assert other.faults == []
