"""Measures the page: what it weighs, when it can be used, and what the live view costs the engine.

    python -m bench.page            weight and time to interactive; needs Chromium
    python -m bench.page --live     tokens/s while three live views ask, against none, in turn

The live view is measured by what three open tabs ask of the server, without their browser, which
would take the processors from the engine where both are on one machine.
"""

from __future__ import annotations

import argparse
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

from fastovms.ui.page import read_page_files
from tests.ui.browser import UiServer, find_chromium, ui_server, window

NUM_LOADS: Final = 10
NUM_TABS: Final = 3
NUM_SCRAPES: Final = 1000
NUM_STREAMS: Final = 8
ROUND_SECONDS: Final = 3.0
READY_AT: Final = """
  new MutationObserver(() => { globalThis.readyAt ??= performance.now(); })
    .observe(document, {subtree: true, attributeFilter: ['data-ready']});
"""


def weigh() -> None:
    files = read_page_files()
    every = (files.index, *files.others.values())
    print(f"{len(every)} files of {sum(len(file.body) for file in every):,} bytes")
    print(f"compressed {sum(len(file.zipped) for file in every):,} bytes")


def time_loads() -> None:
    """Prints how long it takes until something can be said: on a first visit, and on the next."""
    times: dict[str, list[float]] = {"first": [], "next": []}
    with sync_playwright() as playwright, ui_server() as server:
        path = find_chromium()
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(NUM_LOADS):
            with window(browser, server) as opened:
                opened.page.add_init_script(READY_AT)
                for seen in times.values():
                    opened.open()
                    seen.append(opened.page.evaluate("() => globalThis.readyAt"))
                    opened.page.goto("about:blank")
        browser.close()
    for visit, seen in times.items():
        print(f"{visit} visit: interactive after {statistics.median(seen):.0f} ms (median)")


class Repeating:
    """Threads that do something again and again until they are told to stop."""

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
    """Returns the rate of one round, by the server's own counter."""
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
    module = read_page_files().others["live/engine_rates.js"].body.decode()
    names = re.findall(r'"(\w+)"', module.partition("SERIES = [")[2].partition("]")[0])
    return f"{server.url}/metrics?" + "&".join(f"name[]=fastovms_{name}" for name in names)


def processor_seconds(server: UiServer) -> float:
    """Returns what the server's process has computed so far."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def time_of_a_scrape() -> None:
    """Prints what a scrape computes, while nothing else runs: no other load changes that."""
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
    parser.add_argument("--rounds", type=int, default=30, help="pairs of rounds")
    arguments = parser.parse_args()
    if arguments.live:
        time_of_a_scrape()
        cost_of_live_view(arguments.rounds)
    else:
        weigh()
        time_loads()


if __name__ == "__main__":
    main()
