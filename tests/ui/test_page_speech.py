"""Dictation and answers that are read aloud in the chat of the page, in a real browser."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from fastovms.server_config import DEMO_MODEL
from tests.speech_models import sound, speecht5_dir, wav, whisper_dir
from tests.ui.browser import UiServer, Window, ui_server, window
from tests.ui.test_page_access import violations

pytestmark = pytest.mark.nightly(but=("read_aloud",))

RECORDER = """
navigator.mediaDevices.getUserMedia = async () => {
  if (globalThis.denies) throw new DOMException("Permission denied", "NotAllowedError");
  return { getTracks: () => [{ stop() {} }] };
};
globalThis.MediaRecorder = class extends EventTarget {
  start() {}
  stop() {
    const data = new Blob([Uint8Array.from(atob("%s"), (one) => one.charCodeAt(0))]);
    this.dispatchEvent(Object.assign(new Event("dataavailable"), { data }));
    this.dispatchEvent(new Event("stop"));
  }
};
"""


@pytest.fixture(scope="module")
def server() -> Iterator[UiServer]:
    models = (str(DEMO_MODEL), f"speech={whisper_dir()}", f"tts={speecht5_dir()}")
    with ui_server(*(word for model in models for word in ("--model", model))) as server:
        yield server


def test_a_recording_becomes_text_at_the_cursor(browser: Browser, server: UiServer) -> None:
    with window(browser, server) as opened:
        page = opened.page
        page.add_init_script(RECORDER % base64.b64encode(wav(sound(2.0))).decode())
        opened.open()
        expect(page.get_by_label("Model", exact=True).locator("option")).to_have_count(1)
        field = page.get_by_role("textbox", name="Say something")
        field.fill("say: ")
        page.get_by_role("button", name="Dictate", exact=True).click()
        page.get_by_role("button", name="End dictation").click()
        expect(field).to_have_value(re.compile("^say: .+"))
        page.evaluate("globalThis.denies = true")
        page.get_by_role("button", name="Dictate", exact=True).click()
        expect(page.get_by_text("Permission denied")).to_be_visible()


PLAYER = """
globalThis.heard = [];
globalThis.contexts = [];
globalThis.AudioContext = class extends AudioContext {
  constructor() { super(); contexts.push(this); }
};
const { start } = AudioBufferSourceNode.prototype;
AudioBufferSourceNode.prototype.start = function (at) {
  const isLoud = this.buffer.getChannelData(0).some((one) => one > 0.1);
  heard.push({ at, duration: this.buffer.duration, isLoud });
  document.documentElement.dataset.heard = heard.length;
  start.call(this, at);
};
"""
ANSWER = """## A *heading*

Some `short` text with [a link](https://example.org).

```python
secret = 1
```"""


def show_answer(opened: Window, text: str) -> None:
    """Opens a chat with one answer."""
    items = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": text}]
    opened.page.add_init_script(PLAYER)
    opened.open(f"#chat/{opened.server.conversation('Spoken', items)}")


def test_answer_is_read_aloud_without_marks_and_code(browser: Browser, server: UiServer) -> None:
    with window(browser, server) as opened:
        show_answer(opened, ANSWER)
        button = opened.page.get_by_role("button", name="Read aloud", exact=True)
        button.focus()
        with opened.page.expect_request("**/v1/audio/speech") as asked:
            opened.page.keyboard.press("Enter")
        stop = opened.page.get_by_role("button", name="Stop reading aloud", pressed=True)
        expect(stop).to_be_focused()
        body = asked.value.post_data_json
        assert body is not None
        assert body["model"] == "tts"
        assert body["input"].split() == [
            "A",
            "heading",
            "Some",
            "short",
            "text",
            "with",
            "a",
            "link.",
        ]
        expect(button).to_be_visible()
        heard = opened.page.evaluate("heard")
        assert all(piece["isLoud"] for piece in heard)
        ends = [piece["at"] + piece["duration"] for piece in heard]
        assert [piece["at"] for piece in heard[1:]] == pytest.approx(ends[:-1]), "without gaps"


def test_reading_stops_when_asked_and_shows_errors(browser: Browser, server: UiServer) -> None:
    with window(browser, server) as opened:
        show_answer(opened, "This is one of very many sentences that are read. " * 200)
        page = opened.page
        button = page.get_by_role("button", name="Read aloud", exact=True)
        button.click()
        page.wait_for_selector("html[data-heard]")
        assert violations(opened) == []
        page.get_by_role("button", name="Stop reading aloud").click()
        expect(button).to_be_visible()
        assert page.evaluate("contexts.map(({ state }) => state)") == ["closed"]
        refusal = {"error": {"message": "too many texts wait"}}
        page.route("**/v1/audio/speech", lambda route: route.fulfill(status=503, json=refusal))
        button.click()
        expect(page.get_by_role("alert")).to_have_text("too many texts wait")
        expect(button).to_have_attribute("aria-pressed", "false")


def test_speech_is_not_offered_without_a_model_for_it(
    browser: Browser, quick_server: UiServer
) -> None:
    with window(browser, quick_server) as opened:
        show_answer(opened, ANSWER)
        expect(opened.page.get_by_role("button", name="Copy", exact=True)).to_have_count(2)
        for name in ("Read aloud", "Dictate"):
            expect(opened.page.get_by_role("button", name=name)).to_be_hidden()
