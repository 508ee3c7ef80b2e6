"""Runs wrk as a load of many busy keep-alive connections until it is stopped."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.common.process import ending_with_us

SCRIPT: Final = Path(__file__).parents[2] / "wrk" / "completions.lua"
TIMEOUT: Final = 120
"""The longest latency in seconds, including a restart."""
_LONGEST = 24 * 3600
_ANSWERS = re.compile(r"answers: (\d+), refused: (\d+)")
_LATENCY = re.compile(r"latency: p50 ([\d.]+) ms, p99 ([\d.]+) ms, longest ([\d.]+) ms")
_SOCKET_ERRORS = re.compile(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)")


@dataclass(slots=True)
class WrkOutcome:
    """The results of wrk.

    Attributes:
        num_answers: complete responses with status 200.
        num_refused: complete responses with another status.
        num_lost: connections that failed or ended without a response.
        p50, p99, longest: latencies in milliseconds.
        output: the output of wrk.
    """

    num_answers: int = 0
    num_refused: int = 0
    num_lost: int = 0
    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    output: str = ""


def find_wrk() -> str | None:
    """Returns the path of wrk, or None if it is not installed."""
    return shutil.which("wrk")


@contextmanager
def wrk_load(
    url: str, model: str, *, connections: int = 64, max_tokens: int = 2
) -> Iterator[WrkOutcome]:
    """Requests completions until the end of the block, and fills in the outcome then.

    Raises:
        SystemExit: wrk is not installed, or its output has another format.
    """
    program = find_wrk()
    if program is None:
        raise SystemExit("wrk is missing: apt-get install wrk")
    command = [program, "-t1", f"-c{connections}", f"-d{_LONGEST}s", f"--timeout={TIMEOUT}s"]
    command += ["-s", str(SCRIPT), f"{url}/v1/completions", "--", model, str(max_tokens)]
    process = subprocess.Popen(ending_with_us(command), stdout=subprocess.PIPE, text=True)
    outcome = WrkOutcome()
    try:
        yield outcome
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=2 * TIMEOUT)
        read_output(output, outcome)
    finally:
        process.kill()
        process.wait()


def read_output(output: str, outcome: WrkOutcome) -> None:
    """Fills in the outcome. Raises SystemExit if the output has no figures."""
    answers, latency = _ANSWERS.search(output), _LATENCY.search(output)
    if answers is None or latency is None:
        raise SystemExit(f"wrk printed no figures:\n{output}")
    errors = _SOCKET_ERRORS.search(output)
    outcome.output = output
    outcome.num_answers, outcome.num_refused = map(int, answers.groups())
    outcome.num_lost = 0 if errors is None else sum(map(int, errors.groups()))
    outcome.p50, outcome.p99, outcome.longest = map(float, latency.groups())
