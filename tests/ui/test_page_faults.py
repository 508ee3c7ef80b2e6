"""Faults that the page once had, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Route, expect

from fastovms.server_config import DEMO_MODEL
from tests.ui.browser import UiServer, ui_server, window

pytestmark = pytest.mark.nightly(but=("test_answer_cut_by_its_limit",))

STORY = "Tell me a story."


def test_line_breaks_of_the_user_stay_and_those_of_the_model_are_spaces(
    browser: Browser, quick_server: UiServer
) -> None:
    text = "first line\nsecond line"
    items = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    chat = quick_server.conversation("Lines", items)
    with window(browser, quick_server) as opened:
        opened.open(f"#chat/{chat}")
        assert opened.page.locator(".message.user p").inner_text() == text
        assert opened.page.locator(".answer p").inner_text() == text.replace("\n", " ")


@pytest.fixture(scope="module")
def forgetful_server() -> Iterator[UiServer]:
    """Takes a while for each token, as `slow_server` does, and keeps nothing."""
    with ui_server("--no-enable-store", "--no-enable-prompt-lookup", step_seconds=0.05) as server:
        yield server


WORD = "Donaudampfschifffahrtsgesellschaft"
TABLE = f"""| {" | ".join("abcdefgh")} |
|{"---|" * 8}
| {" | ".join([WORD] * 8)} |
"""


def test_words_in_cells_stay_whole_and_wide_tables_scroll(
    browser: Browser, quick_server: UiServer
) -> None:
    chat = quick_server.conversation("Table", [{"role": "assistant", "content": TABLE}])
    with window(browser, quick_server, viewport={"width": 390, "height": 800}) as opened:
        opened.open(f"#chat/{chat}")
        cell = opened.page.locator("td").first
        lines = """(cell) => {
          const range = document.createRange();
          range.selectNodeContents(cell);
          return new Set([...range.getClientRects()].map((rect) => rect.top)).size;
        }"""
        assert cell.evaluate(lines) == 1
        box = opened.page.locator(".table-box")
        assert box.evaluate("(box) => box.scrollWidth > box.clientWidth")
        box.focus()  # so that keys scroll it
        expect(box).to_be_focused()
        assert opened.page.evaluate("() => document.documentElement.scrollWidth") <= 390


ARABIC = "مرحبا، كيف حالك؟"
HEBREW = "שלום, מה שלומך?"


def test_arabic_and_hebrew_run_from_the_right(browser: Browser, quick_server: UiServer) -> None:
    answer = f"{HEBREW}\n\n- {ARABIC}\n\nEnglish\n\n```python\n# {ARABIC}\n```"
    items = [{"role": "user", "content": ARABIC}, {"role": "assistant", "content": answer}]
    chat = quick_server.conversation(ARABIC, items)
    direction = "(node) => getComputedStyle(node).direction"
    with window(browser, quick_server) as opened:
        opened.open(f"#chat/{chat}")
        opened.page.locator("pre").wait_for()
        found = {
            name: opened.page.locator(name).first.evaluate(direction)
            for name in (".message.user p", ".answer p", ".answer ul", ".answer pre")
        }
        assert list(found.values()) == ["rtl", "rtl", "rtl", "ltr"]
        assert opened.page.locator(".answer p").last.evaluate(direction) == "ltr"
        link = opened.page.locator(".chat-list a[aria-current]")
        assert link.evaluate(direction) == "rtl"
        field = opened.page.get_by_role("textbox", name="Say something")
        field.fill(HEBREW)
        assert field.evaluate(direction) == "rtl"


def test_answer_cut_by_its_limit_can_be_continued(browser: Browser, quick_server: UiServer) -> None:
    with window(browser, quick_server) as opened:
        opened.open()
        opened.set(temperature="0", maxTokens="200")
        opened.say(STORY)
        opened.wait_for_answers(1)
        [whole] = opened.answers()
        opened.page.get_by_role("button", name="New chat").click()
        opened.set(maxTokens="8")
        opened.say(STORY)
        opened.wait_for_answers(1)
        cut = opened.page.locator(".cut")
        expect(cut).to_contain_text("The answer was cut")
        [beginning] = opened.answers()
        assert whole.startswith(beginning)
        opened.reload()
        expect(cut).to_contain_text("The answer was cut")
        opened.set(maxTokens="200")
        opened.page.get_by_role("button", name="Continue").click()
        expect(cut).to_have_count(0)
        expect(opened.page.locator(".answer")).to_have_text(whole, use_inner_text=True)
        expect(opened.page.locator(".message")).to_have_count(2)
        opened.reload()  # both parts are one answer
        expect(opened.page.locator(".answer")).to_have_text(whole, use_inner_text=True)
        expect(cut).to_have_count(0)


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "not kept"])
def test_stopped_answer_can_be_continued(
    browser: Browser, slow_server: UiServer, forgetful_server: UiServer, is_kept: bool
) -> None:
    with window(browser, slow_server if is_kept else forgetful_server) as opened:
        opened.open()
        opened.set(temperature="0")
        opened.say(STORY)
        expect(opened.page.locator(".growing")).to_contain_text(" ")
        opened.page.get_by_role("button", name="Stop").click()
        opened.wait_for_answers(1)
        cut = opened.page.locator(".cut")
        expect(cut).to_contain_text("You stopped the answer.")
        if is_kept:
            opened.reload()
            expect(cut).to_contain_text("You stopped the answer.")
        [beginning] = opened.answers()
        opened.page.get_by_role("button", name="Continue").click()
        opened.wait_for_answers(1)
        expect(cut).to_have_count(0)
        [whole] = opened.answers()
        assert whole.startswith(beginning)
        assert len(whole) > len(beginning)


def test_model_list_shows_loading_states(browser: Browser) -> None:
    flags = ("--model", f"one={DEMO_MODEL}", "--model", f"two={DEMO_MODEL}")
    with (
        ui_server(*flags, "--max-loaded-models", "1", load_seconds=2.0) as server,
        window(browser, server) as opened,
    ):
        opened.open()
        options = opened.page.get_by_label("Model").locator("option")
        expect(options).to_have_text(["one · not loaded", "two · not loaded"])
        opened.set(maxTokens="4")
        opened.say("Hello")
        expect(opened.page.locator(".state")).to_have_text("Loading one …")
        expect(options).to_have_text(["one · loading …", "two · not loaded"])
        opened.wait_for_answers(1)
        expect(options).to_have_text(["one", "two · not loaded"])


@pytest.mark.parametrize(
    ("is_kept", "path"),
    [
        (True, "**/v1/conversations"),
        (True, "**/v1/responses"),
        (False, "**/v1/responses"),
    ],
    ids=["no conversation", "no response", "not kept"],
)
def test_a_stop_before_the_server_has_the_request_stops_the_answer(
    browser: Browser, slow_server: UiServer, forgetful_server: UiServer, is_kept: bool, path: str
) -> None:
    with window(browser, slow_server if is_kept else forgetful_server) as opened:
        opened.open()
        opened.set(temperature="0")
        held: list[Route] = []
        opened.page.route(path, lambda route: held.append(route))
        with opened.page.expect_request(path):
            opened.say(STORY)
        opened.page.get_by_role("button", name="Stop").click()
        state = opened.page.locator(".state")
        expect(state).to_have_text("Stopping …")
        [route] = held
        route.continue_()
        opened.page.unroute(path)
        expect(opened.page.locator(".message[aria-busy]")).to_have_count(0)
        expect(opened.page.get_by_role("alert")).to_have_count(0)
        assert len("".join(opened.answers())) < 100
        opened.set(maxTokens="4")
        opened.say("Hello")
        expect(opened.page.locator(".message.user")).to_have_count(2)
        opened.wait_for_answers(1)
        expect(opened.page.get_by_role("alert")).to_have_count(0)


def test_conversations_of_api_clients_are_called_by_their_first_message(
    browser: Browser, quick_server: UiServer
) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Where do swallows go in winter?"},
    ]
    created = quick_server.ask("POST", "/v1/conversations", {"items": items})
    with window(browser, quick_server) as opened:
        opened.open(f"#chat/{created['id']}")
        link = opened.page.locator(".chat-list a[aria-current]")
        expect(link).to_have_text("Where do swallows go in winter?")
        expect(opened.page).to_have_title("Where do swallows go in winter? · fastovms")
        # The client's own metadata stay as they are.
        assert quick_server.ask("GET", f"/v1/conversations/{created['id']}")["metadata"] == {}


def test_chat_works_without_browser_storage(browser: Browser, quick_server: UiServer) -> None:
    refuse = """for (const kind of ['localStorage', 'sessionStorage']) {
      const get = () => { throw new DOMException('no', 'SecurityError'); };
      Object.defineProperty(window, kind, {get});
    }"""
    with window(browser, quick_server) as opened:
        opened.page.add_init_script(refuse)
        opened.open()
        opened.set(maxTokens="7")
        with opened.page.expect_request("**/v1/responses") as asked:
            opened.say("What is 7 + 5?")
        body = asked.value.post_data_json
        assert body is not None
        assert body["max_output_tokens"] == 7
        opened.wait_for_answers(1)
        expect(opened.page.locator(".statistics")).to_be_visible()
        opened.page.get_by_label("Language").select_option("de")
        expect(opened.page.get_by_role("button", name="Neuer Chat")).to_be_visible()


def test_a_library_that_cannot_be_loaded_is_loaded_with_the_next_answer(
    browser: Browser, quick_server: UiServer
) -> None:
    text = "A **bold** word, $x$, and\n\n```python\nx = 1\n```"
    items = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": text}]
    one, other = (quick_server.conversation(name, items) for name in ("Lost", "Found"))
    with window(browser, quick_server) as opened:
        opened.page.route("**/vendor/**", lambda route: route.abort())
        opened.open(f"#chat/{one}")
        answer = opened.page.locator(".answer")
        expect(answer).to_contain_text("A **bold** word")
        opened.page.unroute("**/vendor/**")
        opened.page.get_by_role("link", name="Found").first.click()
        expect(answer.locator("strong")).to_have_text("bold")
        expect(answer.locator("math")).to_have_count(1)
        opened.faults.clear()
        assert other in opened.page.url


def test_unanswered_message_can_be_answered(browser: Browser, quick_server: UiServer) -> None:
    question = [{"role": "user", "content": "What is 7 + 5?"}]
    chat = quick_server.conversation("A sum", question)
    with window(browser, quick_server) as opened:
        opened.open(f"#chat/{chat}")
        none = opened.page.locator(".unanswered")
        expect(none).to_contain_text("There is no answer.")
        none.get_by_role("button", name="Answer again").click()
        opened.wait_for_answers(1)
        expect(none).to_have_count(0)
        assert len(opened.answers()) == 1
        opened.reload()
        opened.wait_for_answers(1)
        expect(opened.page.locator(".message.user")).to_have_count(1)
        expect(none).to_have_count(0)
