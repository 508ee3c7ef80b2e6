"""A chat of two thousand messages scrolls smoothly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.ui.browser import UiServer, window

pytestmark = pytest.mark.nightly

NUM_MESSAGES = 2000
MAX_FRAME = 50.0
"""Milliseconds."""

CATEGORIES = ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"]
NUM_STEPS = 120
MAX_SLOW_FRAMES = NUM_STEPS // 2
"""How many may take longer, since another program on the same core counts as the page's time. Where
all messages are laid out anew for each step, all of them do."""

SCROLL = f"""async () => {{
  const place = document.querySelector('.transcript');
  for (let count = 0; count < {NUM_STEPS}; count++) {{
    await new Promise((resolve) => requestAnimationFrame(resolve));
    place.scrollTop -= 400;
  }}
}}"""

PARAGRAPH = """Some *text* about `everything`, with a [link](https://example.org).

- one thing
- and **another**

```python
def add(a, b):
    return a + b
```
"""


def test_chat_of_two_thousand_messages_scrolls_smoothly(
    browser: Browser, quick_server: UiServer
) -> None:
    items = [
        {"role": "assistant" if index % 2 else "user", "content": f"Message {index}: {PARAGRAPH}"}
        for index in range(NUM_MESSAGES)
    ]
    chat = quick_server.conversation("Long", items)
    with window(browser, quick_server) as opened:
        opened.open(f"#chat/{chat}")
        expect(opened.page.locator(".message")).to_have_count(NUM_MESSAGES)
        expect(opened.page.locator(".message").last).to_contain_text(f"Message {NUM_MESSAGES - 1}:")
        browser.start_tracing(page=opened.page, categories=CATEGORIES)
        try:
            opened.page.evaluate(SCROLL)
        finally:
            trace = browser.stop_tracing()
    tasks = busy_times(json.loads(trace))
    assert len(tasks) > NUM_STEPS
    assert sum(task >= MAX_FRAME for task in tasks) <= MAX_SLOW_FRAMES


def busy_times(trace: dict[str, Any]) -> list[float]:
    """Returns the milliseconds that the page's main thread has computed in each of its tasks, of
    which a frame is one: whatever else the machine does is not counted."""
    events = trace["traceEvents"]
    main = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        event["tdur"] / 1000
        for event in events
        if (event["pid"], event["tid"]) in main and event["name"] == "RunTask" and "tdur" in event
    ]
