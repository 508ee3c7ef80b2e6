"""Takes the screenshots of docs/page.md: python -m tests.ui.screenshots [MODEL]

Those of the chat, of formulas, of Arabic and of a phone are of chats that are put into the server's
store, so that they show the same again. The answers side by side are of MODEL, such as a SmolLM2 in
GGUF, or of the demo model. Needs pillow.
"""

from __future__ import annotations

import io
import sys
import threading
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from fastovms.server_config import DEMO_MODEL
from tests.paths import ROOT
from tests.ui.browser import UiServer, Window, find_chromium, ui_server, window

FOLDER: Final = ROOT / "docs"
DESKTOP: Final = {"width": 1200, "height": 760}
PATIENCE: Final = 200_000.0
"""Milliseconds that a model may take which is not the demo model."""
PHONE: Final = {"width": 390, "height": 760}

ANSWER = """Merge sort cuts the list in two, sorts each half, and merges them:

```python
def merge_sort(numbers: list[int]) -> list[int]:
    if len(numbers) < 2:
        return numbers  # nothing to sort
    middle = len(numbers) // 2
    left, right = merge_sort(numbers[:middle]), merge_sort(numbers[middle:])
    return list(merge(left, right))
```

| list | comparisons |
|------|------------:|
| 8    | 17 |
| 1,000 | 8,977 |
"""
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "How does merge sort work? Show it in Python."},
    {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Two halves, then merge."}],
    },
    {"role": "assistant", "content": ANSWER},
]
MATH = r"""The Gaussian integral, and the roots of \(ax^2 + bx + c = 0\):

\[\int_{-\infty}^{\infty} e^{-x^2}\,dx = \sqrt{\pi}
\qquad x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}\]

- [x] shown without fonts of the page
- [ ] proved, which costs between $5 and $10

| name | definition | value | first digits | irrational | transcendental | known since antiquity |
|------|------------|------:|-------------:|------------|----------------|-----------------------|
| Archimedes' constant | $C / d$ | $\pi$ | 3.14159 | yes | yes | yes |
| Pythagoras' constant | $x^2 = 2$ | $\sqrt{2}$ | 1.41421 | yes | no | yes |

The integral is named after Gauss[^1].

[^1]: Euler knew it before.
"""
ARABIC = """نعم، هذه أهم الخطوات:

1. نقسم القائمة إلى نصفين.
2. نرتب كل نصف بالدالة `sort`.

> ثم ندمج النصفين.
"""
TITLES = ("A letter to the landlord", "Names for a cat", "Why is the sky blue?")


def take(page: Page, name: str) -> None:
    """Keeps a screenshot, as small as it gets."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = FOLDER / f"page-{name}.png"
    picture.save(path, optimize=True)
    print(path.relative_to(ROOT), path.stat().st_size)


def work(server: UiServer, stop: threading.Event) -> None:
    """Keeps the engine busy."""
    question = "Tell me a story about a fox."
    while not stop.is_set():
        body = {"model": "demo_model", "input": question, "store": False, "temperature": 1}
        server.ask("POST", "/v1/responses", body)


def main(model: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        with ui_server(step_seconds=0.02) as server:
            for title in TITLES:
                server.conversation(title, [{"role": "user", "content": title}])
            chat = f"#chat/{server.conversation('How does merge sort work?', ITEMS)}"
            others = {
                "math": ("Constants and roots", "Show me\nformulas and a table.", MATH),
                "rtl": ("خوارزمية الدمج", "هل تشرح لي خوارزمية الدمج؟", ARABIC),
            }
            for name, (title, question, answer) in others.items():
                said = [
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": answer},
                ]
                other = server.conversation(title, said)
                with window(browser, server, viewport=DESKTOP) as opened:
                    opened.open(f"#chat/{other}")
                    opened.page.locator(".answer ol, .answer math").first.wait_for()
                    take(opened.page, name)
            for scheme in ("light", "dark"):
                with window(browser, server, viewport=DESKTOP, color_scheme=scheme) as opened:
                    open_chat(opened, chat)
                    take(opened.page, f"chat-{scheme}")
            with window(browser, server, viewport=PHONE, color_scheme="dark") as opened:
                open_chat(opened, chat)
                take(opened.page, "phone")
            for locale in ("de", "zh-CN"):
                with window(browser, server, viewport=DESKTOP, locale=locale) as opened:
                    open_chat(opened, chat)
                    opened.page.locator("[aria-controls=settings]").click()
                    take(opened.page, locale)
            tokens(browser, server)
            live(browser, server)
        flags = ("--model", f"smollm2={model}", "--model", f"demo={DEMO_MODEL}")
        with ui_server(*flags) as server:
            side_by_side(browser, server)
        browser.close()


def open_chat(opened: Window, chat: str) -> None:
    opened.open(chat)
    opened.page.locator(".hljs-keyword").first.wait_for()


def side_by_side(browser: Any, server: UiServer) -> None:
    for name, size, scheme in (("compare", DESKTOP, "light"), ("compare-phone", PHONE, "dark")):
        with window(browser, server, viewport=size, color_scheme=scheme) as opened:
            opened.page.set_default_timeout(PATIENCE)
            opened.open("#compare")
            for column, temperature in (("Left", "0"), ("Right", "0.8")):
                place = opened.page.get_by_role("region", name=column)
                place.get_by_role("button", name="Settings").click()
                place.get_by_label("Temperature").fill(temperature)
                place.get_by_label("Max tokens").fill("120")
                place.get_by_label("Seed").fill("3")
                place.get_by_role("button", name="Settings").click()
            opened.say("List three uses of a paper clip.")
            opened.wait_for_answers(2)
            for toggle in opened.page.get_by_role("button", name="Where the time went").all():
                toggle.click()
            opened.page.wait_for_timeout(300)
            take(opened.page, name)
    with window(browser, server, viewport=DESKTOP) as opened:
        opened.open()
        opened.page.get_by_role("button", name="Models").click()
        opened.page.get_by_role("listitem").nth(1).wait_for()
        take(opened.page, "models")
        opened.page.goto(f"{server.url}/docs")
        opened.page.get_by_role("heading", name="What to try").wait_for()
        take(opened.page, "docs")
        opened.page.goto(f"{server.url}/docs#post_v1_chat_completions")
        opened.page.get_by_role("heading", name="Body").wait_for()
        take(opened.page, "docs-operation")


def tokens(browser: Any, server: UiServer) -> None:
    with window(browser, server, viewport=DESKTOP) as opened:
        opened.open()
        opened.set(seed="5", temperature="1")
        opened.page.locator("#set-logprobs").evaluate("(field) => field.click()")
        opened.say("Tell me a story about a fox.")
        opened.wait_for_answers(1)
        opened.page.get_by_role("button", name="Show tokens").click()
        opened.page.locator(".token.likely-3, .token.likely-4").first.focus()
        take(opened.page, "tokens")


def live(browser: Any, server: UiServer) -> None:
    stop = threading.Event()
    workers = [threading.Thread(target=work, args=(server, stop)) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        for name, size, scheme in (("live", DESKTOP, "light"), ("live-phone", PHONE, "dark")):
            with window(browser, server, viewport=size, color_scheme=scheme) as opened:
                opened.open("#live")
                opened.page.wait_for_timeout(25_000)
                take(opened.page, name)
    finally:
        stop.set()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(DEMO_MODEL))
