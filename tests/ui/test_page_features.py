"""The list of chats, files, sampling, code and the use of the context, in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from fastovms.server_config import DEMO_MODEL
from tests.media.pdf_files import pdf_file
from tests.ui.browser import DEADLINE, DROP, PASTE, UiServer, ui_server, window

pytestmark = pytest.mark.nightly(but=("test_text_file_is_sent_and_shown_with_its_message[paste]",))

STORY = "Tell me a story."


def test_sampling_fields_are_sent_and_max_tokens_have_a_default(
    browser: Browser, quick_server: UiServer
) -> None:
    given = {
        "topP": "0.9",
        "topK": "20",
        "minP": "0.05",
        "repetitionPenalty": "1.1",
        "frequencyPenalty": "0.2",
        "presencePenalty": "-0.3",
    }
    with window(browser, quick_server) as opened:
        opened.open()
        opened.page.get_by_role("button", name="Settings").click()
        opened.page.get_by_text("More sampling").click()
        for name, value in given.items():
            opened.page.locator(f"#set-{name}").fill(value)
        most = opened.page.locator("#set-maxTokens")
        expect(most).to_have_attribute("placeholder", "1,024")  # half of the context
        opened.page.locator("#set-topP").fill("2")  # out of range: it is not sent
        opened.page.get_by_text("More sampling").click()
        opened.say("What is 7 + 5?")
        expect(opened.page.locator("#set-topP")).to_be_visible()
        opened.page.locator("#set-topP").fill("0.9")
        with opened.page.expect_request("**/v1/responses") as asked:
            opened.say("What is 7 + 5?")
        body = asked.value.post_data_json
        assert body is not None
        assert body["max_output_tokens"] == 1024
        found = [body[name] for name in ("top_p", "top_k", "min_p", "repetition_penalty")]
        assert found == [0.9, 20, 0.05, 1.1]
        assert (body["frequency_penalty"], body["presence_penalty"]) == (0.2, -0.3)


def test_chats_are_renamed_and_searched(browser: Browser) -> None:
    with ui_server() as server, window(browser, server) as opened:
        for title in ("Zebra", "Yak and gnu", "Xerus"):
            server.conversation(title, [{"role": "user", "content": title}])
        opened.open()
        links = opened.page.locator(".chat-list a")
        expect(links).to_have_count(3)
        search = opened.page.get_by_role("searchbox", name="Search chats")
        search.fill("gnu yak")
        expect(links).to_have_text(["Yak and gnu"])
        search.fill("nothing")
        expect(opened.page.get_by_text("No chat has this in its title.")).to_be_visible()
        search.fill("")
        expect(links).to_have_count(3)
        zebra = opened.page.locator(".chat-list li").filter(has_text="Zebra")
        zebra.hover()
        zebra.get_by_role("button", name="Rename this chat").click()
        field = opened.page.get_by_role("textbox", name="Rename this chat")
        field.fill("Not kept")
        field.press("Escape")
        expect(opened.page.get_by_role("link", name="Zebra")).to_be_visible()
        zebra.hover()
        zebra.get_by_role("button", name="Rename this chat").click()
        field.fill("Quagga")
        field.press("Enter")
        expect(opened.page.get_by_role("link", name="Quagga")).to_be_focused()
        opened.reload()
        expect(opened.page.get_by_role("link", name="Quagga")).to_be_visible()


def test_search_reads_all_chats(browser: Browser) -> None:
    with ui_server() as server, window(browser, server) as opened:
        server.conversation("The oldest one", [])
        for number in range(100):
            server.ask("POST", "/v1/conversations", {"metadata": {"title": f"Chat {number}"}})
        opened.open()
        oldest = opened.page.get_by_role("link", name="The oldest one")
        expect(oldest).to_have_count(0)
        opened.page.get_by_role("searchbox", name="Search chats").fill("oldest")
        expect(oldest).to_be_visible()


def test_all_chats_are_exported_and_imported_with_their_branches(
    browser: Browser, quick_server: UiServer, tmp_path: Path
) -> None:
    with ui_server() as one, window(browser, one) as opened:
        opened.open()
        opened.set(maxTokens="8")
        opened.say("Alpha is first.")
        opened.wait_for_answers(1)
        opened.edit_first("Beta is first.")
        expect(opened.page.locator(".variants")).to_have_text("2 of 2")
        opened.wait_for_answers(1)
        answers = opened.answers()
        with opened.page.expect_download() as download:
            opened.page.get_by_role("button", name="Export all").click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        assert len(json.loads(path.read_text())["chats"]) == 2
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"chats": 1}')
    with ui_server() as other, window(browser, other) as opened:
        opened.open()
        chooser = opened.page.locator(".archive input")
        chooser.set_input_files(wrong)
        alert = opened.page.get_by_role("alert")
        expect(alert.filter(has_text="wrong.json is not a file of chats")).to_be_visible()
        chooser.set_input_files(path)
        link = opened.page.locator(".chat-list a")
        expect(link).to_have_count(1)  # one entry for both branches
        link.click()
        expect(opened.page.locator(".variants")).to_contain_text("of 2")
        if "Beta" not in opened.page.locator(".message.user").inner_text():
            opened.page.get_by_role("button", name="Next branch").click()
        expect(opened.page.locator(".message.user")).to_contain_text("Beta is first.")
        assert opened.answers() == answers


GOOD_CHAT = '{"metadata": {"title": "Good"}, "items": [{"role": "user", "content": "x"}]}'


BROKEN_CHATS = (
    ('[{"id": "a", "metadata": null, "items": []}]', "is not a file of chats"),
    ('[{"id": "a", "metadata": [], "items": []}]', "is not a file of chats"),
    ('[{"id": "a", "metadata": {}, "items": [null]}]', "is not a file of chats"),
    ('[{"id": "a", "metadata": {}, "items": {}}]', "is not a file of chats"),
    ("[null]", "is not a file of chats"),
    ('[{"metadata": {"title": 5}, "items": []}]', "title"),
    (f'[{GOOD_CHAT}, {{"metadata": {{}}, "items": [{{"type": "nonsense"}}]}}]', "nonsense"),
)


def test_files_of_broken_chats_are_refused_with_the_reason(browser: Browser) -> None:
    with ui_server() as server:
        for chats, alert in BROKEN_CHATS:
            content = f'{{"form": "fastovms.chats", "version": 1, "chats": {chats}}}'
            file = {
                "name": "<b>x</b>.json",
                "mimeType": "application/json",
                "buffer": content.encode(),
            }
            with window(browser, server) as opened:
                opened.open()
                opened.page.locator(".archive input").set_input_files(file)  # type: ignore[arg-type]
                expect(opened.page.get_by_role("alert").filter(has_text=alert)).to_be_visible()
                # Chats before the one that was refused are there.
                titles = ["Good"] * ("Good" in chats)
                expect(opened.page.locator(".chat-list a")).to_have_text(titles)


def test_colours_are_chosen_and_kept(browser: Browser, quick_server: UiServer) -> None:
    background = "() => getComputedStyle(document.body).backgroundColor"
    white, dark = "rgb(255, 255, 255)", "rgb(22, 24, 29)"
    with window(browser, quick_server, color_scheme="light") as opened:
        opened.open()
        choice = opened.page.get_by_label("Colours")
        assert opened.page.evaluate(background) == white
        choice.select_option("dark")
        assert opened.page.evaluate(background) == dark
        opened.reload()
        assert opened.page.evaluate(background) == dark
        choice.select_option("system")
        assert opened.page.evaluate(background) == white
        opened.page.emulate_media(color_scheme="dark")
        assert opened.page.evaluate(background) == dark
        choice.select_option("light")
        assert opened.page.evaluate(background) == white


def test_arrow_up_edits_the_last_message(browser: Browser, quick_server: UiServer) -> None:
    with window(browser, quick_server) as opened:
        opened.open()
        opened.set(maxTokens="8")
        field = opened.page.get_by_role("textbox", name="Say something")
        for count, text in enumerate(("My name is Carol.", "What is my name?"), 1):
            opened.say(text)
            opened.wait_for_answers(count)
        field.fill("a draft")
        field.press("ArrowUp")  # it moves in the draft
        expect(opened.page.locator(".message textarea")).to_have_count(0)
        field.fill("")
        field.press("ArrowUp")
        editor = opened.page.locator(".message textarea")
        expect(editor).to_have_value("What is my name?")
        expect(editor).to_be_focused()
        editor.press("Escape")
        expect(editor).to_have_count(0)
        field.press("ArrowUp")
        editor.fill("And now?")
        editor.press("Control+Enter")
        expect(opened.page.locator(".message.user").last).to_contain_text("And now?")
        expect(opened.page.locator(".variants")).to_have_text("2 of 2")


CODE = "x = " + "1 + " * 100 + "1"
MARKDOWN = f"""```python
{CODE}
```

