"""Dictation in the chat of the page, in a real browser with a recorder that is made up."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from fastovms.server_config import DEMO_MODEL
from tests.speech_models import sound, wav, whisper_dir
from tests.ui.browser import UiServer, ui_server, window

pytestmark = pytest.mark.nightly

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
    models = ("--model", str(DEMO_MODEL), "--model", f"speech={whisper_dir()}")
    with ui_server(*models) as server:
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
