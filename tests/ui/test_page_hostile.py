"""Hostile texts of a model run no script, load nothing and break no rule of the page's policy."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.ui.browser import LOAD, UiServer, Window, window
from tests.ui.hostile_texts import hostile_texts

pytestmark = pytest.mark.nightly(but=("test_hostile_texts_have_safe_links",))

NUM_TEXTS = 500
NUM_FOOTNOTES = 150_000

NOTE_VIOLATIONS = """
  globalThis.violations = [];
  addEventListener('securitypolicyviolation', (event) =>
    globalThis.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
  globalThis.alert = () => { globalThis.broken = 1; };
"""
PARSER = (
    "document.querySelector('script[type=module]').src"
    ".replace('main.js', 'vendor/markdown-it.esm.min.mjs')"
)


def test_hostile_texts_have_safe_links_and_break_no_policy(
    browser: Browser, quick_server: UiServer
) -> None:
    texts = hostile_texts(NUM_TEXTS)
    assert len(set(texts)) == NUM_TEXTS
    items = [
        {"role": "assistant" if index % 2 else "user", "content": text}
        for index, text in enumerate(texts)
    ]
    chat = quick_server.conversation(texts[0], items)
    with window(browser, quick_server) as opened:
        opened.page.add_init_script(NOTE_VIOLATIONS)
        opened.open(f"#chat/{chat}")
        expect(opened.page.locator(".message")).to_have_count(NUM_TEXTS)
        show_all(opened)
        grow(opened, texts[::10])
        assert opened.page.evaluate("() => globalThis.violations") == []
        assert opened.page.evaluate("() => globalThis.broken ?? 0") == 0
        links = opened.page.locator(".markdown a[href]").evaluate_all(
            "(links) => links.map((link) => [link.protocol, link.rel, link.target])"
        )
        assert len(links) > 20
        assert {protocol for protocol, _, _ in links} <= {"https:", "http:", "mailto:"}
        assert {(rel, target) for _, rel, target in links} == {("noopener noreferrer", "_blank")}
        assert opened.page.locator(".markdown :is(img, script, iframe, form, style)").count() == 0


WAITING = ".message .text:not(:has(.block)), .message .answer:not(:has(.block))"
"""Messages that are not yet shown as Markdown."""

MAX_SWEEPS = 5


def show_all(opened: Window) -> None:
    """Scrolls over all messages, so that each is shown as Markdown. What is shown has another
    height: messages may pass by unseen, for which it scrolls again."""
    opened.page.evaluate(
        """async ([waiting, maxSweeps]) => {
          const place = document.querySelector('.transcript');
          const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
          for (let sweep = 0; sweep < maxSweeps && document.querySelector(waiting); sweep++) {
            for (let top = 0; top < place.scrollHeight; top += 600) {
              place.scrollTop = top;
              await frame();
              await frame();
            }
          }
        }""",
        [WAITING, MAX_SWEEPS],
    )
    expect(opened.page.locator(WAITING)).to_have_count(0)


def grow(opened: Window, texts: list[str]) -> None:
    """Shows texts as they are streamed, character by character."""
    opened.page.evaluate(
        f"""async (texts) => {{
          const {{loadMarkdown, showMarkdown}} = {LOAD}("answer/markdown.js");
          await loadMarkdown();
          const place = document.createElement('div');
          document.querySelector('.messages').append(place);
          for (const text of texts) {{
            for (let end = 1; end <= text.length; end++) showMarkdown(place, text.slice(0, end));
          }}
        }}""",
        texts,
    )


def test_as_many_footnotes_as_a_text_holds(browser: Browser, quick_server: UiServer) -> None:
    with window(browser, quick_server) as opened:
        opened.open("")
        number = opened.page.evaluate(
            f"""async (count) => {{
              const MarkdownIt = (await import({PARSER})).default;
              const {{findFootnotes}} = {LOAD}("answer/footnotes.js");
              const markdown = new MarkdownIt();
              findFootnotes(markdown);
              const numbers = [...Array(count).keys()];
              const env = {{}};
              markdown.parse(numbers.map((number) => `[^${{number}}]`).join("") + "\\n\\n"
                + numbers.map((number) => `[^${{number}}]: x`).join("\\n"), env);
              return env.footnotes.get(String(count - 1));
            }}""",
            NUM_FOOTNOTES,
        )
        assert number == NUM_FOOTNOTES


def test_a_message_of_a_million_characters_is_shown_as_it_is_written(
    browser: Browser, quick_server: UiServer
) -> None:
    with window(browser, quick_server) as opened:
        opened.open()
        opened.say("a **long** `log` " * 60_000)
        failure = opened.page.locator(".failure")
        expect(failure).to_contain_text("maximum context length")
        expect(opened.page.locator(".message.user .plain")).to_contain_text("a **long** `log` a")
        assert opened.page.locator(".message.user *").count() < 100
        failure.get_by_role("button", name="Remove the message").click()


@pytest.mark.parametrize("mark", ["\\(a", "\\[a"])
def test_formulas_that_never_end_cost_one_search(
    browser: Browser, quick_server: UiServer, mark: str
) -> None:
    with window(browser, quick_server) as opened:
        opened.open()
        num_searches = opened.page.evaluate(
            f"""async (text) => {{
              const {{loadMarkdown, showMarkdown}} = {LOAD}("answer/markdown.js");
              await loadMarkdown();
              const {{indexOf}} = String.prototype;
              let count = 0;
              String.prototype.indexOf = function (...given) {{
                count += given[0] === "\\)" || given[0] === "\\]";
                return indexOf.apply(this, given);
              }};
              showMarkdown(document.createElement("div"), text);
              return count;
            }}""",
            mark * 1000,
        )
        assert num_searches < 10
