"""Formulas in answers, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.ui.browser import LOAD, UiServer, Window, window

pytestmark = pytest.mark.nightly(but=("test_an_answer_with_formulas",))


def formulas(opened: Window, text: str) -> tuple[list[str], str]:
    """Returns the sources of the formulas of a text that is shown, and the text with # for each."""
    script = f"""async (text) => {{
      const load = {LOAD};
      const {{loadMarkdown, showMarkdown}} = load('answer/markdown.js');
      await Promise.all([loadMarkdown(), load('answer/math.js').loadMath()]);
      const place = document.createElement('div');
      document.querySelector('main').append(place);
      showMarkdown(place, text);
      await new Promise((resolve) => setTimeout(resolve));
      const found = [...place.querySelectorAll('.math')].map((formula) => {{
        const source = formula.querySelector('annotation')?.textContent ?? 'not laid out';
        const isBlock = formula.querySelector('math')?.getAttribute('display') === 'block';
        formula.textContent = '#';
        return (isBlock ? 'block ' : '') + source;
      }});
      const rest = place.innerText;
      place.remove();
      return [found, rest.trim()];
    }}"""
    found, rest = opened.page.evaluate(script, text)
    return found, rest


@pytest.fixture(scope="module")
def opened(browser: Browser, quick_server: UiServer) -> object:
    with window(browser, quick_server) as opened:
        opened.open()
        yield opened


@pytest.mark.parametrize(
    ("text", "found", "rest"),
    [
        (r"a \(x_1\) b", ["x_1"], "a # b"),
        (r"\[ x^2 \]", ["block  x^2 "], "#"),
        ("$$\nx\n+ y\n$$", ["block \nx\n+ y\n"], "#"),
        ("so $E=mc^2$, as", ["E=mc^2"], "so #, as"),
        ("- one\n\n  $$x$$", ["block x"], "one\n\n#"),
        (r"in line \[x\] too", ["block x"], "in line\n#\ntoo"),
        (r"$\frac{a*b}{c*d}$ and $a_b+c_d$", [r"\frac{a*b}{c*d}", "a_b+c_d"], "# and #"),
        ("it costs $5 to $10", [], "it costs $5 to $10"),
        ("$5, $6 and $x$", ["x"], "$5, $6 and #"),
        ("$5/$10 or $ 6 $", [], "$5/$10 or $ 6 $"),
        ("it is $10 or 5$, by $x$", ["x"], "it is $10 or 5$, by #"),
        ("10$/5$ and 5$-10$", [], "10$/5$ and 5$-10$"),
        ("$10. It was 5$ (or $7, 8$)", [], "$10. It was 5$ (or $7, 8$)"),
        ("$1.5M—or 2$; US$10 (HK$ 78)", [], "$1.5M—or 2$; US$10 (HK$ 78)"),
        ("$10 y 5$, $10或5$, $10 или 5$", [], "$10 y 5$, $10或5$, $10 или 5$"),
        ("$HOME/bin:$PATH, $A_DIR/$_x", [], "$HOME/bin:$PATH, $A_DIR/$_x"),
        ("$.50 to\n$-5 less 3$", [], "$.50 to $-5 less 3$"),
        (
            r"$2x + 3$, $10$, $5-10$, the $2n$th, $3 \text{ or } 4$, $2(ab)$, $2 π r$",
            ["2x + 3", "10", "5-10", "2n", r"3 \text{ or } 4", "2(ab)", "2 π r"],
            "#, #, #, the #th, #, #, #",
        ),
        (r"\$x\$ and \*y\*", [], "$x$ and *y*"),
        ("`$x$` stays", [], "$x$ stays"),
        ("```\n$$x$$\n```", [], "$$x$$"),
        ("$$ is open", [], "$$ is open"),
        (r"$\wrong$ and $x$", ["not laid out", "x"], "# and #"),
        (r"$\fcolorbox{red}{blue}{x}$", [r"\fcolorbox{red}{blue}{x}"], "#"),
    ],
)
def test_formulas_are_found_apart_from_prices_and_code(
    opened: Window, text: str, found: list[str], rest: str
) -> None:
    assert formulas(opened, text) == (found, rest)


def test_an_answer_with_formulas_loads_what_lays_them_out(
    browser: Browser, quick_server: UiServer
) -> None:
    text = {"role": "assistant", "content": "$x$ and **no** more"}
    chat = quick_server.conversation("Formula", [text])
    with window(browser, quick_server) as opened:
        asked: list[str] = []
        opened.page.on("request", lambda one: asked.append(one.url))
        opened.open()
        assert not any("katex" in url for url in asked)  # it is not needed
        opened.open(f"#chat/{chat}")
        opened.reload()
        opened.page.locator(".answer math").wait_for()
        assert any("katex" in url for url in asked)