- [x] done
- [ ] open
- [link](https://example.org)
- [x]
"""


def test_code_is_copied_and_wrapped_and_tasks_have_boxes(
    browser: Browser, quick_server: UiServer
) -> None:
    chat = quick_server.conversation("Code", [{"role": "assistant", "content": MARKDOWN}])
    permissions = ["clipboard-read", "clipboard-write"]
    with window(browser, quick_server, permissions=permissions) as opened:
        opened.open(f"#chat/{chat}")
        code = opened.page.locator(".code-block pre")
        is_wide = "(pre) => pre.scrollWidth > pre.clientWidth"
        expect(opened.page.locator(".code-head")).to_contain_text("python")
        assert code.evaluate(is_wide)
        wrap = opened.page.get_by_role("button", name="Wrap the lines of code")
        wrap.click()
        expect(wrap).to_have_attribute("aria-pressed", "true")
        assert not code.evaluate(is_wide)
        wrap.click()
        assert code.evaluate(is_wide)
        opened.page.get_by_role("button", name="Copy the code").click()
        expect(opened.page.locator("#announcer")).to_have_text("Copied")
        assert opened.page.evaluate("() => navigator.clipboard.readText()") == CODE + "\n"
        items = opened.page.locator(".answer li")
        expect(items).to_have_text(["☑ done", "☐ open", "link", "[x]"])


def test_rate_and_use_of_the_context_are_shown_while_an_answer_comes(
    browser: Browser, slow_server: UiServer
) -> None:
    with window(browser, slow_server) as opened:
        opened.open()
        opened.set(temperature="0", maxTokens="60")
        opened.say(STORY)
        numbers = opened.page.locator(".context-numbers")
        expect(numbers).to_have_text(re.compile(r"\d+ of 2,048 tokens\s*[\d.]+ tokens/s"))
        opened.wait_for_answers(1)
        expect(numbers).to_have_text("73 of 2,048 tokens", use_inner_text=True)  # 13 of the prompt
        opened.reload()
        expect(numbers).to_have_text("73 of 2,048 tokens", use_inner_text=True)
        expect(opened.page.locator(".nearly-full")).to_be_hidden()


def test_a_nearly_full_context_is_warned_of(browser: Browser, quick_server: UiServer) -> None:
    words = "the quick brown fox "
    body = {"model": "demo_model", "input": words * 50}
    count = quick_server.ask("POST", "/v1/responses/input_tokens", body)["input_tokens"]
    long = {"role": "user", "content": words * (50 * 1750 // count)}
    chat = quick_server.conversation("Long", [long, {"role": "assistant", "content": "Yes."}])
    with window(browser, quick_server) as opened:
        opened.open(f"#chat/{chat}")
        opened.set(maxTokens="4")
        opened.say("And?")
        expect(opened.page.locator(".nearly-full")).to_contain_text("The context is nearly full.")
        opened.wait_for_answers(2)
        expect(opened.page.locator(".nearly-full")).to_be_visible()
        opened.page.get_by_role("button", name="New chat").click()
        expect(opened.page.locator(".nearly-full")).to_be_hidden()


def test_models_are_loaded_and_unloaded_by_operators(browser: Browser, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-operator admin\nsk-client\n")
    flags = ("--model", f"one={DEMO_MODEL}", "--model", f"two={DEMO_MODEL}")
    flags = (*flags, "--max-loaded-models", "1", "--api-key-file", str(keys))
    with ui_server(*flags, load_seconds=2.0) as server:
        for key in ("sk-operator", "sk-client"):
            with window(browser, server) as opened:
                opened.page.add_init_script(f"sessionStorage.setItem('fastovms.key', '{key}')")
                opened.open()
                opened.page.get_by_role("button", name="Models").click()
                dialog = opened.page.get_by_role("dialog", name="Models")
                row = dialog.get_by_role("listitem").first
                expect(row).to_contain_text("Not loaded")
                dialog.get_by_role("button", name="Load one").click()
                if key == "sk-client":
                    expect(dialog.get_by_role("alert")).to_contain_text("needs an operator's key")
                    continue
                expect(row).to_contain_text(re.compile(r"Loading for \d+ s"))
                expect(row.get_by_role("progressbar")).to_be_visible()
                loaded = "Loaded, with a context of 2,048 tokens"
                expect(row).to_contain_text(loaded, timeout=2 * DEADLINE)
                dialog.get_by_role("button", name="Unload one").click()
                expect(row).to_contain_text("Not loaded")
                opened.page.keyboard.press("Escape")
                expect(dialog).to_have_count(0)


FOOTNOTES = """Water[^b] and wine[^a] [^none] [^a].

[^a]: Of **grapes**,
  pressed.
[^b]: [Rain](https://example.org)
[^c]: Nobody refers to it.

The end `[^a]`
"""


def test_footnotes_are_numbered_and_lead_there_and_back(
    browser: Browser, quick_server: UiServer
) -> None:
    chat = quick_server.conversation("Notes", [{"role": "assistant", "content": FOOTNOTES}])
    with window(browser, quick_server) as opened:
        opened.open(f"#chat/{chat}")
        first = opened.page.locator(".answer p").first
        expect(first).to_have_text("Water1 and wine2 [^none] 2.")
        notes = opened.page.locator(".footnote")
        expect(notes).to_have_text(["2 Of grapes,\npressed.", "1 Rain", "3 Nobody refers to it."])
        expect(opened.page.locator(".answer code")).to_have_text("[^a]")
        opened.page.get_by_role("button", name="Footnote 1", exact=True).click()
        back = opened.page.get_by_role("button", name="Back from footnote 1")
        expect(back).to_be_focused()
        back.click()
        expect(first.get_by_role("button", name="Footnote 1")).to_be_focused()


def test_a_pdf_is_sent_as_a_file_and_a_refusal_is_shown(
    browser: Browser, quick_server: UiServer
) -> None:
    refusal = "input[0].content[0].file_data: the PDF is encrypted"
    with window(browser, quick_server) as opened:
        opened.open()
        opened.set(maxTokens="8")
        opened.hand_over(DROP, "paper.pdf", b"%PDF-1.4\nx")
        expect(opened.page.locator(".file-chip")).to_have_text(["paper.pdf"])
        error = {"error": {"message": refusal}}
        path = "**/v1/responses"
        opened.page.route(path, lambda route: route.fulfill(status=400, json=error))
        with opened.page.expect_request(path) as asked:
            opened.say("What is in it?")
        [message] = asked.value.post_data_json["input"]  # type: ignore[index]
        file, text = message["content"]
        assert file == {
            "type": "input_file",
            "filename": "paper.pdf",
            "file_data": "data:application/pdf;base64,JVBERi0xLjQKeA==",
        }
        assert text["text"] == "What is in it?"
        failure = opened.page.locator(".failure")
        expect(failure).to_contain_text(refusal)
        expect(opened.page.locator(".message.user .file")).to_have_text("paper.pdf")
        opened.page.unroute(path)
        failure.get_by_role("button", name="Remove the message").click()
        expect(opened.page.locator(".message")).to_have_count(0)
        opened.say("Hello")  # the chat goes on without it
        opened.wait_for_answers(1)
        expect(opened.page.locator(".message.user")).to_have_count(1)
        expect(opened.page.locator(".message.user .file")).to_have_count(0)


def test_a_pdf_is_read_and_found_after_a_reload(browser: Browser, quick_server: UiServer) -> None:
    with window(browser, quick_server) as opened:
        opened.open()
        opened.set(maxTokens="8")
        opened.hand_over(PASTE, "birds.pdf", pdf_file(["Swallows fly."]))
        opened.say("What is in it?")
        opened.wait_for_answers(1)
        cached = opened.page.locator(".statistics").inner_text()
        found = re.search(r"of (\d+) prompt tokens", cached)
        assert found is not None
        assert int(found[1]) > 25  # the text of the PDF is among them
        opened.reload()
        expect(opened.page.locator(".message.user .file")).to_have_text("birds.pdf")
        expect(opened.page.locator(".message.user .text")).to_have_text("What is in it?")


@pytest.mark.parametrize("way", [PASTE, DROP], ids=["paste", "drop"])
def test_text_file_is_sent_and_shown_with_its_message(
    browser: Browser, quick_server: UiServer, way: tuple[str, str, str]
) -> None:
    with window(browser, quick_server) as opened:
        opened.open()
        opened.set(maxTokens="8")
        text = "Grüße\nfrom a file"
        opened.hand_over(way, "notes.txt", text.encode())
        chips = opened.page.locator(".file-chip")
        expect(chips).to_have_text(["notes.txt"])
        opened.hand_over(way, "a.bin", bytes([0, 159, 146, 150]))
        alert = opened.page.get_by_role("alert")
        expect(alert.filter(has_text="a.bin is not added")).to_be_visible()
        with opened.page.expect_request("**/v1/responses") as asked:
            opened.say("What is in it?")
        [message] = asked.value.post_data_json["input"]  # type: ignore[index]
        assert [part["text"] for part in message["content"]] == [
            f'<file name="notes.txt">\n{text}\n</file>\n\n',
            "What is in it?",
        ]
        expect(chips).to_have_count(0)
        opened.wait_for_answers(1)
        opened.reload()
        bubble = opened.page.locator(".message.user .bubble")
        expect(bubble.locator(".text")).to_have_text("What is in it?")
        bubble.get_by_text("notes.txt").click()
        expect(bubble.locator("pre")).to_have_text(text)
        current = opened.page.locator(".chat-list a[aria-current]")
        expect(current).to_have_text("What is in it?")
        opened.page.get_by_role("textbox", name="Say something").press("ArrowUp")
        opened.page.locator(".message textarea").fill("And what else?")
        opened.page.get_by_role("button", name="Ask", exact=True).click()
        expect(bubble.locator("summary")).to_have_text("notes.txt")  # it stays with the message
        expect(bubble.locator(".text")).to_have_text("And what else?")
