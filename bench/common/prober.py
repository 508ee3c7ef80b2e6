"""Requests paths of a server in turn, one request at a time, until its standard input is closed.
Then it prints the latencies in seconds as JSON, by path.

It is a process of its own, as a balancer is, so that a load generator's event loop does not delay
its requests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Final

PAUSE: Final = 0.02
"""The seconds between two rounds of requests."""

Latencies = dict[str, list[float]]


@contextmanager
def probing(host: str, port: int, paths: Sequence[str]) -> Iterator[Latencies]:
    """Probes until the end of the block, and fills in the latencies then.

    Raises:
        SystemExit: an answer's status was not 200.
    """
    latencies: Latencies = {}
    command = [sys.executable, "-m", "bench.common.prober", host, str(port), *paths]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield latencies
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit("the prober failed")
        latencies.update(json.loads(output))
    finally:
        process.kill()
        process.wait()


def probe(host: str, port: int, paths: Sequence[str], ended: threading.Event) -> Latencies:
    connection = HTTPConnection(host, port, timeout=60)
    latencies: Latencies = {path: [] for path in paths}
    while not ended.wait(PAUSE):
        for path, seconds in latencies.items():
            start = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            seconds.append(time.perf_counter() - start)
            if answer.status != 200:
                raise SystemExit(f"{path} was answered with {answer.status}")
    connection.close()
    return latencies


def main() -> None:
    host, port, *paths = sys.argv[1:]
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    print(json.dumps(probe(host, int(port), paths, ended)))


if __name__ == "__main__":
    main()
