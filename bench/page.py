"""Measures the web page: its size, the time until it can be used, and the cost of the live view.

    python -m bench.page            size and time to interactive; needs Chromium
    python -m bench.page --stream   long tasks and layout shifts while an answer is received
    python -m bench.page --live     tokens per second with three live views and with none, in turn

The live view is measured by the requests that three open tabs send, without a browser, which would
take processor time from the engine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import sync_playwright

from fastovms.parts.page.page import read_page_files
from tests.ui.browser import UiServer, find_chromium, ui_server, window

NUM_LOADS: Final = 10
NUM_TABS: Final = 3
NUM_SCRAPES: Final = 1000
NUM_STREAMS: Final = 8
ROUND_SECONDS: Final = 3.0
CATEGORIES: Final = ["toplevel", "__metadata"]
STREAM_RATE: Final = 200
STREAM_SECONDS: Final = 20
TYPED: Final = "What one types while the answer comes must never lag behind. "
PARAGRAPH: Final = """## Step {number}

The *{number}th* part has `code`, **bold** words and $x^{{{number}}} + y$:

```python
def part_{number}(values: list[int]) -> int:
    return sum(value ** {number} for value in values)  # a comment
```

| name | value |
|------|------:|
| n    | {number} |

- one
- two

"""
FAKE_STREAM: Final = """
  const [text, rate] = GIVEN;
  const ask = globalThis.fetch;
  globalThis.fetch = async (url, options) => {
    if (!String(url).endsWith('/v1/responses')) return ask(url, options);
    const encoder = new TextEncoder();
    const tokens = text.match(/\\s*\\S{1,5}|\\s+/g);
    const item = {id: 'msg_1', type: 'message', role: 'assistant', content: []};
    const part = {type: 'output_text', text: '', annotations: []};
    const response = {id: 'resp_1', status: 'in_progress', output: []};
    let number = 0;
    const event = (type, more) => encoder.encode(
      'data: ' + JSON.stringify({type, sequence_number: number++, ...more}) + '\\n\\n');
    const body = new ReadableStream({
      async start(stream) {
        stream.enqueue(event('response.created', {response}));
        stream.enqueue(event('response.output_item.added', {output_index: 0, item}));
        stream.enqueue(event('response.content_part.added', {output_index: 0, part}));
        const began = performance.now();
        for (let sent = 0; sent < tokens.length; sent++) {
          const wait = began + 1000 * sent / rate - performance.now();
          if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
          const delta = tokens[sent];
          stream.enqueue(event('response.output_text.delta', {output_index: 0, delta}));
        }
        const output = [{...item, status: 'completed', content: [{...part, text}]}];
        const usage = {input_tokens: 9, output_tokens: tokens.length, total_tokens: 9};
        const ended = {...response, status: 'completed', output, usage};
        stream.enqueue(event('response.completed', {response: ended}));
        stream.enqueue(encoder.encode('data: [DONE]\\n\\n'));
        stream.close();
      },
    });
    return new Response(body, {headers: {'Content-Type': 'text/event-stream'}});
  };
"""
WATCH: Final = """
  globalThis.seen = {longtask: [], 'layout-shift': [], event: []};
  for (const type of Object.keys(globalThis.seen)) {
    const observer = new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) {
        globalThis.seen[type].push(type === 'layout-shift' ? entry.value : entry.duration);
      }
    });
    observer.observe({type, buffered: true, ...(type === 'event' ? {durationThreshold: 16} : {})});
  }
