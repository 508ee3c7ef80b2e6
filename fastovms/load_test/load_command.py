"""Runs `fastovms bench`: one server, or two in turn, and writes what was found."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import uvloop
from tqdm import tqdm

from fastovms.client.signal_cancellation import cancelled_by
from fastovms.client.target import Target
from fastovms.errors import ConfigurationError
from fastovms.load_test.data_sets import draw_samples
from fastovms.load_test.load_config import DataConfig, LoadConfig, ReportConfig
from fastovms.load_test.load_page import check_plots, draw, html_page
from fastovms.load_test.load_report import details, paired_ratios, render, render_ratios, values
from fastovms.load_test.load_rounds import LoadedServer, run_rounds
from fastovms.load_test.load_summary import LoadSummary, summarize
from fastovms.load_test.timeline import Load

FAILED: Final = 1
"""The exit code where some request has failed."""


def bench(url: str, config: LoadConfig, data: DataConfig, report: ReportConfig) -> int:
    """Runs the load and prints what it came to. Ctrl-C and SIGTERM end it early.

    Returns:
        The exit code: `FAILED`, or 128 and the number of the signal that has ended it, where not
        everything went well.

    Raises:
        ConfigurationError: what is asked for contradicts itself, or a file cannot be had.
        RequestFailed: there is no such server, or it has no model.
    """
    servers = [LoadedServer(url, Target.from_url(url), config)]
    if report.compare is not None:
        compared = Target.from_url(report.compare, "--compare")
        servers.append(LoadedServer(report.compare, compared, config))
    if report.html is not None or report.svg is not None:
        check_plots()
    draw_samples(data, 1, random.Random(0), as_text=True)  # a file at fault is told of now
    _raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code_of_signal = runner.run(_run(servers, config, data, report))
    if not all(server.loads for server in servers):
        print("fastovms: ended before there was anything to tell", file=sys.stderr)
        return code_of_signal
    has_failures = _write(servers, config, report)
    return code_of_signal or (FAILED if has_failures else 0)


async def _run(
    servers: Sequence[LoadedServer], config: LoadConfig, data: DataConfig, report: ReportConfig
) -> int:
    """Runs all rounds, and returns the exit code of a signal that has cut them; 0 = none has."""
    num_rounds = config.rounds if len(servers) > 1 else 1
    with tqdm(
        total=config.num_prompts * num_rounds * len(servers),
        unit="req",
        file=sys.stderr,
        disable=True if report.disable_tqdm else None,  # None = where stderr is no terminal
    ) as progress:
        task = asyncio.create_task(
            run_rounds(servers, config, data, num_rounds, lambda timeline: progress.update())
        )
        with cancelled_by(signal.SIGINT, signal.SIGTERM, task=task) as cancellation:
            await asyncio.wait([task])
    for server in servers:
        await server.client.close()
    if task.cancelled():
        return cancellation.exit_code
    task.result()
    return 0


def _raise_file_limit() -> None:
    """Lets the process have as many connections as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# What is written


def _write(servers: Sequence[LoadedServer], config: LoadConfig, report: ReportConfig) -> bool:
    """Prints and saves the report, and returns whether some request has failed."""
    found = [_Found(server, config, report) for server in servers]
    texts, result = [one.text for one in found], found[0].values
    if len(found) > 1:
        ours, theirs = (one.rounds for one in found)
        num_rounds = min(len(ours), len(theirs))
        ratios = paired_ratios(ours[:num_rounds], theirs[:num_rounds])
        texts.append(f"{num_rounds} rounds in turn\n{render_ratios(ratios)}")
        result = {
            "url": found[0].values,
            "compare": found[1].values,
            "rounds": num_rounds,
            "ratios": ratios,
        }
    text, written = "\n\n".join(texts), json.dumps(result, indent=2)
    print(written if report.json else text, flush=True)
    name = report.result_filename
    if name is None and (report.save_result or report.save_detailed):
        name = Path(f"fastovms-bench-{time.strftime('%Y%m%d-%H%M%S')}.json")
    if name is not None:
        _save(name, "--result-filename", f"{written}\n")
    if report.html is not None or report.svg is not None:
        svg = draw({server.url: server.loads for server in servers})
        if report.svg is not None:
            _save(report.svg, "--svg", svg)
        if report.html is not None:
            title = f"fastovms bench {' and '.join(server.url for server in servers)}"
            _save(report.html, "--html", html_page(title, text, svg))
    return any(one.summary.failed for one in found)


class _Found:
    """The figures of one server."""

    def __init__(self, server: LoadedServer, config: LoadConfig, report: ReportConfig) -> None:
        config = replace(config, model=server.model)
        self.rounds = [_summary(load, config) for load in server.loads]
        self.summary = _summary(server.load, config)
        text = render(self.summary, config)
        self.text = text if report.compare is None else f"{server.url}\n{text}"
        self.values: dict[str, object] = {
            "date": time.strftime("%Y%m%d-%H%M%S"),
            "base_url": server.url,
            **values(self.summary, config),
            **(details(server.load) if report.save_detailed else {}),
        }


def _summary(load: Load, config: LoadConfig) -> LoadSummary:
    return summarize(
        load,
        percentiles=config.metric_percentiles,
        latencies=config.percentile_metrics,
        goodput=config.goodput,
    )


def _save(path: Path, flag: str, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"cannot write {flag} {path}: {error.strerror}") from None
