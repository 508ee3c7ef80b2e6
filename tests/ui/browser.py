"""Opens the page in a real browser, and notes whatever in it is not as it should be."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
HOW_TO_GET_IT: Final = "chromium is missing: apt-get install chromium, or set CHROMIUM to its path"
DEADLINE: Final = 60_000.0
"""Milliseconds that anything may take: the machine may have much else to do."""

PAGE_READY: Final = "html[data-ready]"
LOAD: Final = "(await import(document.querySelector('script[type=module]').src)).load"
"""JavaScript for the function that returns a module of the page, by its path."""


HAND_OVER: Final = """([element, event, kind, name, type, bytes]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([Uint8Array.from(bytes)], name, {type}));
  const Kind = event === 'paste' ? ClipboardEvent : DragEvent;
  const made = new Kind(event, {bubbles: true, cancelable: true, [kind]: transfer});
  document.querySelector(element).dispatchEvent(made);
}"""
PASTE: Final = (".composer textarea", "paste", "clipboardData")
DROP: Final = (".chat-view", "drop", "dataTransfer")


def find_chromium() -> str | None:
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@dataclass
class UiServer:
    """A server with the page."""

    process: subprocess.Popen[str]
    url: str
    key: str = ""

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        fields = {"Content-Type": "application/json"}
        if self.key:
            fields["Authorization"] = f"Bearer {self.key}"
        asked = urllib.request.Request(self.url + path, data, fields, method=method)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)

    def conversation(self, title: str, items: Sequence[dict[str, Any]]) -> str:
        """Makes a conversation, and returns its id."""
        created = self.ask("POST", "/v1/conversations", {"metadata": {"title": title}})
        place = f"/v1/conversations/{created['id']}/items"
        for start in range(0, len(items), 20):
            self.ask("POST", place, {"items": items[start : start + 20]})
        return str(created["id"])

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def start_ui_server(
    *flags: str, step_seconds: float = 0.0, load_seconds: float = 0.0, key: str = ""
) -> UiServer:
    """Starts a server with the demo model.

    Args:
        step_seconds: how long each step of its engine takes besides.
        load_seconds: how long it takes besides to load a model on demand.
    """
    run = ["fastovms"]
    if step_seconds or load_seconds:
        run = ["tests.ui.paced_server", str(step_seconds), str(load_seconds)]
    command = [sys.executable, "-m", *run, "serve", "--cache-size", "0.05", "--access-log", "off"]
    if not any(flag == "--port" for flag in flags):
        command += ["--port", "0"]
    if not any(flag == "--state-dir" for flag in flags):
        command += ["--state-dir", ":memory:"]
    process = subprocess.Popen(
        [*command, *(("--api-key", key) if key else ()), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    return UiServer(process, line.strip().rpartition(" ")[2], key)


@contextmanager
def ui_server(
    *flags: str, step_seconds: float = 0.0, load_seconds: float = 0.0, key: str = ""
) -> Iterator[UiServer]:
    server = start_ui_server(*flags, step_seconds=step_seconds, load_seconds=load_seconds, key=key)
    try:
        yield server
    finally:
        server.stop()


@dataclass
class Window:
    """A page in the browser.

    Attributes:
        faults: what the console was told of errors and violations, scripts that failed, and
            requests to other servers.
    """

    page: Page
    server: UiServer
    faults: list[str] = field(default_factory=list)

    def open(self, hash: str = "") -> None:
        """Opens the page, and waits until it can be used."""
        self.page.goto(f"{self.server.url}/{hash}")
        self.page.wait_for_selector(PAGE_READY)

    def reload(self) -> None:
        self.page.reload()
        self.page.wait_for_selector(PAGE_READY)

    def say(self, text: str) -> None:
        self.page.get_by_role("textbox", name="Say something").fill(text)
        self.page.keyboard.press("Enter")

    def edit_first(self, text: str) -> None:
        """Replaces the text of the first message, and asks."""
        question = self.page.locator(".message.user").first
        question.hover()
        question.get_by_role("button", name="Edit").click()
        self.page.locator(".message.user textarea").fill(text)
        self.page.get_by_role("button", name="Ask", exact=True).click()

    def set(self, **settings: str) -> None:
        """Opens the settings, and sets some by their labels' ends."""
        self.page.get_by_role("button", name="Settings").click()
        for name, value in settings.items():
            self.page.locator(f"#set-{name}").fill(value)
        self.page.get_by_label("Settings").get_by_role("button", name="Close").click()

    def hand_over(
        self, way: tuple[str, str, str], name: str, data: bytes, media_type: str = ""
    ) -> None:
        """Pastes or drops a file; `way` is `PASTE` or `DROP`."""
        self.page.evaluate(HAND_OVER, [*way, name, media_type, list(data)])

    def answers(self) -> list[str]:
        """The texts of all answers."""
        return self.page.locator(".answer").all_inner_texts()

    def wait_for_answers(self, count: int) -> None:
        """Waits until so many answers are there, and none runs."""
        self.page.locator(".message:not(.user) .tools").nth(count - 1).wait_for()
        self.page.locator(".message[aria-busy]").wait_for(state="detached")

    def _note_message(self, message: ConsoleMessage) -> None:
        # A refused request is told of, too, whether it was meant or not.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def _note_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https") and not request.url.startswith(self.server.url):
            self.faults.append(f"asks {request.url}")

    def watch(self) -> None:
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", self._note_request)


@contextmanager
def window(browser: Browser, server: UiServer, **options: Any) -> Iterator[Window]:
    """A page of its own, which has no fault when the test is over.

    Args:
        options: of the browser's context, such as its language.
    """
    context = browser.new_context(**{"locale": "en-US", **options})
    try:
        context.set_default_timeout(DEADLINE)
        opened = Window(context.new_page(), server)
        opened.watch()
        yield opened
        assert opened.faults == []
    finally:
        context.close()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """It ends with the tests that use it: in its thread no other event loop can run meanwhile."""
    path = find_chromium()
    if path is None:
        pytest.skip(HOW_TO_GET_IT)
    expect.set_options(timeout=DEADLINE)
    with sync_playwright() as playwright:
        # Without its sandbox it runs as root too; it sees this server's pages alone.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()