"""
INTERACTIVE: Final = "() => performance.getEntriesByName('interactive')[0].startTime"


def weigh() -> None:
    files = read_page_files()
    every = (files.index, *files.others.values())
    print(f"{len(every)} files of {sum(len(file.body) for file in every):,} bytes")
    print(f"compressed {sum(len(file.zipped) for file in every):,} bytes")


def time_loads() -> None:
    """Prints the time until a message can be entered, on a first visit and on the next one."""
    times: dict[str, list[float]] = {"first": [], "next": []}
    with sync_playwright() as playwright, ui_server() as server:
        path = find_chromium()
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(NUM_LOADS):
            with window(browser, server) as opened:
                for seen in times.values():
                    opened.open()
                    seen.append(opened.page.evaluate(INTERACTIVE))
                    opened.page.goto("about:blank")
        browser.close()
    for visit, seen in times.items():
        print(f"{visit} visit: interactive after {statistics.median(seen):.0f} ms (median)")


def watch_stream() -> None:
    """Prints the long tasks, the slowest key and the layout shifts of a load, and of an answer of
    `STREAM_RATE` tokens per second during which a person types. The page itself generates the
    answer's events, so that no engine takes processor time from the browser."""
    num_tokens = STREAM_RATE * STREAM_SECONDS
    text = "".join(PARAGRAPH.format(number=number) for number in range(1, 1 + num_tokens // 70))
    fake = FAKE_STREAM.replace("GIVEN", json.dumps([text, STREAM_RATE]))
    with sync_playwright() as playwright, ui_server() as server:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        with window(browser, server) as opened:
            opened.page.add_init_script(WATCH)
            opened.page.add_init_script(f"{{{fake}}}")
            browser.start_tracing(page=opened.page, categories=CATEGORIES)
            opened.open()
            print_tasks("load", json.loads(browser.stop_tracing())["traceEvents"])
            opened.page.wait_for_timeout(1000)
            print_seen("load", opened.page.evaluate("() => globalThis.seen"))
            opened.page.evaluate("() => Object.values(seen).forEach((one) => one.splice(0))")
            browser.start_tracing(page=opened.page, categories=CATEGORIES)
            opened.say("Show me everything.")
            opened.page.locator(".growing").wait_for()
            field = opened.page.get_by_role("textbox", name="Say something")
            while opened.page.locator(".growing").count():
                field.press_sequentially(TYPED, delay=60)
                field.fill("")
            opened.wait_for_answers(1)
            print_seen("answer", opened.page.evaluate("() => globalThis.seen"))
            print_tasks("answer", json.loads(browser.stop_tracing())["traceEvents"])
        browser.close()


def print_seen(name: str, seen: dict[str, list[float]]) -> None:
    longest, slowest = (max(seen[kind], default=0) for kind in ("longtask", "event"))
    num_long, shift = len(seen["longtask"]), sum(seen["layout-shift"])
    print(f"{name}: {num_long} tasks of 50 ms or more, the longest {longest:.0f} ms; ", end="")
    print(f"slowest input {slowest:.0f} ms; layout shift {shift:.4f}")


def print_tasks(name: str, events: list[dict[str, Any]]) -> None:
    """Prints the processor time of the tasks of the page's thread, which does not depend on other
    load."""
    names = [event for event in events if event["name"] == "thread_name"]
    threads = {
        (event["pid"], event["tid"]) for event in names if event["args"]["name"] == "CrRendererMain"
    }
    times = sorted(
        event["tdur"] / 1000
        for event in events
        if "tdur" in event and (event["pid"], event["tid"]) in threads
    )
    num_long = sum(time >= 50 for time in times)
    print(f"{name}, processor time: {len(times):,} tasks of {sum(times) / 1000:.2f} s; ", end="")
    print(f"{num_long} of 50 ms or more, the longest {[round(time, 1) for time in times[-5:]]} ms")


class Repeating:
    """Threads that repeat a call until they are stopped."""

    def __init__(self, count: int, act: Callable[[], object]) -> None:
        self._act = act
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._act()


def read(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        text: str = answer.read().decode()
    return text


def tokens_a_second(server: UiServer) -> float:
    """Returns the tokens per second of one round, by the server's own counter."""
    name = "fastovms_generation_tokens_total"

    def count() -> tuple[float, float]:
        text = read(f"{server.url}/metrics?name[]={name}")
        found = re.search(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE)
        assert found is not None
        return time.perf_counter(), float(found[1])

    began, before = count()
    time.sleep(ROUND_SECONDS)
    ended, after = count()
    return (after - before) / (ended - began)


def what_a_tab_asks(server: UiServer) -> str:
    module = read_page_files().others["main.js"].body.decode()
    names = re.findall(r'"(\w+)"', module.partition("SERIES = [")[2].partition("]")[0])
    return f"{server.url}/metrics?" + "&".join(f"name[]=fastovms_{name}" for name in names)


def processor_seconds(server: UiServer) -> float:
    """Returns the processor seconds of the server's process."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def time_of_a_scrape() -> None:
    """Prints the processor time of a scrape."""
    with ui_server() as server:
        server.ask("POST", "/v1/completions", {"model": "demo_model", "prompt": "Once"})
        url = what_a_tab_asks(server)
        for scraped, name in (
            (url, "a live view's scrape"),
            (f"{server.url}/metrics", "a whole one"),
        ):
            before = processor_seconds(server)
            for _ in range(NUM_SCRAPES):
                read(scraped)
            seconds = (processor_seconds(server) - before) / NUM_SCRAPES
            share = seconds * NUM_TABS
            print(f"{name}: {1000 * seconds:.2f} ms; {NUM_TABS} a second: {share:.2%} of a core")


def cost_of_live_view(rounds: int) -> None:
    body: dict[str, Any] = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "seed": 1}
    with ui_server() as server:

        def look() -> None:
            began = time.perf_counter()
            read(what_a_tab_asks(server))
            time.sleep(max(0.0, 1.0 - (time.perf_counter() - began)))

        request = {"model": "demo_model", **body}
        streams = Repeating(NUM_STREAMS, lambda: server.ask("POST", "/v1/completions", request))
        time.sleep(2)
        ratios = []
        for _ in range(rounds):
            alone = tokens_a_second(server)
            tabs = Repeating(NUM_TABS, look)
            watched = tokens_a_second(server)
            tabs.stop()
            ratios.append(watched / alone)
        streams.stop()
    spread = statistics.stdev(ratios) / rounds**0.5
    print(f"tokens/s with {NUM_TABS} live views: {statistics.mean(ratios):.4f} ± {spread:.4f}")
    print(f"of those without; {rounds} pairs of rounds, {NUM_STREAMS} streams")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--live", action="store_true", help="measure what the live view costs")
    parser.add_argument("--stream", action="store_true", help="measure the page during an answer")
    parser.add_argument("--rounds", type=int, default=30, help="pairs of rounds")
    arguments = parser.parse_args()
    if arguments.live:
        time_of_a_scrape()
        cost_of_live_view(arguments.rounds)
    elif arguments.stream:
        watch_stream()
    else:
        weigh()
        time_loads()


if __name__ == "__main__":
    main()
