"""A client that streams completions one after another while a server is attacked, and measures
every gap.

It is a process of its own, because the attacker's event loop would delay it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

TOKENS = 200
TIMEOUT = 60.0
_PAUSE_AFTER_FAILURE = 0.2


@dataclass(slots=True)
class Sightings:
    """The measurements of the canary.

    Attributes:
        num_streams: complete streams.
        num_failures: streams that were refused or ended early.
        longest_gap: the longest time between two events of a stream, in seconds.
        median_gap, p99_gap: the median and the 99th percentile of these times.
        longest_first: the longest time to the first event of a stream, in seconds.
        last_failure: the error of the last failed stream; empty if none failed.
    """

    num_streams: int = 0
    num_failures: int = 0
    longest_gap: float = 0.0
    longest_first: float = 0.0
    median_gap: float = 0.0
    p99_gap: float = 0.0
    last_failure: str = ""


@contextmanager
def canary(
    url: str, model: str, *, api_key: str = "", max_tokens: int = TOKENS, padding: int = 0
) -> Iterator[Sightings]:
    """Streams until the end of the block, and fills in the measurements then.

    Args:
        max_tokens: the length of each stream in tokens.
        padding: the number of bytes that are added to the request's body.
    """
    sightings = Sightings()
    command = [sys.executable, "-m", "bench.endurance.canary", url, model, api_key]
    command += [str(max_tokens), str(padding)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield sightings
        output, _ = process.communicate(timeout=2 * TIMEOUT)
        for name, value in json.loads(output).items():
            setattr(sightings, name, value)
    finally:
        process.kill()
        process.wait()


def watch(
    url: str, model: str, api_key: str, max_tokens: int, padding: int, ended: threading.Event
) -> Sightings:
    """Streams until `ended` is set, and finishes the current stream."""
    parts = urlsplit(url)
    sightings, gaps = Sightings(), list[float]()
    body = json.dumps(
        {
            "model": model,
            "prompt": "Once upon a time",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "user": "x" * padding,
        }
    )
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {api_key or 'none'}"}
    while not ended.is_set():
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT)
        try:
            connection.request("POST", "/v1/completions", body, headers)
            _read_stream(connection, sightings, gaps)
        except (OSError, HTTPException) as error:
            sightings.num_failures += 1
            sightings.last_failure = repr(error)
            ended.wait(_PAUSE_AFTER_FAILURE)
        finally:
            connection.close()
    if gaps:
        gaps.sort()
        sightings.longest_gap = gaps[-1]
        sightings.median_gap = gaps[len(gaps) // 2]
        sightings.p99_gap = gaps[len(gaps) * 99 // 100]
    return sightings


def _read_stream(connection: HTTPConnection, sightings: Sightings, gaps: list[float]) -> None:
    last = time.perf_counter()
    is_first = True
    response = connection.getresponse()
    if response.status != 200:
        raise HTTPException(f"{response.status}: {response.read()[:500]!r}")
    while line := response.readline():
        if not line.startswith(b"data: "):
            continue
        now = time.perf_counter()
        if is_first:
            sightings.longest_first = max(sightings.longest_first, now - last)
        else:
            gaps.append(now - last)
        last, is_first = now, False
        if line.startswith(b"data: [DONE]"):
            sightings.num_streams += 1
            return
    raise HTTPException("the stream broke off")


def main() -> None:
    url, model, api_key, max_tokens, padding = sys.argv[1:]
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    print(json.dumps(asdict(watch(url, model, api_key, int(max_tokens), int(padding), ended))))


if __name__ == "__main__":
    main()
