"""Texts that grow, as answers do, in a real browser: they look as those that are shown at once, and
cost what has changed of them."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.ui.browser import LOAD, UiServer, Window, window
from tests.ui.hostile_texts import hostile_texts

pytestmark = pytest.mark.nightly

TEXTS = [
    "# Title\n\nSome *text* with `code`.\nA second line.\n\nAnother\n===\nend",
    "- one\n- two **bold**\n  - inner\n  - more\n- three\n\n- loose now\n\n  with text\n\nend",
    "3. three\n4. four\n   ```python\n   def f():\n       pass\n   ```\n5. five\nlazy\n\n1) other",
    "- [ ] open\n- [x] done\n\n* another list",
    "| a | b |\n|:-:|--:|\n| 1 | `x|y` |\n| 2 | \\(x^2\\) |\n| 3 |\n\nend",
    "> quoted\n> - list\n>\n> ```js\n> const a = 1;\n> ```\nlazy\n\n> again\n\nend",
    "```python\nclass A:\n    '''doc'''\n    x = 1\n```\nplain\n\n    code\n\n~~~html\n<b>x</b>\n",
    "See [the docs][1] and [more].\n\n- a [link][1]\n\n[1]: http://example.com/p 'T'\n[more]: /x",
    "One[^a] and two[^b], and[^a] again.\n\n- item[^b]\n\n[^b]: second *note*\n[^a]: first",
    "Cost \\[ x^2 \\] is $5 or 6$.\n\n$$\na + b\n$$\n\n- \\(y\\)\n- $z$",
    "a\n\n---\n\n***\nb  \nc\\\nd ![p](http://x/y.png) <http://z.com> www.example.com",
]


@pytest.fixture(scope="module")
def opened(browser: Browser, quick_server: UiServer) -> Any:
    with window(browser, quick_server) as opened:
        opened.open()
        yield opened


GROW = f"""async ([text, isWhole]) => {{
  const load = {LOAD};
  const {{loadMarkdown, showMarkdown}} = load('answer/markdown.js');
  await Promise.all([loadMarkdown(), load('answer/colours.js').loadColours(),
    load('answer/math.js').loadMath()]);
  const look = (node) => node.innerHTML.replace(/>\\s+</g, '><');
  const place = document.createElement('div');
  for (let end = 1; end <= text.length; end++) {{
    showMarkdown(place, text.slice(0, end));
    if (!isWhole && end < text.length) continue;
    const fresh = document.createElement('div');
    showMarkdown(fresh, text.slice(0, end));
    if (look(fresh) !== look(place)) return [text.slice(0, end), look(place), look(fresh)];
  }}
  return null;
}}"""


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_grows_looks_as_one_that_is_shown_at_once(opened: Window, text: str) -> None:
    assert opened.page.evaluate(GROW, [text, True]) is None


def test_hostile_texts_that_grow_look_as_those_that_are_shown_at_once(opened: Window) -> None:
    for text in hostile_texts(60):
        assert opened.page.evaluate(GROW, [text, False]) is None


@pytest.mark.parametrize(
    ("begin", "part"),
    [
        ("", "- item {number} is *here*\n"),
        ("", "{number}. item\n"),
        ("", "> line {number}\n>\n"),
        ("| a | b |\n|---|---|\n", "| {number} | `b` |\n"),
        ("", "Paragraph *{number}*.\n\n"),
    ],
)
def test_a_long_text_that_grows_costs_its_last_part(opened: Window, begin: str, part: str) -> None:
    text = begin + "".join(part.format(number=number) for number in range(500))
    script = f"""async ([text, part]) => {{
      const {{loadMarkdown, showMarkdown}} = {LOAD}('answer/markdown.js');
      await loadMarkdown();
      const place = document.createElement('div');
      showMarkdown(place, text);
      let count = 0;
      const observer = new MutationObserver(() => {{}});
      observer.observe(place, {{childList: true, subtree: true}});
      for (let end = 1; end <= part.length; end++) showMarkdown(place, text + part.slice(0, end));
      for (const {{addedNodes}} of observer.takeRecords()) {{
        for (const node of addedNodes) count += 1 + (node.querySelectorAll?.('*').length ?? 0);
      }}
      return [place.querySelectorAll('*').length, count];
    }}"""
    num_there, num_added = opened.page.evaluate(script, [text, part.format(number=500)])
    assert num_there > 500
    assert num_added < 15 * len(part)


def test_code_that_grows_stays_where_it_is_scrolled_to_and_its_buttons_stay(opened: Window) -> None:
    script = f"""async (text) => {{
      const {{loadMarkdown, showMarkdown}} = {LOAD}('answer/markdown.js');
      await loadMarkdown();
      const place = document.createElement('div');
      document.querySelector('main').append(place);
      showMarkdown(place, text);
      const [button, code] = ['.wrap-code', 'pre'].map((name) => place.querySelector(name));
      code.scrollLeft = 40;
      for (const more of ['\\n', 'b = 2', '\\n```', '\\nend']) showMarkdown(place, text += more);
      const found = [button.isConnected, code.isConnected && code.scrollLeft, place.innerText];
      place.remove();
      return found;
    }}"""
    found = opened.page.evaluate(script, "```python\na = [" + "1, " * 200 + "]")
    assert found[:2] == [True, 40]
    assert found[2].split()[-4:] == ["b", "=", "2", "end"]
